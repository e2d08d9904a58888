//! Description of a virtual machine's devices: type, path, and the reason for it.

use stile_blob::Interrupts;
use stile_board::pc;

use crate::config::served::{BLOCK, CONSOLE, FS, VSOCK, device_name};
use crate::config::service;
use crate::config::{Arch, MachineConfig, VmConfig, units};
use crate::disk::network::{Forward, Network};
use crate::disk::sharing;

/// The names and descriptions of the `index`th virtual machine's devices.
pub fn explain(machine: &MachineConfig, index: usize) -> Vec<(&'static str, String)> {
    let vm = &machine.vms[index];
    let named = vm.functions.len().saturating_sub(vm.emulated_functions());
    let disks = vm.disks.iter().zip('a'..).map(|(drive, letter)| {
        let read_only = if drive.read_only { ", read-only" } else { "" };
        let absent = match drive.unknown_option() {
            _ if drive.file.exists() => String::new(),
            Some((_, word)) => format!(", not there; \"{word}\" is not an option"),
            None => ", not there yet".into(),
        };
        let others = match &sharing::others(machine, index, drive)[..] {
            [] => String::new(),
            others => format!(", which {} may read, too", others.join(", ")),
        };
        (
            "disk",
            format!("/dev/vd{letter}: {} ({}{read_only}{absent}{others}), QEMU's virtio-blk at ", drive.file.display(), drive.format()),
        )
    });
    let networks = vm.networks.iter().map(|network| ("network", format!("{}, QEMU's virtio-net at ", describe(machine, network))));
    let folders = vm.folders.iter().map(|folder| {
        let read_only = if folder.read_only { ", read-only" } else { "" };
        let others = match &sharing::others_with_folder(machine, index, folder)[..] {
            [] => String::new(),
            others => format!(", which {} may use, too", others.join(", ")),
        };
        let path = folder.path.display();
        ("folder", format!("/mnt/{}: {path} (tag {}{read_only}{others}), QEMU's virtio-9p at ", folder.tag, folder.tag))
    });
    let devices = std::iter::repeat_n(("PCI function", String::new()), named).chain(disks).chain(networks).chain(folders);
    let in_memory = vm.memory_disks.iter().enumerate().map(|(number, disk)| {
        let size = units::rounded_size(disk.size);
        ("disk", format!("/dev/pmem{number}: {} (raw, {size}), a copy in the VM's memory; changes are lost", disk.file.display()))
    });
    let mut facts = Vec::new();
    for (number, (function, (name, device))) in (1..).zip(vm.functions.iter().zip(devices)) {
        facts.push((name, format!("{device}{function}, assigned: it is this VM's alone. The guest finds it at 0000:00:{number:02x}.0")));
    }
    if !facts.is_empty() {
        let exits = match vm.techniques.interrupts {
            Interrupts::Virtual if machine.arch == Arch::Aarch64 => "each exits, but none if the machine has GICv4",
            Interrupts::Virtual | Interrupts::Direct if machine.arch == Arch::X86_64 => "each exits, as AVIC is not used",
            Interrupts::Virtual | Interrupts::Direct => "each exits",
        };
        let paths = match machine.arch {
            Arch::Aarch64 => "BARs are mapped, DMA goes through the SMMU by the VM's second stage, and messages through the ITS",
            Arch::X86_64 => "BARs are mapped, and DMA and messages go through the IOMMU, by tables of the VM's RAM and of its vectors",
        };
        facts.push(("PCI", format!("{paths}: {exits}")));
    }
    // The last ones have networks of the configuration.
    let without = vm.served.len().saturating_sub(vm.served_networks.len());
    let networks = std::iter::repeat_n(None, without).chain(vm.served_networks.iter().map(Some));
    let (mut disks, mut folders) = (vm.served_disks.iter(), vm.served_folders.iter());
    for (number, (served, network)) in (1..).zip(vm.served.iter().zip(networks)) {
        let (name, by) = (device_name(served.device), &machine.vms[usize::from(served.server)].name);
        let disk = disks.by_ref().take(usize::from(served.device == BLOCK && by == service::NAME)).next();
        let disk = disk.map(|drive| {
            let read_only = if drive.read_only { ", read-only" } else { "" };
            format!(", {} ({}{read_only})", drive.file.display(), drive.format())
        });
        let folder = folders.by_ref().take(usize::from(served.device == FS && by == service::NAME)).next();
        let folder = folder.map(|folder| {
            let read_only = if folder.read_only { ", read-only" } else { "" };
            format!(", /mnt/{}: {} (tag {}{read_only})", folder.tag, folder.path.display(), folder.tag)
        });
        let sockets = vm.cid.filter(|_| served.device == VSOCK).map(|cid| format!(", CID {cid}{}", peers(machine, index)));
        let console = vm.console.as_ref().filter(|_| served.device == CONSOLE).map(|file| format!(", output to {}", file.display()));
        let leads = network
            .map(|network| format!(", {}", describe(machine, network)))
            .or(disk)
            .or(folder)
            .or(sockets)
            .or(console)
            .unwrap_or_default();
        facts.push((
            "served device",
            format!("virtio {name} at {}{leads}, served by {by}, which can access all of this VM's RAM", place(machine.arch, number)),
        ));
    }
    facts.extend(in_memory);
    if vm.serves != 0 {
        let clients = machine.vms.iter().filter(|other| other.served.iter().any(|served| usize::from(served.server) == index));
        let names: Vec<&str> = clients.map(|vm| &vm.name[..]).collect();
        facts.push(("serves", format!("{} of {}, whose RAM is behind its own", units::plural(vm.serves, "device"), names.join(", "))));
    }
    facts
}

/// Destinations of the `index`th virtual machine's sockets.
fn peers(machine: &MachineConfig, index: usize) -> String {
    let others = machine.vms.iter().enumerate().filter(|(other, _)| *other != index);
    let peers: Vec<String> = others.filter_map(|(_, vm)| Some(format!("{} (CID {})", vm.name, vm.cid?))).collect();
    if peers.is_empty() { ", to no other VM".to_owned() } else { format!(", to {}", peers.join(", ")) }
}

/// Destination of a network.
fn describe(machine: &MachineConfig, network: &Network) -> String {
    if let Some(bridge) = &network.bridge {
        let on_it = |vm: &&VmConfig| vm.networks.iter().chain(&vm.served_networks).any(|other| other.bridge.as_ref() == Some(bridge));
        let names: Vec<&str> = machine.vms.iter().filter(on_it).map(|vm| &vm.name[..]).collect();
        return format!("bridge {bridge} of {}, and no other VM", names.join(", "));
    }
    let lead = |Forward { host, guest, address }: &Forward| match address {
        Some(address) => format!("{host} leads to {address}:{guest}"),
        None => format!("{host} leads to {guest}"),
    };
    if network.inward {
        let ports: Vec<String> = network.forwards.iter().map(|forward| forward.host.to_string()).collect();
        return format!("ports {} of this machine, which lead to sockets; the VM reaches nothing by it", ports.join(", "));
    }
    let kept = network.address.map(|address| format!(" as {address}")).unwrap_or_default();
    let ports: Vec<String> = network.forwards.iter().map(lead).collect();
    match &ports[..] {
        [] => format!("through the emulator{kept}"),
        _ => format!("through the emulator{kept}, port {}", ports.join(", ")),
    }
}

/// Place where a client finds its served device `number`, counted from 1.
fn place(arch: Arch, number: usize) -> String {
    match arch {
        Arch::Aarch64 => format!("0001:00:{number:02x}.0"),
        Arch::X86_64 => format!("0000:00:{:02x}.0", pc::SERVED_DEVICES + number - 1),
    }
}
