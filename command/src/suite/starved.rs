//! An operator of a machine with AMD-V whose slices are over before a guest is entered: the emulator is slowed down until this is so, as
//! it is for a moment on a host that is busy with other work.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::process::Signal;

use super::screen;
use super::slowdown::stretched;
use stile::child::end_with_parent;
use stile::config::Arch;
use stile::programs::Programs;

/// The test's name.
pub const NAME: &str = "pc/amd/operator/short-slices";

/// Time limit of the boot.
const LIMIT: Duration = Duration::from_secs(300);

/// An instruction at a time, each of them written to a log, takes some 20 us: more than a thousand times as long as usual. A slice is then
/// over after five instructions of Stile's.
const SLOW: [&str; 3] = ["logfile /dev/null", "one-insn-per-tb on", "log exec,cpu,nochain"];

/// Pauses and resumes one of two VMs that spin on one CPU: the console is heard, although the timer's interrupt is always pending.
pub fn test() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let runtime = dir.path().join("run");
    DirBuilder::new().mode(0o700).create(&runtime)?;
    let kernel = Programs::build(Arch::X86_64)?.path("spin")?;
    let vm = |name: &str| format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nmemory = \"64M\"\n");
    let machine = "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = 1\nslice = \"100us\"\n";
    fs::write(dir.path().join("m.toml"), format!("{machine}{}{}", vm("a"), vm("b")))?;

    let console = dir.path().join("console");
    let mut command = stile(dir.path(), &["run", "m.toml", "--name", "m", "--timeout", "3000"])?;
    command.args(screen::control(dir.path()).map(|argument| format!("--qemu-arg={argument}")));
    let mut run = Run(command.stdin(Stdio::piped()).stdout(File::create(&console)?).stderr(Stdio::null()).spawn()?);
    let until = Instant::now() + stretched(LIMIT);
    while fs::read_to_string(&console)?.matches("spin: spinning").count() < 2 {
        ensure!(run.0.try_wait()?.is_none() && Instant::now() < until, "the VMs did not start");
        thread::sleep(Duration::from_millis(200));
    }
    screen::tell(dir.path(), &SLOW)?;
    for (words, answer) in [(["pause", "m/a"], "m/a is paused"), (["resume", "m/a"], "m/a runs")] {
        let Output { status, stdout, stderr } = stile(dir.path(), &words)?.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        if !status.success() || !said.contains(answer) {
            bail!("`stile {}` says: {said}", words.join(" "));
        }
    }
    Ok(())
}

/// This command, with the control sockets in `dir`.
fn stile(dir: &Path, words: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    end_with_parent(&mut command, Signal::TERM).args(words).env("XDG_RUNTIME_DIR", dir.join("run")).current_dir(dir);
    Ok(command)
}

/// A machine, which ends with the test.
struct Run(Child);

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
