//! Description of a virtual machine's devices: type, path, and the reason for it.

use crate::config::served::device_name;
use crate::config::{MachineConfig, units};
use crate::disk::network::Network;
use crate::disk::sharing;

/// The names and descriptions of the `index`th virtual machine's devices.
pub fn explain(machine: &MachineConfig, index: usize) -> Vec<(&'static str, String)> {
    let vm = &machine.vms[index];
    let named = vm.functions.len().saturating_sub(vm.disks.len() + vm.networks.len());
    let disks = vm.disks.iter().zip('a'..).map(|(drive, letter)| {
        let read_only = if drive.read_only { ", read-only" } else { "" };
        let absent = if drive.file.exists() { "" } else { ", not there yet" };
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
    let devices = std::iter::repeat_n(("PCI function", String::new()), named).chain(disks).chain(networks);
    let mut facts = Vec::new();
    for (number, (function, (name, device))) in (1..).zip(vm.functions.iter().zip(devices)) {
        facts.push((name, format!("{device}{function}, assigned: it is this VM's alone. The guest finds it at 0000:00:{number:02x}.0")));
    }
    if !facts.is_empty() {
        facts.push(("PCI", "BARs are mapped, DMA goes through the SMMU by the VM's second stage, and messages through the ITS".to_owned()));
    }
    for (number, served) in vm.served.iter().enumerate() {
        let (name, by) = (device_name(served.device), &machine.vms[usize::from(served.server)].name);
        let at = stile_board::map::VIRTIO_BASE + number as u64 * stile_board::map::VIRTIO_STRIDE;
        facts.push(("served device", format!("virtio {name} at {at:#x}, served by {by}, which can access all of this VM's RAM")));
    }
    if vm.serves != 0 {
        let clients = machine.vms.iter().filter(|other| other.served.iter().any(|served| usize::from(served.server) == index));
        let names: Vec<&str> = clients.map(|vm| &vm.name[..]).collect();
        facts.push((
            "serves",
            format!("{} of {}, whose RAM is behind its own", units::plural(vm.serves.into(), "device"), names.join(", ")),
        ));
    }
    facts
}

/// Destination of a network.
fn describe(machine: &MachineConfig, network: &Network) -> String {
    if let Some(bridge) = &network.bridge {
        let on_it = |vm: &&crate::config::VmConfig| vm.networks.iter().any(|other| other.bridge.as_ref() == Some(bridge));
        let names: Vec<&str> = machine.vms.iter().filter(on_it).map(|vm| &vm.name[..]).collect();
        return format!("bridge {bridge} of {}, and no other VM", names.join(", "));
    }
    let ports: Vec<String> = network.forwards.iter().map(|forward| format!("{} leads to {}", forward.host, forward.guest)).collect();
    match &ports[..] {
        [] => "through the emulator".to_owned(),
        _ => format!("through the emulator, port {}", ports.join(", ")),
    }
}
