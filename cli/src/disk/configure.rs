//! The VM that unpacks and configures a new disk's packages: an emulated machine of the disk's architecture, without Stile.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::child::{self, end_with_parent};
use crate::config::{Arch, units};
use crate::emulator::{self, amd};
use crate::exit;
use crate::initramfs::kernel_arguments;
use crate::progress::Task;

/// The VM's first program.
pub const INIT: &str = include_str!("configure.sh");

/// Files of the VM.
#[derive(Debug, Clone, Copy)]
pub struct Vm<'a> {
    /// The disk's architecture.
    pub arch: Arch,
    /// The kernel.
    pub kernel: &'a Path,
    /// An initial RAM file system with [`INIT`].
    pub initrd: &'a Path,
    /// The disk: a raw image of an empty file system.
    pub disk: &'a Path,
    /// The archive to unpack onto it.
    pub archive: &'a Path,
    /// Number of packages in the archive.
    pub packages: usize,
}

/// Maximum time without output of the VM. The longest one observed was two minutes, with five emulators on two CPUs.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Number of lines of the VM's console in an error.
const SHOWN: usize = 20;

/// Shares of the whole time in percent: when unpacking has ended, and when preparing has.
const UNPACKED: f64 = 12.0;
const PREPARED: f64 = 17.0;

/// The emulator's program, its Debian package, and the options of the machine.
const fn machine(arch: Arch) -> (&'static str, &'static str, &'static str) {
    match arch {
        Arch::Aarch64 => (emulator::PROGRAM, emulator::PACKAGE, "-M virt,gic-version=3 -cpu neoverse-n1 -accel tcg,thread=multi"),
        // The emulator decides whether the host's memory model allows a thread for each CPU.
        Arch::X86_64 => (amd::PROGRAM, amd::PACKAGE, "-M q35 -cpu max -accel tcg"),
    }
}

/// Runs the VM until the disk is complete.
///
/// # Errors
/// The emulator can't be run; the VM reports a failure or hangs: the error contains the end of its output.
pub fn run(vm: &Vm<'_>) -> Result<()> {
    let task = Task::start(format!("unpacking {}", units::plural(vm.packages, "package")));
    let (program, package, _) = machine(vm.arch);
    let mut command = Command::new(program);
    command.args(arguments(vm)?).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = end_with_parent(&mut command, Signal::KILL)
        .spawn()
        .map_err(|error| exit::lacking(format!("{program} can't be started ({error}): install the package {package}")))?;
    let errors = child::errors_of(&mut child);
    let console = BufReader::new(child.stdout.take().context("the emulator has no output")?);
    let (send, lines) = mpsc::channel();
    thread::spawn(move || console.split(b'\n').map_while(Result::ok).try_for_each(|line| send.send(line)));

    let mut last = VecDeque::new();
    let mut done = 0;
    let end = loop {
        let line = match lines.recv_timeout(OUTPUT_TIMEOUT) {
            Ok(line) => String::from_utf8_lossy(&line).trim_end().to_owned(),
            Err(mpsc::RecvTimeoutError::Timeout) => break "it has said nothing for 30 minutes".to_owned(),
            Err(mpsc::RecvTimeoutError::Disconnected) => break "it ended early".to_owned(),
        };
        match Line::of(&line) {
            Line::Unpacking => {}
            Line::Preparing => task.percent(UNPACKED),
            Line::Configuring => {
                task.message(format!("configuring {}", units::plural(vm.packages, "package")));
                task.percent(PREPARED);
            }
            Line::Package(name) => {
                done += 1;
                task.message(format!("configuring {name}"));
                task.percent(PREPARED + (100.0 - PREPARED) * f64::from(done) / vm.packages.max(1) as f64);
            }
            Line::Done => {
                // It powers off.
                child.wait().context("waiting for the emulator")?;
                return Ok(());
            }
            Line::Failed(why) => break why.to_owned(),
            Line::Other => {}
        }
        last.push_back(line);
        if last.len() > SHOWN {
            last.pop_front();
        }
    };
    // Fails only if the process has already ended.
    let _ = child.kill();
    child.wait().context("waiting for the emulator")?;
    let console = last.into_iter().collect::<Vec<_>>().join("\n");
    let errors = errors.join().unwrap_or_default();
    let full = console.contains("No space left on device");
    let hint = if full { "\nThe disk is too small: choose a larger one with --size, such as --size 16G." } else { "" };
    bail!("the VM that configures the packages failed: {end}{hint}\nThe end of its output:\n{}", format!("{console}\n{errors}").trim_end());
}

/// A line of the VM's console.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Unpacking,
    Preparing,
    Configuring,
    Package(&'a str),
    Failed(&'a str),
    Done,
    Other,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        if let Some(package) = line.strip_prefix("Setting up ") {
            return Self::Package(package.split([':', ' ']).next().unwrap_or_default());
        }
        match line.strip_prefix("stile: ") {
            Some("unpacking") => Self::Unpacking,
            Some("preparing") => Self::Preparing,
            Some("configuring") => Self::Configuring,
            Some("done") => Self::Done,
            Some(word) => word.strip_prefix("failed: ").map_or(Self::Other, Self::Failed),
            None => Self::Other,
        }
    }
}

/// The emulator's arguments.
fn arguments(vm: &Vm<'_>) -> Result<Vec<String>> {
    let path = |path: &Path| path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()));
    // A comma in a file's name is doubled (QEMU's documentation, "QemuOpts").
    let drive = |id: &str, file: &Path, options: &str| {
        Ok::<_, anyhow::Error>(format!("if=none,id={id},file={},format=raw,{options}", path(file)?.replace(',', ",,")))
    };
    let (.., machine) = machine(vm.arch);
    let words = [
        machine,
        "-smp 2 -m 1024M",
        "-nodefaults -no-user-config -display none -monitor none -no-reboot -chardev stdio,id=line,signal=off -serial chardev:line",
    ];
    let mut arguments: Vec<String> = words.iter().flat_map(|words| words.split(' ')).map(str::to_owned).collect();
    // A disk that was not completed is thrown away: nothing needs to be durable. A full host must not suspend the VM.
    let unsafely = "cache=unsafe,werror=report,rerror=report";
    let options = [
        ("-kernel", path(vm.kernel)?),
        ("-initrd", path(vm.initrd)?),
        ("-append", format!("{} quiet mitigations=off", kernel_arguments(vm.arch))),
        ("-drive", drive("disk", vm.disk, unsafely)?),
        ("-device", "virtio-blk-pci,drive=disk,addr=1,romfile=".to_owned()),
        ("-drive", drive("packages", vm.archive, "readonly=on")?),
        ("-device", "virtio-blk-pci,drive=packages,addr=2,romfile=".to_owned()),
    ];
    arguments.extend(options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_console_are_understood() {
        assert_eq!(Line::of("Setting up libc6:arm64 (2.41-12) ..."), Line::Package("libc6"));
        assert_eq!(Line::of("Setting up netbase (6.5) ..."), Line::Package("netbase"));
        assert_eq!(Line::of("stile: failed: no way"), Line::Failed("no way"));
        assert_eq!(Line::of("stile: done"), Line::Done);
        assert_eq!(Line::of("done"), Line::Other);
    }

    #[test]
    fn machines_are_those_of_the_architecture_and_commas_in_names_are_kept() {
        let path = Path::new("/a,b/disk");
        for (arch, machine) in [(Arch::Aarch64, "virt,gic-version=3"), (Arch::X86_64, "q35")] {
            let vm = Vm { arch, kernel: path, initrd: path, disk: path, archive: path, packages: 1 };
            let arguments = arguments(&vm).unwrap();
            assert!(arguments.iter().any(|argument| argument.contains("file=/a,,b/disk,format=raw,cache=unsafe")));
            assert_eq!(arguments[..2], ["-M", machine]);
        }
    }
}
