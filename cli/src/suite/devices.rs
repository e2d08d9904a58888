//! The scenarios with PCI functions that are assigned to VMs.

use anyhow::Result;

use super::disk::Disk;
use super::programs::Programs;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// QEMU's options for a virtio function behind the SMMU.
const VIRTIO: &str = "addr=2,iommu_platform=on,disable-legacy=on,romfile=";

/// All of them.
///
/// # Errors
/// A guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    Ok(vec![assigned_disk(programs)?])
}

/// The arguments that add a device to the machine.
fn device(scenario: Scenario, words: &[&str]) -> Scenario {
    words.iter().fold(scenario, |scenario, word| scenario.with("--qemu-arg", *word))
}

fn with_disk(scenario: Scenario, disk: Disk) -> Scenario {
    let virtio = format!("virtio-blk-pci,drive=disk,{VIRTIO}");
    let scenario = device(scenario, &["-drive", "if=none,id=disk,format=raw,file={disk}", "-device", &virtio]);
    Scenario { disk: Some(disk), ..scenario }
}

/// Debian reads a disk that is assigned to it, writes what it read, and reads that again; a VM beside it computes.
fn assigned_disk(programs: &Programs) -> Result<Scenario> {
    let disk = Disk { half: 16 << 20 };
    let read = |skip| format!("dd if=/dev/vda bs=1M count=16 skip={skip} iflag=direct | sha256sum");
    let copy = "dd if=/dev/vda of=/dev/vda bs=64k count=256 seek=256 iflag=direct oflag=direct";
    let exec = format!("{}; {copy}; sync; {}", read(0), read(16));
    let config = format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"disk\"\nkernel = \"debian\"\nvcpus = 2\nmemory = \"256M\"\nexec = \"{exec}\"\n\
         [[vm.pci]]\nfunction = \"0000:00:02.0\"\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nmemory = \"64M\"\n",
        programs.path("checksum")?
    );
    // The neighbour may end before or after: it must not fail.
    let sum = format!("disk      | {}", disk.sum());
    let expect =
        Expect { output: vec![sum.clone(), sum], notes: vec![NO_DIFFERENCE.into(); 2], absent: vec!["FAIL "], ..Expect::default() };
    let scenario = with_disk(Scenario { config: Some(config), ..Scenario::new("devices/assigned-disk", "--exits") }, disk);
    Ok(Scenario { expect, ..scenario })
}
