//! VMs for KVM's client (`guests/kvm-client`), in the initial RAM file system of its host.

use std::fmt::Write as _;

use stile_blob::{Mode, Nested};

use crate::config::{Arch, VmConfig};
use crate::image::VmPlan;
use crate::initramfs::cpio::Archive;

/// The client's name.
pub const PROGRAM: &str = "kvm-client";

/// Numbers of the device `/dev/kvm` (Linux, "Linux allocated devices").
const KVM_DEVICE: (u32, u32) = (10, 232);

/// A VM.
#[derive(Debug, Clone, Copy)]
pub struct Vm<'a> {
    /// Its architecture.
    pub arch: Arch,
    /// Its name.
    pub name: &'a str,
    /// Virtual CPUs.
    pub vcpus: u16,
    /// RAM in bytes.
    pub memory: u64,
    /// Files of the host and the addresses in the VM (guest-physical addresses) that they are loaded to.
    pub loads: &'a [(&'a str, u64)],
    /// Guest-physical entry point of the first vCPU.
    pub entry: u64,
    /// Guest-physical address of the device tree.
    pub tree: u64,
    /// Whether it has an EL2 of its own.
    pub el2: bool,
    /// Guest-physical address of the page tables of a PC that starts in 64-bit mode.
    pub long: Option<u64>,
}

impl Vm<'_> {
    /// The VM's description for the client: addresses are offsets in RAM.
    fn description(&self) -> String {
        let offset = |gpa: u64| gpa.saturating_sub(self.arch.ram_base());
        let (entry, tree) = (offset(self.entry), offset(self.tree));
        let mut text = format!("vcpus {}\nmemory {}\nentry {entry}\ntree {tree}\n", self.vcpus, self.memory);
        if self.el2 {
            text.push_str("el2\n");
        }
        if let Some(tables) = self.long {
            let _ = writeln!(text, "long {tables}");
        }
        for (path, place) in self.loads {
            // Writing to a string can't fail.
            let _ = writeln!(text, "load {path} {}", offset(*place));
        }
        text
    }
}

/// An archive with the client, the devices that it needs, and descriptions of VMs. Their files are the caller's to add.
pub fn archive(client: &[u8], vms: &[Vm<'_>]) -> Archive {
    let mut archive = Archive::default();
    archive.directory("dev");
    archive.character_device("dev/console", 0o600, 5, 1);
    archive.character_device("dev/kvm", 0o600, KVM_DEVICE.0, KVM_DEVICE.1);
    archive.file("init", 0o755, client);
    describe(&mut archive, vms);
    archive
}

/// Files added to another system, which has the devices: the client as a command, and descriptions of VMs.
pub fn addition(client: &[u8], vms: &[Vm<'_>]) -> Archive {
    let mut archive = Archive::default();
    archive.file(&format!("bin/{PROGRAM}"), 0o755, client);
    describe(&mut archive, vms);
    archive
}

fn describe(archive: &mut Archive, vms: &[Vm<'_>]) {
    for vm in vms {
        archive.file(&format!("{}.vm", vm.name), 0o644, vm.description().as_bytes());
    }
}

/// A VM whose memory is laid out as under Stile.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Its architecture.
    pub arch: Arch,
    /// Name, vCPUs, RAM, and whether it has an EL2.
    pub config: VmConfig,
    /// The layout, and the contents of memory.
    pub plan: VmPlan,
}

impl Planned {
    /// Contents of memory: names of files of the host, addresses, and bytes.
    fn files(&self) -> Vec<(String, u64, &[u8])> {
        let VmPlan { kernel, initrd, dtb, layout, more, .. } = &self.plan;
        let path = |what: &str| format!("/{}-{what}", self.config.name);
        let segments = kernel.segments.iter().enumerate();
        let mut files: Vec<_> = segments.map(|(n, segment)| (path(&format!("kernel-{n}")), segment.gpa, kernel.bytes(segment))).collect();
        files.extend(layout.initrd.iter().zip(initrd).map(|(range, content)| (path("initrd"), range.start, &content[..])));
        files.push((path("tree"), layout.dtb.start, dtb));
        files.extend(more.iter().enumerate().map(|(n, (gpa, content))| (path(&format!("more-{n}")), *gpa, &content[..])));
        files
    }
}

/// An archive that `around` makes ([`archive`] or [`addition`]), with the VMs' files.
pub fn planned(client: &[u8], around: fn(&[u8], &[Vm<'_>]) -> Archive, vms: &[Planned]) -> Archive {
    let files: Vec<_> = vms.iter().map(Planned::files).collect();
    let loads: Vec<Vec<_>> = files.iter().map(|files| files.iter().map(|(path, gpa, _)| (path.as_str(), *gpa)).collect()).collect();
    let described = vms.iter().zip(&loads).map(|(Planned { arch, config, plan }, loads)| Vm {
        arch: *arch,
        name: &config.name,
        vcpus: config.vcpus,
        memory: config.memory,
        loads,
        entry: plan.kernel.entry,
        tree: plan.layout.dtb.start,
        el2: config.techniques.nested != Nested::Off,
        long: match plan.mode {
            Mode::Long { tables } => Some(tables),
            _ => None,
        },
    });
    let mut archive = around(client, &described.collect::<Vec<_>>());
    for (path, _, content) in files.iter().flatten() {
        archive.file(path.trim_start_matches('/'), 0o644, content);
    }
    archive
}

#[cfg(test)]
mod tests {
    use stile_board::map;

    use super::*;

    #[test]
    fn places_are_offsets_in_ram() {
        let vm = Vm {
            arch: Arch::Aarch64,
            name: "guest",
            vcpus: 2,
            memory: 64 << 20,
            loads: &[("/kernel", map::RAM_BASE), ("/tree", map::RAM_BASE + 4096)],
            entry: map::RAM_BASE,
            tree: map::RAM_BASE + 4096,
            el2: false,
            long: None,
        };
        let text = "vcpus 2\nmemory 67108864\nentry 0\ntree 4096\nload /kernel 0\nload /tree 4096\n";
        assert_eq!(vm.description(), text);
        assert_eq!(Vm { el2: true, ..vm }.description(), text.replacen("load", "el2\nload", 1));
        assert_eq!(Vm { long: Some(4096), ..vm }.description(), text.replacen("load", "long 4096\nload", 1));
    }
}
