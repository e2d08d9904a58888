//! Disks, networks and shared folders as PCI functions of the emulated machine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::bridge::{self, Port};
use super::drive::Drive;
use super::errors::{DiskErrors, NAME};
use super::folder::Folder;
use super::network::{Forward, INWARD, Network};
use super::sharing;
use crate::config::MachineConfig;
use crate::out;

/// The emulator's arguments for the disks, networks and shared folders of a machine.
#[derive(Debug, Default)]
pub struct Functions {
    /// The arguments.
    pub arguments: Vec<String>,
    /// The disks' files, by number.
    files: Vec<PathBuf>,
    /// Disks, networks and folders so far.
    disks: usize,
    networks: usize,
    folders: usize,
    /// Bridges: the first one is QEMU's hub 1.
    bridges: Vec<String>,
    /// Their DHCP servers' ports, until the emulator has them.
    ports: Vec<Port>,
}

/// Properties of functions that are assigned: their DMA goes through the SMMU, and they have no firmware.
const ASSIGNED: &str = "iommu_platform=on,disable-legacy=on,romfile=";

impl Functions {
    /// Checks the disks and networks of a machine, and adds a function for each of them and of its folders.
    ///
    /// # Errors
    /// An image or a port can't be used; a path is not UTF-8.
    pub fn new(machine: &MachineConfig) -> Result<Self> {
        let mut functions = Self::default();
        sharing::check(machine)?;
        for vm in &machine.vms {
            for drive in &vm.disks {
                drive.check(machine.arch.option())?;
                if drive.is_qcow2_as_raw() {
                    out::note(format_args!(
                        "stile: disk: {} is a qcow2 image: with format=raw, {} gets the file itself as its disk, and can destroy the image",
                        drive.file.display(),
                        vm.name
                    ));
                }
            }
            let named = vm.functions.len().saturating_sub(vm.emulated_functions());
            let mut addresses = vm.functions[named..].iter().map(|address| address.device());
            for (drive, device) in vm.disks.iter().zip(&mut addresses) {
                functions.disk(drive, device)?;
                functions.files.push(drive.file.clone());
            }
            for (network, device) in vm.networks.iter().zip(&mut addresses) {
                network.check()?;
                functions.network(network, device)?;
            }
            for (folder, device) in vm.folders.iter().zip(&mut addresses) {
                functions.folder(folder, device)?;
            }
        }
        Ok(functions)
    }

    /// Makes the connection by which the emulator reports errors of disks, if there are any disks, and adds its arguments. Call it just
    /// before the emulator's start: all children inherit the emulator's end.
    ///
    /// # Errors
    /// As of [`DiskErrors::new`].
    pub fn report_errors(&mut self) -> Result<Option<DiskErrors>> {
        if self.files.is_empty() {
            return Ok(None);
        }
        let errors = DiskErrors::new(std::mem::take(&mut self.files))?;
        self.arguments.extend(errors.arguments());
        Ok(Some(errors))
    }

    fn disk(&mut self, drive: &Drive, device: u8) -> Result<()> {
        let file = value(&drive.file)?;
        let (read_only, format) = (if drive.read_only { "on" } else { "off" }, drive.format());
        let id = format!("{NAME}{}", self.disks);
        self.disks += 1;
        // Writes that the guest flushes are on the disk. With a full host, writes fail instead of suspending the machine.
        let options = "cache=writeback,discard=unmap,werror=report,rerror=report";
        self.backend("-drive", format!("if=none,id={id},file={file},format={format},readonly={read_only},{options}"));
        self.device(device, &format!("virtio-blk-pci,drive={id}"));
        Ok(())
    }

    fn network(&mut self, network: &Network, device: u8) -> Result<()> {
        let id = format!("net{}", self.networks);
        self.networks += 1;
        match &network.bridge {
            None => {
                let forward = |Forward { host, guest, address }: &Forward| {
                    // Without an address, to the first one that is given by DHCP.
                    let address = address.map(|address| address.to_string()).unwrap_or_default();
                    format!(",hostfwd=tcp:127.0.0.1:{host}-{address}:{guest}")
                };
                let inward = if network.inward { format!(",restrict=on,net={INWARD}") } else { String::new() };
                self.backend("-netdev", format!("user,id={id}{inward}{}", network.forwards.iter().map(forward).collect::<String>()));
            }
            Some(bridge) => {
                let hub = self.hub(bridge)?;
                self.backend("-netdev", format!("hubport,id={id},hubid={hub}"));
            }
        }
        self.device(device, &format!("virtio-net-pci,netdev={id}"));
        Ok(())
    }

    fn folder(&mut self, folder: &Folder, device: u8) -> Result<()> {
        let path = value(&folder.path)?;
        let read_only = if folder.read_only { "on" } else { "off" };
        let id = format!("folder{}", self.folders);
        self.folders += 1;
        // Owners, permissions and links are the host's own. A folder may reach over several file systems, whose inodes have equal numbers.
        let options = "security_model=none,multidevs=remap";
        self.backend("-fsdev", format!("local,id={id},path={path},readonly={read_only},{options}"));
        self.device(device, &format!("virtio-9p-pci,fsdev={id},mount_tag={}", folder.tag));
        Ok(())
    }

    /// The number of a bridge's hub. A new one gets a DHCP server, which leads nowhere else.
    fn hub(&mut self, bridge: &str) -> Result<usize> {
        if let Some(index) = self.bridges.iter().position(|other| other == bridge) {
            return Ok(index + 1);
        }
        self.bridges.push(bridge.to_owned());
        let hub = self.bridges.len();
        let port = bridge::serve(hub as u8)?;
        self.backend("-netdev", format!("dgram,id=dhcp{hub},local.type=fd,local.str={}", port.number()));
        self.ports.push(port);
        self.backend("-netdev", format!("hubport,id=dhcp{hub}-port,hubid={hub},netdev=dhcp{hub}"));
        Ok(hub)
    }

    fn backend(&mut self, option: &str, value: String) {
        self.arguments.extend([option.into(), value]);
    }

    fn device(&mut self, number: u8, device: &str) {
        self.backend("-device", format!("{device},addr={number:x},{ASSIGNED}"));
    }
}

/// A path as a value among an emulator's options, which commas separate.
fn value(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path)?;
    Ok(absolute.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?.replace(',', ",,"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_a_function() {
        let mut functions = Functions::default();
        functions.disk(&Drive { file: "a,b".into(), read_only: true, format: Some("raw"), served: false, in_memory: false }, 1).unwrap();
        functions.network(&Network::parse("user,forward=2222:22").unwrap(), 31).unwrap();
        let arguments = &functions.arguments;
        assert!(
            arguments[1].starts_with("if=none,id=disk0,file=/") && arguments[1].contains("/a,,b,format=raw,readonly=on,"),
            "{arguments:?}"
        );
        assert_eq!(arguments[3], "virtio-blk-pci,drive=disk0,addr=1,iommu_platform=on,disable-legacy=on,romfile=");
        assert_eq!(arguments[5], "user,id=net0,hostfwd=tcp:127.0.0.1:2222-:22");
        assert!(arguments[7].starts_with("virtio-net-pci,netdev=net0,addr=1f,"));
    }

    #[test]
    fn folders_are_separate_devices() {
        let mut functions = Functions::default();
        functions.folder(&Folder { path: "/a,\"b' c".into(), read_only: true, tag: "x".into(), served: false }, 3).unwrap();
        functions.folder(&Folder { path: "/".into(), read_only: false, tag: "y".into(), served: false }, 4).unwrap();
        let arguments = &functions.arguments;
        assert_eq!(arguments[1], "local,id=folder0,path=/a,,\"b' c,readonly=on,security_model=none,multidevs=remap");
        assert_eq!(arguments[3], "virtio-9p-pci,fsdev=folder0,mount_tag=x,addr=3,iommu_platform=on,disable-legacy=on,romfile=");
        assert!(arguments[5].starts_with("local,id=folder1,path=/,readonly=off,"));
    }

    #[test]
    fn ports_lead_to_one_of_several_vms() {
        let mut network = Network::parse("user,forward=2222:22,forward=2223:22").unwrap();
        network.forwards[1].address = Some([10, 0, 2, 16].into());
        let mut functions = Functions::default();
        functions.network(&network, 1).unwrap();
        assert_eq!(functions.arguments[1], "user,id=net0,hostfwd=tcp:127.0.0.1:2222-:22,hostfwd=tcp:127.0.0.1:2223-10.0.2.16:22");
    }

    #[test]
    fn a_bridge_is_a_hub() {
        let mut functions = Functions::default();
        for (device, name) in [(1, "a"), (2, "b"), (3, "a")] {
            functions.network(&Network::parse(&format!("bridge={name}")).unwrap(), device).unwrap();
        }
        let netdevs: Vec<_> = functions.arguments.iter().filter(|argument| argument.contains("id=")).map(String::as_str).collect();
        let [first, second] = &functions.ports[..] else { panic!("two ports") };
        let server = |id, port: &Port| format!("dgram,id={id},local.type=fd,local.str={}", port.number());
        assert_eq!(
            netdevs,
            [
                &server("dhcp1", first)[..],
                "hubport,id=dhcp1-port,hubid=1,netdev=dhcp1",
                "hubport,id=net0,hubid=1",
                &server("dhcp2", second),
                "hubport,id=dhcp2-port,hubid=2,netdev=dhcp2",
                "hubport,id=net1,hubid=2",
                "hubport,id=net2,hubid=1",
            ]
        );
    }
}
