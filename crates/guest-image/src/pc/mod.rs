//! Kernels for x86-64 guests, and their boot information.

mod acpi;
mod bios;
mod linux;
mod memory;
mod mp;
mod multiboot;
mod parts;
mod pvh;

use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use stile_blob::Topology;

use super::elf;
use super::elf_file;
use super::file_type::{self, FileType};
use super::kernel::{Unpacking, firmware_volume};
use super::layout::Layout;
use super::plan::{Error, Guest, GuestDomain, Plan};
use super::{Compression, KernelError};

pub use linux::{command_line, initrd, is_linux};
use memory::Size;
pub use multiboot::MULTIBOOT_MAGIC;
use parts::{BIOS_DATA, Domain, Parts, meets};

/// Plans the memory layout of a virtual machine with the kernel in `file`.
///
/// # Errors
/// The kernel can't be booted.
pub fn plan<'a>(guest: &Guest<'a>, file: &'a [u8], unpacking: &Unpacking) -> Result<Plan<'a>, Error> {
    parts(guest, file, unpacking).and_then(|parts| complete(guest, parts)).map_err(Error::Kernel)
}

/// Plans the memory layout of a virtual machine with a Linux kernel that was loaded before: `info` has its boot parameters, `contents` what was
/// loaded. `None` if it is not Linux.
///
/// # Errors
/// The kernel can't be booted, such as with less RAM.
pub fn plan_loaded<'a>(guest: &Guest<'a>, info: &[u8], contents: &'a [u8]) -> Result<Option<Plan<'a>>, Error> {
    let disks = guest.disk_sizes();
    let size = Size { ram: guest.memory, disks: &disks };
    let parts = linux::loaded(info, contents, size, guest.bootargs, guest.initrd()).map_err(Error::Kernel)?;
    parts.map(|parts| complete(guest, parts).map_err(Error::Kernel)).transpose()
}

/// Adds the tables and the BIOS.
fn complete<'a>(guest: &Guest<'a>, parts: Parts<'a>) -> Result<Plan<'a>, KernelError> {
    let disks = guest.disk_sizes();
    let size = Size { ram: guest.memory, disks: &disks };
    let layout = Layout { dtb: parts.info_at..parts.info_at + parts.info.len() as u64, initrd: parts.initrd };
    let topology = guest.topology.unwrap_or(Topology::flat(guest.vcpus));
    // Linux inserts persistent memory into its map of resources when it has a PCI bus (arch/x86/pci/i386.c, pcibios_resource_survey): one
    // without functions will do.
    let has_bus = guest.pci || guest.served != 0 || !guest.disks.is_empty();
    let tables = acpi::tables(topology, parts.acpi, has_bus, guest.serves);
    assert!(acpi::TABLES + tables.len() as u64 <= bios::RESET_AT, "the ACPI tables reach into the code at the reset vector");
    let mut more: Vec<(u64, Cow<'a, [u8]>)> = parts.more;
    more.extend([(acpi::TABLES, tables.into()), (bios::RESET_AT, (&bios::RESET).into())]);
    let uses_vectors = parts.kernel.segments.iter().any(|segment| meets(&segment.memory(), &(0..BIOS_DATA)));
    if parts.acpi == acpi::Kind::Whole {
        let mut tables = mp::tables(topology);
        let room = (bios::CODE_AT - mp::TABLES) as usize;
        assert!(tables.len() <= room, "the tables of the MultiProcessor Specification reach into the BIOS");
        tables.resize(room, 0);
        more.push((mp::TABLES, [tables, bios::code(size)].concat().into()));
    }
    if parts.acpi == acpi::Kind::Whole && !uses_vectors {
        more.push((0, [bios::vectors(), bios::data_area()].concat().into()));
    } else {
        more.push((BIOS_DATA, bios::data_area().into()));
    }
    Ok(Plan { kernel: parts.kernel, dtb: parts.info, layout, mode: parts.mode, ram_base: 0, more, disks: guest.disks_at(size.disks_at()) })
}

fn parts<'a>(guest: &Guest<'a>, file: &'a [u8], unpacking: &Unpacking) -> Result<Parts<'a>, KernelError> {
    if file.is_empty() {
        return Err(KernelError::Empty);
    }
    let (kernel, compression) = unpack(file, unpacking)?;
    let mut parts = unpacked_parts(guest, &kernel)?;
    parts.kernel.compression = compression;
    Ok(parts)
}

/// Unpacks a file that is compressed as a whole, such as Debian's Xen, as boot loaders do. Returns it with its compression; a file that is
/// not compressed, as it is.
///
/// # Errors
/// The file is corrupt, too large, or compressed in an unknown way.
pub fn unpack<'a>(file: &'a [u8], unpacking: &Unpacking) -> Result<(Cow<'a, [u8]>, Option<Compression>), KernelError> {
    let compression = Compression::of(file).map_err(|name| KernelError::UnknownCompression(name.to_owned()))?;
    let unpacked = match compression {
        Some(compression) => unpacking.unpack(compression, file)?.into(),
        None => file.into(),
    };
    Ok((unpacked, compression))
}

fn unpacked_parts<'a>(guest: &Guest<'a>, kernel: &Cow<'a, [u8]>) -> Result<Parts<'a>, KernelError> {
    let (bootargs, initrd) = (guest.bootargs, guest.initrd());
    let disks = guest.disk_sizes();
    let size = Size { ram: guest.memory, disks: &disks };
    let line = guest.domains.first().map(|domain| format!("{} {}", domain.kernel_name, domain.bootargs)).unwrap_or_default();
    let domain = match guest.domains {
        [] => None,
        [domain] => Some((domain, Domain { kernel: domain.kernel, bootargs: &line })),
        domains => return Err(KernelError::Domains(domains.len())),
    };
    if domain.is_none()
        && let Some(parts) = linux::parts(kernel, size, bootargs, initrd)?
    {
        return Ok(parts);
    }
    let of_domain = domain.as_ref().map(|(domain, _)| xen_options(domain)).unwrap_or_default();
    let command_line = format!("{} {of_domain}{bootargs}", guest.kernel_name);
    let domain = domain.map(|(_, domain)| domain);
    if let Some(parts) = multiboot::parts(kernel, size, command_line.trim_end(), domain.as_ref(), initrd)? {
        return Ok(parts);
    }
    if domain.is_some() {
        return Err(KernelError::Domains(1));
    }
    pvh::parts(kernel, size, bootargs, initrd)?.ok_or_else(|| KernelError::NotForPc(describe(kernel)))
}

/// Xen's options for its first domain, which it runs by VMX (Xen, "Xen Hypervisor Command Line Options"). The VM has no IOMMU.
fn xen_options(domain: &GuestDomain<'_>) -> String {
    let (memory, vcpus) = (domain.memory >> 20, domain.vcpus);
    format!("dom0=pvh dom0-iommu=none dom0_mem={memory}M,max:{memory}M dom0_max_vcpus={vcpus} ")
}

/// Names the kind of a file that no boot protocol starts, with its article.
fn describe(file: &[u8]) -> String {
    match (file_type::linux_arch(file), FileType::of(file)) {
        (Some(arch), _) => format!("a Linux image for {arch}"),
        (None, Some(kind)) => kind.name.to_owned(),
        (None, None) if firmware_volume(file).is_some() => "UEFI firmware for AArch64".to_owned(),
        (None, None) if file.starts_with(&elf_file::MAGIC) => match elf::machine(file) {
            Some(arch) if !arch.contains("x86") => format!("an ELF file for {arch}"),
            _ => "an ELF file with neither of the two headers".to_owned(),
        },
        (None, None) => "a file of an unknown type".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use core::ops::Range;
    use std::vec;

    use super::memory::{HIGH_MEMORY, Memory, RESERVED, Size, memory};
    use super::parts::{INFO, check_places, place};
    use super::*;
    use crate::Segment;

    fn ranges(ram: u64) -> Vec<(Range<u64>, u32)> {
        with_disks(ram, &[])
    }

    fn with_disks(ram: u64, disks: &[u64]) -> Vec<(Range<u64>, u32)> {
        memory(Size { ram, disks }).into_iter().map(|Memory { range, kind }| (range, kind)).collect()
    }

    #[test]
    fn ram_beyond_3_gib_is_above_the_devices() {
        let low = |end| [(0..RESERVED, 1), (RESERVED..HIGH_MEMORY, 2), (HIGH_MEMORY..end, 1)];
        assert_eq!(ranges(512 << 20), low(512 << 20));
        assert_eq!(ranges(3 << 30), low(3 << 30));
        assert_eq!(ranges(5 << 30)[..3], low(3 << 30));
        assert_eq!(ranges(5 << 30)[3..], [(4 << 30..6 << 30, 1)]);
    }

    #[test]
    fn disks_are_behind_ram_and_beside_the_devices() {
        let mib = |mib: u64| mib << 20;
        let disks = [mib(2), mib(1024)];
        let behind = |ram: u64| with_disks(ram, &disks).split_off(3);
        assert_eq!(behind(mib(512)), [(mib(512)..mib(514), 12), (mib(516)..mib(1540), 12)]);
        assert_eq!(behind(mib(2048)), [(mib(4096)..mib(4098), 12), (mib(4100)..mib(5124), 12)]);
        assert_eq!(behind(mib(3072)), behind(mib(2048)));
        assert_eq!(behind(mib(5120)), [(mib(4096)..mib(6144), 1), (mib(6144)..mib(6146), 12), (mib(6148)..mib(7172), 12)]);
    }

    #[test]
    fn loads_are_below_the_devices() {
        assert_eq!(place(8192, 2 << 20, 8 << 30).unwrap(), (3 << 30) - 8192..3 << 30);
        let high = Segment { gpa: 4 << 30, file: 0..4096, mem_len: 4096 };
        assert!(check_places(&[high], 8 << 30, INFO..INFO + 1).is_err());
    }

    #[test]
    fn an_unbootable_file_is_named() {
        let mut arm = vec![0; 64];
        arm[56..60].copy_from_slice(b"ARM\x64");
        assert_eq!(describe(&arm), "a Linux image for AArch64");
        assert_eq!(describe(b"# Stile\n"), "a text file");
        assert_eq!(describe(b"QFI\xfb\0\0\0\x03"), "a qcow2 disk image");
        assert_eq!(describe(b"\x7fELF\x02\x01"), "an ELF file with neither of the two headers");
        let elf = |machine: u8| [b"\x7fELF\x02\x01".as_slice(), &[0; 12], &[machine, 0]].concat();
        assert_eq!(describe(&elf(183)), "an ELF file for AArch64");
        assert_eq!(describe(&elf(62)), "an ELF file with neither of the two headers");
        assert_eq!(describe(&[0xfa, 0xf4]), "a file of an unknown type");
    }
}
