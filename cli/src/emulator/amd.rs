//! The emulated PC with AMD-V: QEMU's `q35` machine. Its TCG emulates AMD-V with nested paging, and no VMX.

use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::privileges::drop_unneeded;
use super::qemu::{OLDEST, version_of};
use super::{Emulator, Pipes};
use crate::exit;

/// The emulator's program.
pub const PROGRAM: &str = "qemu-system-x86_64";
/// The Debian package.
pub const PACKAGE: &str = "qemu-system-x86";
/// The CPU models that Stile is tested on.
pub const MODELS: [&str; 2] = ["max", "EPYC"];

/// The emulated machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AmdPc {
    /// The CPU's model; properties may follow after commas.
    pub cpu: String,
    /// Physical CPUs.
    pub cpus: u32,
    /// RAM in bytes.
    pub memory: u64,
    /// Further options of the machine, such as `smm=off`.
    pub machine: Vec<String>,
    /// Whether virtual time counts instructions, one a nanosecond.
    pub icount: bool,
    /// Whether it has an IOMMU, which remaps interrupts, too.
    pub iommu: bool,
    /// Further arguments of the emulator.
    pub extra: Vec<String>,
}

/// Size from which the machine moves a part of its RAM, from 2 GiB on, behind the first 4 GiB.
const DIVIDES: u64 = 0xb000_0000;

impl AmdPc {
    /// Physical addresses of the RAM, if it is one piece.
    pub fn ram(&self) -> Option<Range<u64>> {
        (self.memory <= DIVIDES).then_some(0..self.memory)
    }

    /// The emulator's arguments for running `image`, which it loads as Multiboot describes. The serial line is the
    /// emulator's standard input and output.
    pub fn arguments(&self, image: &Path) -> Vec<OsString> {
        let machine = self.machine.iter().fold("q35".to_owned(), |all, option| all + "," + option);
        // Named models hide features that TCG has, and that Stile needs.
        let cpu = if self.cpu.starts_with("EPYC") { format!("{},+svm,+npt,+x2apic", self.cpu) } else { self.cpu.clone() };
        let (cpus, memory) = (self.cpus.to_string(), format!("{}M", self.memory.div_ceil(1 << 20)));
        let machine = ["-accel", "tcg", "-M", &machine, "-cpu", &cpu, "-smp", &cpus, "-m", &memory];
        let devices = ["-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot"];
        let line = ["-chardev", "stdio,id=line,signal=off", "-serial", "chardev:line"];
        let counting: &[&str] = if self.icount { &["-icount", "shift=0,sleep=off"] } else { &[] };
        let mut arguments: Vec<OsString> = [&machine[..], &devices, &line, counting].concat().into_iter().map(OsString::from).collect();
        if self.iommu {
            arguments.extend(["-device", "amd-iommu,intremap=on,pt=off"].map(OsString::from));
        }
        arguments.extend(["-kernel".into(), image.into()]);
        arguments.extend(self.extra.iter().map(OsString::from));
        arguments
    }
}

/// Starts the machine on `image`.
///
/// # Errors
/// The program can't be started.
pub fn start(pc: &AmdPc, image: &Path) -> Result<(Emulator, Pipes)> {
    let mut command = Command::new(PROGRAM);
    drop_unneeded(&mut command);
    command.args(pc.arguments(image)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut emulator = Emulator::spawn(&mut command, |status| status.success(), None)
        .map_err(|error| exit::lacking(format!("{PROGRAM} can't be started ({error}): install the package {PACKAGE}")))?;
    let pipes = emulator.pipes().context("the emulator has no pipes")?;
    Ok((emulator, pipes))
}

/// Ensures that the emulator is installed.
///
/// # Errors
/// It is not, or is too old: before 9.0 TCG has no x2APIC.
pub fn ensure() -> Result<()> {
    match version_of(PROGRAM, PACKAGE)? {
        version if version >= OLDEST => Ok(()),
        version => Err(exit::lacking(format!("{PROGRAM} {version} has no x2APIC: install {PACKAGE} {OLDEST} or later"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_boots_the_image_as_multiboot_describes() {
        let pc = AmdPc { cpu: "max".into(), cpus: 2, memory: 1 << 30, machine: Vec::new(), icount: false, iommu: false, extra: Vec::new() };
        let line = |pc: &AmdPc| pc.arguments(Path::new("IMAGE")).join(" ".as_ref()).into_string().unwrap();
        let text = line(&pc);
        assert!(text.starts_with("-accel tcg -M q35 -cpu max -smp 2 -m 1024M -nodefaults"), "{text}");
        assert!(text.ends_with("-serial chardev:line -kernel IMAGE"), "{text}");
        assert_eq!(pc.ram(), Some(0..1 << 30));
        assert_eq!(AmdPc { memory: DIVIDES + 1, ..pc.clone() }.ram(), None);
        let named =
            AmdPc { cpu: "EPYC".into(), machine: vec!["smm=off".into()], icount: true, iommu: true, extra: vec!["-S".into()], ..pc };
        let text = line(&named);
        assert!(text.contains("-M q35,smm=off -cpu EPYC,+svm,+npt,+x2apic "), "{text}");
        assert!(text.ends_with("-icount shift=0,sleep=off -device amd-iommu,intremap=on,pt=off -kernel IMAGE -S"), "{text}");
    }
}
