//! Child processes that end with this one, and their error output.

use std::io::{self, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::progress::Task;

/// Sends the child `signal` when the thread that starts it ends for any reason, so that a killed command leaves no
/// processes behind.
pub fn end_with_parent(command: &mut Command, signal: Signal) -> &mut Command {
    let ask = move || set_parent_process_death_signal(Some(signal)).map_err(io::Error::from);
    // SAFETY: between fork and exec only async-signal-safe functions may be called; the closure makes one system call (prctl)
    // and neither allocates nor takes a lock.
    unsafe { command.pre_exec(ask) }
}

/// Progress of a cargo build, shown once there is work to do.
#[derive(Debug)]
pub struct BuildProgress {
    what: String,
    task: Option<Task>,
}

impl BuildProgress {
    /// Cargo is about to build `what`.
    pub fn building(what: &str) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { what: what.to_owned(), task: None }))
    }

    /// Handles a line of cargo's standard error. Returns whether it is part of the progress bar.
    fn take(&mut self, line: &str) -> bool {
        let text = format!("building {}", self.what);
        if let Some((done, all)) = cargo_progress(line) {
            let task = self.task.get_or_insert_with(|| Task::start(text.clone()));
            task.message(format!("{text}: {done} of {all} crates"));
            task.percent(done as f64 * 100.0 / all.max(1) as f64);
            return true;
        }
        match line.trim_start().split(' ').next() {
            // Before the first crate is done, which can take a minute.
            Some("Compiling" | "Updating" | "Downloading") => drop(self.task.get_or_insert_with(|| Task::start(text))),
            Some("Blocking") => {
                let task = self.task.get_or_insert_with(|| Task::start(format!("{text}: waiting for another build")));
                task.message(format!("{text}: waiting for another build"));
            }
            _ => {}
        }
        false
    }

    /// Ends what is shown.
    pub fn end(cargo: &Mutex<Self>) {
        cargo.lock().unwrap_or_else(PoisonError::into_inner).task = None;
    }
}

/// Reads cargo's standard error, which is a pipe, concurrently with its output. Its progress bar, requested
/// by `CARGO_TERM_PROGRESS_WHEN`, goes to `cargo`, the rest is returned.
pub fn errors_of_cargo(child: &mut Child, cargo: Arc<Mutex<BuildProgress>>) -> JoinHandle<String> {
    let stderr = child.stderr.take();
    std::thread::spawn(move || {
        let mut text = String::new();
        let bytes = stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).bytes()).map_while(io::Result::ok);
        let mut line = Vec::new();
        for byte in bytes {
            if byte != b'\r' && byte != b'\n' {
                line.push(byte);
                continue;
            }
            let said = String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned();
            let is_progress = cargo.lock().unwrap_or_else(PoisonError::into_inner).take(without_escapes(&said));
            // The bar is erased by an empty line, or by spaces.
            if !is_progress && byte == b'\n' {
                text += &format!("{said}\n");
            }
        }
        text + &String::from_utf8_lossy(&line)
    })
}

/// A line without the sequence that erases the bar before it.
fn without_escapes(line: &str) -> &str {
    line.strip_prefix("\u{1b}[K").unwrap_or(line)
}

/// The numbers in `Building [=====>   ] 12/34: core, compiler_builtins`.
fn cargo_progress(line: &str) -> Option<(u64, u64)> {
    let (_, rest) = line.split_once("Building [")?.1.split_once("] ")?;
    let (done, rest) = rest.split_once('/')?;
    let all = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((done.trim().parse().ok()?, all.parse().ok()?))
}

/// Reads a child's standard error, which is a pipe, concurrently with its output.
pub fn errors_of(child: &mut Child) -> JoinHandle<String> {
    let stderr = child.stderr.take();
    std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut stderr) = stderr {
            let _ = stderr.read_to_string(&mut text);
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_build_is_announced_before_its_first_crate_is_done() {
        for (line, is_work) in [
            ("   Compiling core v0.0.0 (/rust/library/core)", true),
            ("\u{1b}[K   Compiling core v0.0.0", true),
            ("    Blocking waiting for file lock on build directory", true),
            ("    Building [=>    ] 1/34: core", true),
            ("    Finished `hypervisor` profile [optimized] target(s) in 0.05s", false),
            ("", false),
        ] {
            let cargo = BuildProgress::building("the hypervisor");
            let mut cargo = cargo.lock().unwrap();
            assert_eq!(cargo.take(without_escapes(line)), line.contains("Building ["), "{line}");
            assert_eq!(cargo.task.is_some(), is_work, "{line}");
        }
    }

    #[test]
    fn cargos_progress_is_separated_from_its_messages() {
        let script = r"printf '\r    Building [==>   ] 1/34: core\r\033[K   Compiling x v1\n    Building [====> ] 12/34: a, b(build)\rerror: no\n'; printf end";
        let mut child = Command::new("sh").args(["-c", &format!("{{ {script}; }} >&2")]).stderr(Stdio::piped()).spawn().unwrap();
        let cargo = BuildProgress::building("x");
        let errors = errors_of_cargo(&mut child, cargo.clone()).join().unwrap();
        child.wait().unwrap();
        assert!(cargo.lock().unwrap().task.is_some());
        assert!(errors.ends_with("Compiling x v1\nerror: no\nend"), "{errors:?}");
    }
}
