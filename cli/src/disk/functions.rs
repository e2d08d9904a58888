//! Disks and networks as PCI functions of the emulated machine.

use std::path::Path;

use anyhow::{Context, Result};

use super::drive::Drive;
use super::network::Network;
use crate::exit;

/// PCI functions of the machine, all on bus 0, for one VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Functions {
    /// Their addresses.
    pub addresses: Vec<String>,
    /// The emulator's arguments that add them.
    pub arguments: Vec<String>,
    /// The formats of the disks' images.
    pub formats: Vec<&'static str>,
}

/// Properties of functions that are assigned: their DMA goes through the SMMU, and they have no firmware.
const ASSIGNED: &str = "iommu_platform=on,disable-legacy=on,romfile=";

impl Functions {
    /// Checks disks and networks, and adds a function for each.
    ///
    /// # Errors
    /// An image or a port can't be used.
    pub fn new(drives: &[Drive], networks: &[Network]) -> Result<Self> {
        let mut functions = Self::default();
        for (index, drive) in drives.iter().enumerate() {
            let format = drive.check()?;
            if drives[..index].iter().any(|other| is_same(&other.file, &drive.file)) {
                return Err(exit::usage(format!("--disk: {} is given twice: use a copy for the second disk", drive.file.display())));
            }
            functions.disk(index, drive, format)?;
            functions.formats.push(format);
        }
        for (index, network) in networks.iter().enumerate() {
            network.check()?;
            functions.network(index, network);
        }
        Ok(functions)
    }

    fn disk(&mut self, index: usize, drive: &Drive, format: &str) -> Result<()> {
        let file = std::path::absolute(&drive.file)?;
        let file = file.to_str().with_context(|| format!("{} is not UTF-8", drive.file.display()))?.replace(',', ",,");
        let read_only = if drive.read_only { "on" } else { "off" };
        // Writes that the guest flushes are on the disk. With a full host, writes fail instead of suspending the machine.
        let options = "cache=writeback,discard=unmap,werror=report,rerror=report";
        self.add(
            ["-drive".into(), format!("if=none,id=disk{index},file={file},format={format},readonly={read_only},{options}")],
            &format!("virtio-blk-pci,drive=disk{index}"),
        );
        Ok(())
    }

    fn network(&mut self, index: usize, network: &Network) {
        let forwards = network.forwards.iter().map(|forward| format!(",hostfwd=tcp:127.0.0.1:{}-:{}", forward.host, forward.guest));
        let netdev = format!("user,id=net{index}{}", forwards.collect::<String>());
        self.add(["-netdev".into(), netdev], &format!("virtio-net-pci,netdev=net{index}"));
    }

    fn add(&mut self, backend: [String; 2], device: &str) {
        // The host bridge is device 0.
        let number = self.addresses.len() + 1;
        self.addresses.push(format!("0000:00:{number:02x}.0"));
        self.arguments.extend(backend);
        self.arguments.extend(["-device".into(), format!("{device},addr={number:x},{ASSIGNED}")]);
    }
}

/// Whether two names are of the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().ok().is_some_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_a_function() {
        let mut functions = Functions::default();
        functions.disk(0, &Drive { file: "a,b".into(), read_only: true, format: None }, "raw").unwrap();
        functions.network(0, &Network::parse("user,forward=2222:22").unwrap());
        assert_eq!(functions.addresses, ["0000:00:01.0", "0000:00:02.0"]);
        assert!(
            functions.arguments[1].starts_with("if=none,id=disk0,file=/")
                && functions.arguments[1].contains("/a,,b,format=raw,readonly=on,"),
            "{:?}",
            functions.arguments
        );
        assert_eq!(functions.arguments[3], "virtio-blk-pci,drive=disk0,addr=1,iommu_platform=on,disable-legacy=on,romfile=");
        assert_eq!(functions.arguments[5], "user,id=net0,hostfwd=tcp:127.0.0.1:2222-:22");
    }

    #[test]
    fn names_of_the_same_file_are_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(is_same(&file, &link) && is_same(&file, &dir.path().join("./a")));
        assert!(!is_same(&file, dir.path()));
    }
}
