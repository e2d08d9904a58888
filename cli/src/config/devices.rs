//! Disks, networks and shared folders of virtual machines: devices that the emulated machine gets for them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use stile_board::MAX_FUNCTIONS;
use stile_pci::Address;

use super::Arch;
use super::KernelSource;
use super::Mistake;
use super::Place;
use super::VmConfig;
use super::draft::{DiskDraft, Given, NetworkDraft, VmDraft};
use super::folders;
use crate::disk::drive::Drive;
use crate::disk::network::Network;

/// Machines whose virtual machines have functions, in a message.
pub const MACHINES_WITH_FUNCTIONS: &str = "cpu = \"max\" or \"EPYC\" in [machine] (--cpu max), or arch = \"aarch64\"";

/// PCI devices of a bus. The host bridge is device 0.
const DEVICES: u16 = 32;

impl From<&Drive> for DiskDraft {
    /// A disk of the command line.
    fn from(drive: &Drive) -> Self {
        let place = Place::Flag("--disk");
        let given = |text: &str| Given::new(text.to_owned(), place.clone());
        let format = drive.format.map(given);
        Self {
            file: Some(given(&drive.file.to_string_lossy())),
            read_only: drive.read_only,
            format,
            served: drive.served,
            in_memory: drive.in_memory,
            place: place.clone(),
        }
    }
}

/// The disk, with a path relative to `folder`, or to the current one if it is the command line's.
fn disk(draft: &DiskDraft, folder: &Path, mistakes: &mut Vec<Mistake>) -> Option<Drive> {
    let Some(file) = &draft.file else {
        mistakes.push(Mistake::new(draft.place.clone(), "this disk has no image").expected("file = a path"));
        return None;
    };
    let format = match &draft.format {
        Some(given) => match Drive::format_named(&given.value) {
            Some(format) => Some(format),
            None => {
                let what = format!("unknown format \"{}\"", given.value);
                mistakes.push(Mistake::new(given.place.clone(), what).expected("\"qcow2\" or \"raw\""));
                return None;
            }
        },
        None => None,
    };
    let path = match file.place {
        Place::Flag(_) => Path::new(&file.value).to_owned(),
        _ => folder.join(&file.value),
    };
    Some(Drive { file: path, read_only: draft.read_only, format, served: draft.served, in_memory: false })
}

impl From<&Network> for NetworkDraft {
    /// A network of the command line.
    fn from(network: &Network) -> Self {
        let place = Place::Flag("--net");
        let given = |text: String| Given::new(text, place.clone());
        let forwards = network.forwards.iter().map(|forward| given(forward.to_string())).collect();
        Self { forwards, bridge: network.bridge.clone().map(given), served: network.served, place: place.clone() }
    }
}

/// The network of a draft.
fn network(draft: &NetworkDraft, mistakes: &mut Vec<Mistake>) -> Option<Network> {
    // A comma would separate words of the command line.
    if let Some(given) = draft.bridge.iter().chain(&draft.forwards).find(|given| given.value.contains(',')) {
        let what = format!("\"{}\" has a comma", given.value);
        mistakes.push(Mistake::new(given.place.clone(), what).expected("one port or bridge in each text"));
        return None;
    }
    let words = match &draft.bridge {
        Some(bridge) => vec![format!("bridge={}", bridge.value)],
        None => vec!["user".to_owned()],
    };
    let forwards = draft.forwards.iter().map(|given| format!("forward={}", given.value));
    match Network::parse(&words.into_iter().chain(forwards).collect::<Vec<_>>().join(",")) {
        Ok(network) => Some(Network { served: draft.served, ..network }),
        Err(what) => {
            let place = draft.bridge.iter().chain(&draft.forwards).next().map_or(&draft.place, |given| &given.place);
            mistakes.push(Mistake::new(place.clone(), what));
            None
        }
    }
}

/// Places of the disks, networks and shared folders of a virtual machine; without disks in memory, which are no devices.
pub fn places(draft: &VmDraft) -> impl Iterator<Item = &Place> {
    let disks = draft.disks.iter().filter(|disk| !disk.in_memory).map(|disk| &disk.place);
    let networks = draft.networks.iter().map(|network| &network.place);
    disks.chain(networks).chain(draft.folders.iter().map(|folder| &folder.place))
}

/// Resolves the disks, networks and shared folders of a virtual machine. Paths are relative to `folder`.
/// `is_vmx`: the machine is a PC with VMX, where no functions are assigned.
pub fn resolve(draft: &VmDraft, vm: &mut VmConfig, (arch, is_vmx): (Arch, bool), folder: &Path, mistakes: &mut Vec<Mistake>) {
    let places: Vec<&Place> = places(draft).collect();
    if let (true, Some(place)) = (is_vmx, places.first()) {
        let what = "virtual machines on x86_64 with VMX have no disks (other than in memory), networks and shared folders yet";
        mistakes.push(Mistake::new((*place).clone(), what).expected(MACHINES_WITH_FUNCTIONS));
    }
    if let Some(place) = places.get(MAX_FUNCTIONS) {
        let what = format!("there are {} disks, networks and shared folders", places.len());
        mistakes.push(Mistake::new((*place).clone(), what).expected(format!("at most {MAX_FUNCTIONS}")));
    }
    let devices = draft.disks.iter().filter(|disk| !disk.in_memory);
    vm.disks = devices.filter_map(|draft| disk(draft, folder, mistakes)).collect();
    vm.system_disk = vm.disks.first().filter(|_| vm.kernel == KernelSource::Disk).cloned();
    vm.networks = draft.networks.iter().filter_map(|draft| network(draft, mistakes)).collect();
    vm.folders = folders::resolve(&draft.folders, arch, &vm.kernel, folder, mistakes);
}

/// Checks that each port of this machine leads to one virtual machine only. `drafts` and `vms` are in the same order.
pub fn check_ports(drafts: &[VmDraft], vms: &[VmConfig], mistakes: &mut Vec<Mistake>) {
    let mut leads_to: BTreeMap<u16, &str> = BTreeMap::new();
    for (draft, vm) in drafts.iter().zip(vms) {
        let networks = draft.networks.iter().flat_map(|network| &network.forwards);
        for given in networks.chain(draft.served.iter().flat_map(|served| &served.forwards)) {
            // Others are reported already.
            let Some(port) = given.value.split_once(':').and_then(|(host, _)| host.parse().ok()) else { continue };
            match leads_to.entry(port) {
                Entry::Occupied(other) => {
                    let what = format!("port {port} leads to {} already", other.get());
                    mistakes.push(Mistake::new(given.place.clone(), what).expected("another port"));
                }
                Entry::Vacant(entry) => drop(entry.insert(&vm.name)),
            }
        }
    }
}

/// Assigns an unused PCI function to each of a machine's disks, networks and shared folders. Those of a virtual machine follow the
/// functions that its configuration names.
pub fn assign(vms: &mut [VmConfig], arch: Arch, mistakes: &mut Vec<Mistake>) {
    let named: Vec<u8> = vms.iter().flat_map(|vm| &vm.functions).map(|function| function.device()).collect();
    // A PC's device 1 is the IOMMU, which QEMU places first.
    let first = if arch == Arch::X86_64 { 2 } else { 1 };
    let mut free = (first..DEVICES).filter(|device| !named.iter().any(|other| u16::from(*other) == *device));
    for vm in vms {
        let mut wanted = vm.emulated_functions();
        // Too many are reported already.
        wanted = wanted.min(MAX_FUNCTIONS);
        for _ in 0..wanted {
            match free.next() {
                Some(device) => vm.functions.push(Address::from_routing_id(device << 3)),
                None => {
                    let what = format!("{}: the machine has no room for more disks, networks and shared folders", vm.name);
                    return mistakes.push(Mistake::new(Place::File, what).expected(format!("at most {} in all", DEVICES - first)));
                }
            }
        }
        if vm.functions.len() > MAX_FUNCTIONS && mistakes.is_empty() {
            let what = format!("{} has {} PCI functions, disks, networks and shared folders", vm.name, vm.functions.len());
            mistakes.push(Mistake::new(Place::File, what).expected(format!("at most {MAX_FUNCTIONS}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, KernelSource, MachineConfig};
    use super::*;

    fn read(text: &str) -> Result<MachineConfig, String> {
        MachineConfig::from_text("machine.toml", text, Path::new("/images"), &Flags::default()).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn each_disk_and_network_has_a_function() {
        let text = "[[vm]]\nname = \"a\"\n[[vm.pci]]\nfunction = \"0000:00:02.0\"\n[[vm.disk]]\nfile = \"a.qcow2\"\n[[vm.net]]\nforward = [\"2222:22\"]\n\
                    [[vm]]\nname = \"b\"\nkernel = \"debian\"\n[[vm.disk]]\nfile = \"/b\"\nformat = \"raw\"\nreadonly = true\n[[vm.net]]\nbridge = \"lan0\"\n";
        let config = read(text).unwrap();
        let devices = |vm: usize| config.vms[vm].functions.iter().map(|function| function.device()).collect::<Vec<_>>();
        assert_eq!((devices(0), devices(1)), (vec![2, 1, 3], vec![4, 5]));
        let [a, b] = &config.vms[..] else { panic!("two VMs") };
        assert_eq!((&a.kernel, a.disks[0].file.as_path()), (&KernelSource::Disk, Path::new("/images/a.qcow2")));
        assert_eq!(b.disks, [Drive { file: "/b".into(), read_only: true, format: Some("raw"), served: false, in_memory: false }]);
        assert_eq!((a.networks[0].forwards.len(), b.networks[0].bridge.as_deref()), (1, Some("lan0")));
    }

    #[test]
    fn mistakes_are_reported_with_their_places() {
        let says = |device: &str, what: &str| {
            let said = read(&format!("[[vm]]\nkernel = \"debian\"\n{device}\n")).unwrap_err();
            assert!(said.contains(what), "{said}");
        };
        says("[[vm.disk]]\nreadonly = true", "this disk has no image");
        says("[[vm.disk]]\nfile = \"a\"\nformat = \"vmdk\"", "unknown format \"vmdk\"");
        says("[[vm.disk]]\nfiel = \"a\"", "unknown key \"fiel\" in [[vm.disk]]");
        says("[[vm.net]]\nforward = [\"22\"]", "forward=22");
        says("[[vm.net]]\nbridge = \"lan0\"\nforward = [\"2222:22\"]", "forward");
        says("[[vm.net]]\nforward = [\"2222:22,forward=23:23,served\"]", "has a comma");
        says("[[vm.net]]\nbridge = \"lan0,served\"", "has a comma");
        says("[[vm.net]]\nforward = [\"2222:22\", \"2222:23\"]", "port 2222 leads to vm0 already; expected another port");
        says(
            "[[vm.net]]\nforward = [\"80:80\"]\n[[vm]]\nkernel = \"debian\"\n[[vm.net]]\nforward = [\"80:80\"]\nserved = true",
            "leads to vm0 already",
        );
        says(&"[[vm.net]]\n".repeat(9), "there are 9 disks, networks and shared folders");
        let of_pc = |cpu: &str, rest: &str| format!("[machine]\narch = \"x86_64\"\n{cpu}\n[[vm]]\n{rest}\n");
        let net = "kernel = \"debian\"\n[[vm.net]]";
        assert!(
            read(&of_pc("", net)).unwrap_err().contains("with VMX have no disks (other than in memory), networks and shared folders yet")
        );
        let amd = |rest: &str| read(&of_pc("cpu = \"max\"", rest));
        assert_eq!(amd(net).unwrap().vms[0].functions[0].device(), 2);
        let served = amd(&format!("{net}\nserved = true")).unwrap();
        assert_eq!((served.vms[0].served.len(), served.vms[1].serves, served.vms[1].functions[0].device()), (1, 1, 2));
        let disk = "[[vm.disk]]\nfile = \"a\"";
        let system = &amd(disk).unwrap().vms[0];
        assert_eq!((&system.kernel, system.system_disk.as_ref()), (&KernelSource::Disk, system.disks.first()));
        let said = read(&of_pc("", disk)).unwrap_err();
        assert!(said.contains("with VMX have no disks") && said.contains("--cpu max"), "{said}");
    }
}
