//! The emulated Arm server: QEMU's `virt` board with EL2.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::exit;

/// The emulator's program.
pub const PROGRAM: &str = "qemu-system-aarch64";

/// The Debian package.
pub const PACKAGE: &str = "qemu-system-arm";

/// The oldest version that emulates FEAT_NV2.
pub const OLDEST: Version = Version(9, 0);

/// A version of the emulator: major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The emulated machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// The CPU's model, such as `max`; properties may follow after commas.
    pub cpu: String,
    /// Physical CPUs.
    pub cpus: u32,
    /// CPUs of each NUMA node, among which memory is divided evenly; empty without nodes.
    pub nodes: Vec<Range<u32>>,
    /// RAM in bytes.
    pub memory: u64,
    /// Further options of the `virt` machine, such as `gic-version=4`; several may be in one, with commas between them.
    pub machine: Vec<String>,
    /// Whether it has an SMMU, unless `machine` has an option for it.
    pub smmu: bool,
    /// Whether virtual time counts instructions, one a nanosecond.
    pub icount: bool,
    /// UEFI firmware that starts the image, which is a disk's then; it describes the machine by a device tree.
    pub firmware: Option<PathBuf>,
    /// Further arguments of the emulator.
    pub extra: Vec<String>,
}

/// A timer that fires once a second of virtual time: a filter of a network that has no device and no packets.
///
/// While all CPUs sleep, `sleep=off` moves virtual time to the next timer. Where the only timers left are those that
/// never fire, that is the end of time, at which QEMU 10.0 runs an expired Arm timer for ever, with the lock held that
/// the serial line's input needs.
const HEARTBEAT: [&str; 6] = [
    "-netdev",
    "hubport,id=beat,hubid=0",
    // Without a peer, QEMU warns.
    "-netdev",
    "hubport,id=peer,hubid=1,netdev=beat",
    "-object",
    "filter-buffer,id=heart,netdev=beat,interval=1000000",
];

/// Physical address of the first byte of RAM.
const RAM: u64 = 0x4000_0000;

impl Board {
    /// Physical addresses of the RAM, if it is one piece: not divided among nodes.
    pub fn ram(&self) -> Option<Range<u64>> {
        self.nodes.is_empty().then_some(RAM..RAM + self.memory)
    }

    /// The emulator's arguments for running `image`. The serial line is the emulator's standard input and
    /// output.
    pub fn arguments(&self, image: &Path) -> Vec<OsString> {
        let mut machine = String::from("virt,virtualization=on");
        let options = self.machine.iter().flat_map(|options| options.split(','));
        if !options.clone().any(|option| option.starts_with("gic-version=")) {
            machine += ",gic-version=3";
        }
        if self.smmu && !options.clone().any(|option| option.starts_with("iommu=")) {
            machine += ",iommu=smmuv3";
        }
        if self.firmware.is_some() && !options.clone().any(|option| option.starts_with("acpi=")) {
            machine += ",acpi=off";
        }
        for option in options {
            machine += ",";
            machine += option;
        }
        // QEMU's own pointer authentication algorithm is several times as fast as the architected one.
        let cpu = if self.cpu == "max" { "max,pauth-impdef=on" } else { &self.cpu };
        let mebibytes = self.memory.div_ceil(1 << 20);
        let memory = format!("{mebibytes}M");
        // QEMU warns of CPUs in one cluster on different nodes. Sockets have equal numbers of CPUs.
        let sockets = self.nodes.len() as u32;
        let cpus = match self.cpus {
            cpus if sockets > 1 && cpus.is_multiple_of(sockets) => format!("{cpus},sockets={sockets},cores={}", cpus / sockets),
            cpus => cpus.to_string(),
        };
        let mut arguments: Vec<OsString> = [
            "-M",
            &machine,
            "-cpu",
            cpu,
            "-smp",
            &cpus,
            "-m",
            &memory,
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-monitor",
            "none",
            "-no-reboot",
            "-chardev",
            "stdio,id=line,signal=off",
            "-serial",
            "chardev:line",
        ]
        .into_iter()
        .map(OsString::from)
        .collect();
        for (node, cpus) in (0..).zip(&self.nodes) {
            let nodes = self.nodes.len() as u64;
            let size = (node + 1) * mebibytes / nodes - node * mebibytes / nodes;
            let (first, last) = (cpus.start, cpus.end.saturating_sub(1));
            let options = [
                "-object",
                &format!("memory-backend-ram,id=node{node},size={size}M"),
                "-numa",
                &format!("node,nodeid={node},cpus={first}-{last},memdev=node{node}"),
            ]
            .map(OsString::from);
            arguments.extend(options);
        }
        if self.icount {
            arguments.extend(["-icount", "shift=0,sleep=off"].map(OsString::from));
            arguments.extend(HEARTBEAT.map(OsString::from));
        }
        match &self.firmware {
            None => arguments.extend(["-kernel".into(), image.into()]),
            Some(firmware) => {
                // A comma would end the option; another one keeps it.
                let file = image.display().to_string().replace(',', ",,");
                let drive = format!("if=none,id=stick,format=raw,readonly=on,file={file}");
                arguments.extend(["-bios".into(), firmware.into(), "-drive".into(), drive.into()]);
                // Before VMs' disks, which firmware might start, too.
                arguments.extend(["-device", "virtio-blk-device,drive=stick,bootindex=0"].map(OsString::from));
            }
        }
        arguments.extend(self.extra.iter().map(OsString::from));
        arguments
    }
}

/// The emulator's path and version.
///
/// # Errors
/// It is not installed, or its version can't be determined.
pub fn installed() -> Result<(PathBuf, Version)> {
    Ok((PathBuf::from(PROGRAM), version_of(PROGRAM, PACKAGE)?))
}

/// The version of an emulator of QEMU's.
pub(super) fn version_of(program: &str, package: &str) -> Result<Version> {
    let output = Command::new(program).arg("--version").output().map_err(|error| {
        exit::lacking(format!("{program} can't be run ({error}): install the package {package}, version {OLDEST} or later"))
    })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    version(&text).ok_or_else(|| exit::lacking(format!("{program} does not say its version: {}", text.trim())))
}

fn version(text: &str) -> Option<Version> {
    let number = text.split_whitespace().skip_while(|word| *word != "version").nth(1)?;
    let mut parts = number.split('.').map(|part| part.parse().ok());
    Some(Version(parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Board {
        Board {
            cpu: "max".into(),
            cpus: 2,
            nodes: Vec::new(),
            memory: 1 << 30,
            machine: Vec::new(),
            icount: false,
            smmu: false,
            firmware: None,
            extra: Vec::new(),
        }
    }

    fn line(board: &Board) -> String {
        board.arguments(Path::new("IMAGE")).join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn the_board_has_el2_and_a_gicv3_by_default() {
        let text = line(&board());
        assert!(text.starts_with("-M virt,virtualization=on,gic-version=3 -cpu max,pauth-impdef=on -smp 2 -m 1024M"), "{text}");
        assert!(text.ends_with("-kernel IMAGE"), "{text}");
        let other = Board { machine: vec!["gic-version=4".into()], cpu: "cortex-a57".into(), ..board() };
        let text = line(&other);
        assert!(text.starts_with("-M virt,virtualization=on,gic-version=4 -cpu cortex-a57 "), "{text}");
        let text = line(&Board { smmu: true, ..board() });
        assert!(text.starts_with("-M virt,virtualization=on,gic-version=3,iommu=smmuv3 -cpu max"), "{text}");
        let text = line(&Board { smmu: true, machine: vec!["iommu=none".into()], ..board() });
        assert!(text.starts_with("-M virt,virtualization=on,gic-version=3,iommu=none -cpu max"), "{text}");
        let text = line(&Board { machine: vec!["its=off,gic-version=4".into()], ..board() });
        assert!(text.starts_with("-M virt,virtualization=on,its=off,gic-version=4 -cpu "), "{text}");
    }

    #[test]
    fn additional_arguments_come_last_and_take_precedence() {
        let text = line(&Board { icount: true, extra: vec!["-d".into(), "int".into()], ..board() });
        assert!(text.contains(" -icount shift=0,sleep=off -netdev hubport,id=beat,"), "{text}");
        assert!(text.ends_with(" -kernel IMAGE -d int"), "{text}");
    }

    #[test]
    fn nodes_share_all_memory() {
        let text = line(&Board { cpus: 4, nodes: vec![0..1, 1..2, 2..4], memory: 1000 << 20, ..board() });
        let nodes = Board { cpus: 4, nodes: vec![0..2, 2..4], ..board() };
        assert_eq!(nodes.ram(), None);
        let even = line(&nodes);
        assert!(even.contains("-smp 4,sockets=2,cores=2 "), "{even}");
        for part in [
            "-smp 4 ",
            "-m 1000M",
            "id=node0,size=333M ",
            "id=node1,size=333M ",
            "id=node2,size=334M ",
            "node,nodeid=2,cpus=2-3,memdev=node2",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn firmware_starts_a_disk() {
        let text = line(&Board { firmware: Some("EDK2".into()), ..board() });
        assert!(text.starts_with("-M virt,virtualization=on,gic-version=3,acpi=off -cpu"), "{text}");
        let disk = "-drive if=none,id=stick,format=raw,readonly=on,file=IMAGE -device virtio-blk-device,drive=stick,bootindex=0";
        assert!(text.ends_with(&format!("-bios EDK2 {disk}")), "{text}");
    }

    #[test]
    fn versions_are_read_and_ordered() {
        assert_eq!(version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright"), Some(Version(10, 0)));
        assert_eq!(version("no number"), None);
        assert!(Version(7, 2) < OLDEST && Version(10, 0) > OLDEST);
    }
}
