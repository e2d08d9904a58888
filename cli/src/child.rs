//! Child processes that end with this one, and their error output.

use std::io::{self, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Sends the child `signal` when the thread that starts it ends for any reason, so that a killed command leaves no
/// processes behind.
pub fn end_with_parent(command: &mut Command, signal: Signal) -> &mut Command {
    let ask = move || set_parent_process_death_signal(Some(signal)).map_err(io::Error::from);
    // SAFETY: between fork and exec only async-signal-safe functions may be called; the closure makes one system call (prctl)
    // and neither allocates nor takes a lock.
    unsafe { command.pre_exec(ask) }
}

/// Cargo's progress: units done, and total.
pub type Progress = Arc<Mutex<Option<(u64, u64)>>>;

/// Reads cargo's standard error, which is a pipe, concurrently with its output. Its progress bar, requested
/// by `CARGO_TERM_PROGRESS_WHEN`, goes to `progress`, the rest is returned.
pub fn errors_of_cargo(child: &mut Child, progress: Progress) -> JoinHandle<String> {
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
            match cargo_progress(&said) {
                Some(done) => *progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(done),
                // The bar is erased by an empty line, or by spaces.
                None if byte == b'\r' => {}
                None => text += &format!("{said}\n"),
            }
        }
        text + &String::from_utf8_lossy(&line)
    })
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
    fn cargos_progress_is_separated_from_its_messages() {
        let script = r"printf '\r    Building [==>   ] 1/34: core\r\033[K   Compiling x v1\n    Building [====> ] 12/34: a, b(build)\rerror: no\n'; printf end";
        let mut child = Command::new("sh").args(["-c", &format!("{{ {script}; }} >&2")]).stderr(Stdio::piped()).spawn().unwrap();
        let progress = Progress::default();
        let errors = errors_of_cargo(&mut child, progress.clone()).join().unwrap();
        child.wait().unwrap();
        assert_eq!(*progress.lock().unwrap(), Some((12, 34)));
        assert!(errors.ends_with("Compiling x v1\nerror: no\nend"), "{errors:?}");
    }
}
