//! The service VM: a virtual machine that serves disks, networks, folders, random bytes, sockets and consoles, added to those of the
//! configuration.

use std::net::Ipv4Addr;
use std::path::Path;

use stile_blob::{Nested, Served};
use stile_board::{MAX_SERVED, MAX_VMS};
use stile_pci::Address;

use super::draft::{Given, VmDraft};
use super::served::{BLOCK, CONSOLE, FS, NET, VSOCK, added};
use super::{Arch, DebianKernel, Mistake, Place, VmConfig};
use super::{cids, consoles};
use crate::disk::drive::Drive;
use crate::disk::folder::Folder;
use crate::disk::network::{Forward, Network};

/// Its name.
pub const NAME: &str = "service";

/// Its RAM: the kernel, a small system, and a cache of the disks' content.
const MEMORY: &str = "256M";

/// Has the kernel write changes of folders to the host's files within two seconds.
const WRITE_SOON: &str = "for time in expire writeback; do echo 100 > /proc/sys/vm/dirty_${time}_centisecs; done; ";

/// The first address that QEMU's user network gives; the next ones follow.
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// Its address on the network of forwarded ports, [`INWARD`].
const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 15);

/// The command that gives the card at a PCI function that address. No client reaches it: on the bridges the kernel answers no ARP request
/// for the address, and drops packets to it.
fn own_card(function: &str) -> String {
    format!(
        "for file in rp_filter arp_ignore; do echo 1 > /proc/sys/net/ipv4/conf/all/$file; done; echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; \
         card=$(ls /sys/bus/pci/devices/{function}/virtio*/net); ip addr add {OWN_ADDRESS}/24 dev $card; ip link set $card up; "
    )
}

/// A virtual machine that serves devices.
#[derive(Debug)]
pub struct Service {
    /// Its configuration without devices.
    pub draft: VmDraft,
    /// The disks that it serves, of all clients.
    pub disks: Vec<Drive>,
    /// Its connections to the networks that it serves.
    pub networks: Vec<Network>,
    /// The folders that it serves.
    pub folders: Vec<Folder>,
    /// Number of devices that it serves.
    pub serves: u8,
}

/// A device that is served, in the order of clients and of each one's devices.
enum Device {
    /// The next one of [`Devices::disks`].
    Disk { read_only: bool },
    /// A folder, by its tag for the client: that with this number of [`Devices::folders`].
    Folder { folder: usize, tag: String, read_only: bool },
    /// The output of a console, to a file of this name in a folder.
    Console { folder: usize, file: String },
    /// Random bytes.
    Entropy,
    /// Sockets of the client with this address.
    Sockets { cid: u32 },
    /// A card on a network.
    Card { network: usize },
}

#[derive(Default)]
struct Devices {
    all: Vec<Device>,
    disks: Vec<Drive>,
    folders: Vec<Folder>,
    networks: Vec<Network>,
    /// Ports of this machine that lead to sockets: the port, the client's address, and its port.
    forwards: Vec<(u16, u32, u32)>,
}

impl Devices {
    /// The network by which ports of this machine lead to sockets, if any do.
    fn inward(&self) -> Option<Network> {
        // Port numbers of this machine are unique, so the virtual machine's own are the same.
        let forward = |&(host, ..): &(u16, u32, u32)| Forward { host, guest: host, address: Some(OWN_ADDRESS) };
        let forwards: Vec<Forward> = self.forwards.iter().map(forward).collect();
        (!forwards.is_empty()).then(|| Network { forwards, inward: true, ..Network::default() })
    }

    fn add_disk(&mut self, drive: Drive) {
        self.all.push(Device::Disk { read_only: drive.read_only });
        self.disks.push(drive);
    }

    /// Adds a folder, which has a tag of its own in the service VM: those of two clients may be equal.
    fn add_folder(&mut self, folder: &Folder) {
        self.all.push(Device::Folder { folder: self.folders.len(), tag: folder.tag.clone(), read_only: folder.read_only });
        self.folders.push(Folder { tag: format!("folder{}", self.folders.len()), served: false, ..folder.clone() });
    }

    /// Adds a console whose output goes to a file. Those in one folder share it.
    fn add_console(&mut self, folder: &Path, file: String) {
        let same = |device: &Device| match device {
            Device::Console { folder: index, .. } if self.folders[*index].path == folder => Some(*index),
            _ => None,
        };
        let index = self.all.iter().find_map(same).unwrap_or_else(|| {
            let tag = format!("folder{}", self.folders.len());
            self.folders.push(Folder { path: folder.to_owned(), read_only: false, tag, served: false });
            self.folders.len() - 1
        });
        self.all.push(Device::Console { folder: index, file });
    }

    /// Adds a card, which is on the same network as others of the same bridge, or of none. Returns the network as the client sees it.
    fn add_card(&mut self, mut network: Network) -> Network {
        let same = |other: &Network| other.bridge == network.bridge;
        let index = self.networks.iter().position(same).unwrap_or_else(|| {
            self.networks.push(Network { bridge: network.bridge.clone(), ..Network::default() });
            self.networks.len() - 1
        });
        network.address = network.bridge.is_none().then(|| address(self.cards(index).count()));
        network.forwards.iter_mut().for_each(|forward| forward.address = network.address);
        self.networks[index].forwards.extend(&network.forwards);
        self.all.push(Device::Card { network: index });
        network
    }

    /// Numbers of the devices that are cards on a network.
    fn cards(&self, network: usize) -> impl Iterator<Item = usize> {
        let is_card = move |device: &Device| matches!(device, Device::Card { network: other } if *other == network);
        self.all.iter().enumerate().filter(move |(_, device)| is_card(device)).map(|(number, _)| number)
    }

    /// The command that serves the devices. Disks and networks are this virtual machine's PCI functions from device 1 on. Each is found by
    /// its address: with another one's, a client would get another client's data.
    fn command(&self) -> String {
        let mut functions = (1..).map(|device| Address::from_routing_id(device << 3).to_string());
        let mut disks = functions.by_ref().take(self.disks.len()).collect::<Vec<_>>().into_iter();
        // In this order: the other one takes a function too many.
        let uplinks = self.networks.iter().zip(functions.by_ref()).enumerate().map(|(index, (network, function))| {
            let kept = |(place, number): (usize, usize)| format!(" {} {}", mac(number), address(place));
            let kept: String = match network.bridge {
                None => self.cards(index).enumerate().map(kept).collect(),
                Some(_) => String::new(),
            };
            format!("stile-uplink net{index} {function}{kept}; ")
        });
        let uplinks: String = uplinks.collect();
        let devices = self.all.iter().enumerate().map(|(number, device)| match device {
            Device::Folder { folder, tag, read_only } => {
                let option = if *read_only { ",readonly" } else { "" };
                format!(" fs=/mnt/{},tag={tag}{option}", self.folders[*folder].tag)
            }
            Device::Entropy => " rng".to_owned(),
            Device::Console { folder, file } => format!(" console=/mnt/{}/{file}", self.folders[*folder].tag),
            Device::Sockets { cid } => format!(" vsock={cid}"),
            Device::Disk { read_only } => {
                let option = if *read_only { ",readonly" } else { "" };
                let function = disks.next().unwrap_or_default();
                format!(" block=/dev/$(ls /sys/bus/pci/devices/{function}/virtio*/block){option}")
            }
            Device::Card { network } => {
                let place = self.cards(*network).position(|card| card == number).filter(|_| self.networks[*network].bridge.is_none());
                let ip = place.map(|place| format!(",ip={}", address(place))).unwrap_or_default();
                format!(" net=net{network},mac={}{ip}", mac(number))
            }
        });
        let cache = if self.folders.is_empty() { "" } else { WRITE_SOON };
        let own = match (self.forwards.is_empty(), functions.nth(0)) {
            (false, Some(function)) => own_card(&function),
            _ => String::new(),
        };
        let ports: Vec<String> = self.forwards.iter().map(|(host, cid, port)| format!("{host}:{cid}:{port}")).collect();
        let forward = if ports.is_empty() { String::new() } else { format!(" forward={}", ports.join("+")) };
        format!("{cache}{uplinks}{own}{}", served_again(&(devices.collect::<String>() + &forward)))
    }
}

/// The command that serves devices by these arguments, each with a space before it. A supervisor that a signal has ended, such as the
/// kernel's for lack of memory, is started again: clients wait meanwhile. The status is that of the supervisor that ends by itself.
pub(super) fn served_again(arguments: &str) -> String {
    format!("while stile-devices{arguments}; status=$?; [ $status -gt 128 ]; do sleep 1; done; exit $status")
}

/// Adds a console whose output goes to a file.
fn add_console(devices: &mut Devices, file: &Path) {
    if let (Some(folder), Some(name)) = (file.parent(), file.file_name()) {
        devices.add_console(folder, name.to_string_lossy().into_owned());
    }
}

/// The forwarded ports of a virtual machine's sockets: those of this machine, and its own.
fn forwards(draft: &VmDraft, mistakes: &mut Vec<Mistake>) -> Vec<(u16, u32)> {
    let sockets = draft.served.iter().filter(|served| added(served) == Some(VSOCK));
    let read = |given: &Given<String>| {
        let ports = forward(&given.value);
        if ports.is_none() {
            let expected = "PORT:VM-PORT, such as 2222:22: a port of this machine, and one of the VM's sockets";
            mistakes.push(Mistake::new(given.place.clone(), format!("\"{}\" is not understood", given.value)).expected(expected));
        }
        ports
    };
    sockets.flat_map(|served| &served.forwards).filter_map(read).collect()
}

/// Reads a forwarded port of sockets: that of this machine, and that of the virtual machine.
fn forward(text: &str) -> Option<(u16, u32)> {
    let (host, port) = text.split_once(':')?;
    let host = host.parse().ok().filter(|port| *port != 0)?;
    Some((host, port.parse().ok().filter(|port| *port != u32::MAX)?))
}

/// Address of the `number`th device that is served.
fn mac(number: usize) -> String {
    format!("52:54:00:73:76:{number:02x}")
}

/// Address of the `place`th client of the user network.
fn address(place: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_ADDRESS.to_bits() + place as u32)
}

/// Takes the served disks, networks, folders, random bytes, sockets and consoles of all virtual machines, whose `drafts` are in the same
/// order. Returns the next virtual machine, which serves them; `None` if there are none.
pub fn take(drafts: &[VmDraft], arch: Arch, vms: &mut [VmConfig], base: &Path, mistakes: &mut Vec<Mistake>) -> Option<Service> {
    let before = mistakes.len();
    let server = vms.len() as u8;
    let mut devices = Devices::default();
    cids::assign(drafts, vms, mistakes);
    consoles::assign(drafts, vms, base, mistakes);
    for (draft, vm) in drafts.iter().zip(vms.iter_mut()) {
        let disks = draft.disks.iter().filter(|disk| disk.served).map(|disk| &disk.place);
        let networks = draft.networks.iter().filter(|network| network.served).map(|network| &network.place);
        let folders = draft.folders.iter().filter(|folder| folder.served).map(|folder| &folder.place);
        vm.forwards = forwards(draft, mistakes);
        let others = draft.served.iter().filter(|served| added(served).is_some());
        let added: Vec<u32> = others.clone().filter_map(added).collect();
        let Some(first) = disks.chain(networks).chain(folders).chain(others.map(|served| &served.place)).next() else { continue };
        let mut refuse = |what: String, expected: String| mistakes.push(Mistake::new(first.clone(), what).expected(expected));
        if vm.techniques.nested != Nested::Off || draft.inside {
            let what = "devices can't be served to a virtual machine with an EL2 of its own, or inside of one".to_owned();
            refuse(what, "nested = false".to_owned());
        }
        if vm.serves != 0 {
            refuse(format!("\"{}\" serves others, and can't be served itself", vm.name), "a device without served = true".to_owned());
        }
        (vm.served_disks, vm.disks) = std::mem::take(&mut vm.disks).into_iter().partition(|drive| drive.served);
        vm.served.extend(vm.served_disks.iter().map(|_| Served { device: BLOCK, server }));
        vm.served_disks.iter().for_each(|drive| devices.add_disk(drive.clone()));
        (vm.served_folders, vm.folders) = std::mem::take(&mut vm.folders).into_iter().partition(|folder| folder.served);
        vm.served.extend(vm.served_folders.iter().map(|_| Served { device: FS, server }));
        vm.served_folders.iter().for_each(|folder| devices.add_folder(folder));
        vm.served.extend(added.iter().map(|&device| Served { device, server }));
        let cid = vm.cid.unwrap_or_default();
        for device in added {
            match (device, &vm.console) {
                (VSOCK, _) => {
                    devices.forwards.extend(vm.forwards.iter().map(|&(host, port)| (host, cid, port)));
                    devices.all.push(Device::Sockets { cid });
                }
                (CONSOLE, Some(file)) => add_console(&mut devices, file),
                _ => devices.all.push(Device::Entropy),
            }
        }
        let (served, own): (Vec<Network>, _) = std::mem::take(&mut vm.networks).into_iter().partition(|network| network.served);
        vm.networks = own;
        vm.served.extend(served.iter().map(|_| Served { device: NET, server }));
        vm.served_networks = served.into_iter().map(|network| devices.add_card(network)).collect();
        if vm.served.len() > MAX_SERVED {
            refuse(format!("\"{}\" has {} served devices", vm.name, vm.served.len()), format!("at most {MAX_SERVED}"));
        }
        if devices.all.len() > MAX_SERVED {
            let what = format!("there are {} served devices up to this virtual machine's", devices.all.len());
            refuse(what, format!("at most {MAX_SERVED}"));
        }
    }
    if devices.all.is_empty() || mistakes.len() != before {
        return None;
    }
    if vms.iter().any(|vm| vm.name == NAME) {
        let what = format!("a virtual machine is called \"{NAME}\", as the one that serves devices");
        mistakes.push(Mistake::new(Place::File, what).expected("another name"));
    }
    if vms.len() == MAX_VMS {
        let what = format!("there are {MAX_VMS} virtual machines, and one that serves devices");
        mistakes.push(Mistake::new(Place::File, what).expected(format!("at most {MAX_VMS} in all")));
    }
    let given = |text: &str| Some(Given::new(text.to_owned(), Place::Nowhere));
    let draft = VmDraft {
        name: given(NAME),
        kernel: given(DebianKernel::server(arch, !devices.folders.is_empty()).word()),
        memory: given(MEMORY),
        exec: given(&devices.command()),
        ..VmDraft::new(Place::Nowhere)
    };
    let serves = devices.all.len() as u8;
    devices.networks.extend(devices.inward());
    Some(Service { draft, disks: devices.disks, networks: devices.networks, folders: devices.folders, serves })
}

#[cfg(test)]
mod tests {
    use super::super::served::RNG;
    use super::super::{Flags, KernelSource, MachineConfig};
    use super::*;

    fn read(text: &str) -> Result<MachineConfig, String> {
        MachineConfig::from_text("machine.toml", text, Path::new("/"), &Flags::default()).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn a_vm_that_serves_disks_is_added() {
        let text = "[[vm]]\nname = \"a\"\nkernel = \"debian\"\n[[vm.disk]]\nfile = \"one\"\nserved = true\n[[vm.disk]]\nfile = \"own\"\n\
                    [[vm]]\nname = \"b\"\nkernel = \"debian\"\n[[vm.disk]]\nfile = \"two\"\nreadonly = true\nserved = true\n";
        let config = read(text).unwrap();
        let [a, b, server] = &config.vms[..] else { panic!("three VMs") };
        let block = Served { device: 2, server: 2 };
        assert_eq!((&a.served[..], &b.served[..]), (&[block][..], &[block][..]));
        assert_eq!((a.disks.len(), a.functions.len(), b.functions.len()), (1, 1, 0));
        assert_eq!((&server.name[..], server.serves, server.functions.len()), ("service", 2, 2));
        assert_eq!(server.disks.iter().map(|drive| drive.file.as_path()).collect::<Vec<_>>(), [Path::new("/one"), Path::new("/two")]);
        assert_eq!(
            server.exec.as_deref(),
            Some(
                "while stile-devices block=/dev/$(ls /sys/bus/pci/devices/0000:00:01.0/virtio*/block) \
                 block=/dev/$(ls /sys/bus/pci/devices/0000:00:02.0/virtio*/block),readonly; \
                 status=$?; [ $status -gt 128 ]; do sleep 1; done; exit $status"
            )
        );
    }

    #[test]
    fn a_vm_starts_the_system_on_a_served_disk() {
        let disk = |file: &str, served| format!("[[vm.disk]]\nfile = \"{file}\"\nserved = {served}\n");
        let config = read(&["[[vm]]\n".into(), disk("one", true), disk("own", false)].concat()).unwrap();
        let vm = &config.vms[0];
        assert_eq!((&vm.kernel, vm.disks.len(), vm.served.len()), (&KernelSource::Disk, 1, 1));
        assert_eq!(vm.system_disk.as_ref().map(|drive| drive.file.as_path()), Some(Path::new("/one")));
    }

    #[test]
    fn a_vm_that_serves_networks_is_added() {
        let served = |name: &str, net: &str| format!("[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\n[[vm.net]]\nserved = true\n{net}\n");
        let disk = "[[vm.disk]]\nfile = \"one\"\nserved = true\n";
        let lan = "[[vm.net]]\nbridge = \"lan\"\nserved = true\n";
        let text = [served("a", ""), served("b", "forward = [\"2222:22\"]"), disk.into(), lan.into(), served("c", "")].concat();
        let config = read(&text).unwrap();
        let [a, b, c, server] = &config.vms[..] else { panic!("four VMs") };
        let devices = |vm: &VmConfig| vm.served.iter().map(|served| served.device).collect::<Vec<_>>();
        assert_eq!((devices(a), devices(b), devices(c)), (vec![NET], vec![BLOCK, NET, NET], vec![NET]));
        assert!(a.networks.is_empty() && a.functions.is_empty() && a.seconds_to_address() == Some(300));
        assert_eq!(a.served_networks[0].address, Some(FIRST_ADDRESS));
        assert_eq!(b.served_networks[1].address, None, "of a bridge");
        let forwards = vec![Forward { host: 2222, guest: 22, address: Some(Ipv4Addr::new(10, 0, 2, 16)) }];
        let uplinks = [Network { forwards, ..Network::default() }, Network { bridge: Some("lan".into()), ..Network::default() }];
        assert_eq!((server.serves, server.functions.len(), &server.networks[..]), (5, 3, &uplinks[..]));
        assert_eq!(
            server.exec.as_deref(),
            Some(
                "stile-uplink net0 0000:00:02.0 52:54:00:73:76:00 10.0.2.15 52:54:00:73:76:02 10.0.2.16 52:54:00:73:76:04 10.0.2.17; \
                 stile-uplink net1 0000:00:03.0; \
                 while stile-devices net=net0,mac=52:54:00:73:76:00,ip=10.0.2.15 \
                 block=/dev/$(ls /sys/bus/pci/devices/0000:00:01.0/virtio*/block) net=net0,mac=52:54:00:73:76:02,ip=10.0.2.16 \
                 net=net1,mac=52:54:00:73:76:03 net=net0,mac=52:54:00:73:76:04,ip=10.0.2.17; \
                 status=$?; [ $status -gt 128 ]; do sleep 1; done; exit $status"
            )
        );
    }

    #[test]
    fn a_vm_that_serves_folders_random_bytes_and_sockets_is_added() {
        let folder = std::env::temp_dir();
        let share = |more: &str| format!("[[vm.share]]\npath = {folder:?}\ntag = \"t\"\nserved = true\n{more}");
        let text = [
            "[[vm]]\nname = \"a\"\nkernel = \"debian:6.1\"\n",
            &share(""),
            "[[vm.net]]\nserved = true\n[[vm.served]]\ndevice = \"rng\"\n[[vm.served]]\ndevice = \"vsock\"\n",
            "[[vm]]\nname = \"b\"\nkernel = \"debian:6.1\"\n",
            &share("readonly = true\n"),
        ]
        .concat();
        let config = read(&text).unwrap();
        let [a, b, server] = &config.vms[..] else { panic!("three VMs") };
        let devices = |vm: &VmConfig| vm.served.iter().map(|served| served.device).collect::<Vec<_>>();
        assert_eq!((devices(a), devices(b)), (vec![FS, RNG, VSOCK, NET], vec![FS]));
        assert!(a.folders.is_empty() && a.functions.is_empty() && a.all_folders().count() == 1);
        assert_eq!(
            server.folders.iter().map(|folder| (&folder.tag[..], folder.read_only)).collect::<Vec<_>>(),
            [("folder0", false), ("folder1", true)]
        );
        assert!(server.exec.as_ref().unwrap().ends_with(&served_again(
            " fs=/mnt/folder0,tag=t rng vsock=3 net=net0,mac=52:54:00:73:76:03,ip=10.0.2.15 fs=/mnt/folder1,tag=t,readonly"
        )));
    }

    #[test]
    fn ports_of_this_machine_lead_to_sockets() {
        let sockets = |name: &str, forward: &str| {
            format!("[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\n[[vm.served]]\ndevice = \"vsock\"\nforward = [{forward}]\n")
        };
        let net = "[[vm.net]]\nserved = true\n";
        let config = read(&[sockets("a", "\"2222:22\", \"2223:4294967294\""), net.into(), sockets("b", "\"80:80\"")].concat()).unwrap();
        let server = &config.vms[2];
        let exec = server.exec.as_deref().unwrap();
        let card = own_card("0000:00:02.0");
        assert!(exec.contains(&format!("; {card}while stile-devices vsock=3 net=")), "{exec}");
        assert!(exec.contains(" vsock=4 forward=2222:3:22+2223:3:4294967294+80:4:80; status"), "{exec}");
        assert_eq!((server.serves, server.functions.len()), (3, 2));
        let forwards = [2222, 2223, 80].map(|port| Forward { host: port, guest: port, address: Some(OWN_ADDRESS) }).to_vec();
        assert_eq!(server.networks[1], Network { forwards, inward: true, ..Network::default() });
        let alone = read(&sockets("a", "\"2222:22\"")).unwrap();
        let card = own_card("0000:00:01.0");
        assert_eq!(alone.vms[1].exec, Some(format!("{card}{}", served_again(" vsock=3 forward=2222:3:22"))));
        let says = |text: &str, what: &str| {
            let said = read(text).unwrap_err();
            assert!(said.contains(what), "{said}");
        };
        for wrong in ["22", "0:22", "65536:22", "22:4294967295", "1:2:3", ":", "-1:2"] {
            says(&sockets("a", &format!("\"{wrong}\"")), "is not understood");
        }
        says(&[sockets("a", "\"2222:22\""), sockets("b", "\"2222:22\"")].concat(), "port 2222 leads to a already");
        says(&sockets("a", "\"2222:22\"").replace("vsock", "rng"), "only sockets have forwarded ports here");
        let by = "[[vm]]\nname = \"s\"\nkernel = \"debian\"\nexec = \"stile-devices vsock=3\"\n";
        says(&[sockets("a", "\"2222:22\""), "by = \"s\"\n".into(), by.into()].concat(), "have forwarded ports here");
    }

    #[test]
    fn mistakes_are_reported() {
        let disk = "[[vm.disk]]\nfile = \"one\"\nserved = true\n";
        let net = "[[vm.net]]\nserved = true\n";
        let says = |text: &str, what: &str| {
            let said = read(text).unwrap_err();
            assert!(said.contains(what), "{said}");
        };
        for device in [disk, net] {
            says(&format!("[[vm]]\nkernel = \"debian\"\nnested = true\n{device}"), "can't be served to a virtual machine with an EL2");
            says(&format!("[[vm]]\nname = \"service\"\nkernel = \"debian\"\n{device}"), "is called \"service\"");
            says(&format!("[[vm]]\nkernel = \"debian\"\n{}", device.repeat(9)), "9 disks, networks and shared folders");
        }
        says(
            &format!("[[vm]]\nkernel = \"debian\"\n{}[[vm]]\nkernel = \"debian\"\n{}", disk.repeat(5), net.repeat(5)),
            "10 served devices",
        );
        let other = format!("[machine]\narch = \"x86_64\"\n[[vm]]\nkernel = \"debian\"\n{disk}");
        says(&other, "with VMX have no disks (other than in memory), networks and shared folders yet");
    }
}
