//! Kernels for x86-64 guests, and their boot information.

mod acpi;
mod bios;
mod linux;
mod memory;
mod mp;
mod multiboot;
mod parts;
mod pvh;

use std::borrow::Cow;
use std::path::Path;

use stile_blob::Topology;

use super::assemble::{Error, VmFiles, VmPlan};
use super::elf;
use super::file_type::{self, FileType};
use super::kernel::{UNPACK_LIMIT, firmware_volume};
use super::layout::Layout;
use super::{Compression, KernelError};
use crate::config::{DomainConfig, KernelSource, VmConfig};

pub use linux::is_linux;
pub use multiboot::MULTIBOOT_MAGIC;
use parts::{BIOS_DATA, Domain, Parts, meets};

/// Plans the memory layout of a virtual machine.
///
/// # Errors
/// The kernel can't be booted.
pub fn plan(vm: &VmConfig, files: &VmFiles<'_>) -> Result<VmPlan, Error> {
    let initrd = files.initrd.filter(|initrd| !initrd.is_empty());
    let parts = parts(vm, files, initrd).map_err(|error| Error::Kernel { vm: vm.name.clone(), error })?;
    let layout = Layout { dtb: parts.info_at..parts.info_at + parts.info.len() as u64, initrd: parts.initrd };
    let initrd = initrd.filter(|_| layout.initrd.is_some()).map(<[u8]>::to_vec);
    let topology = vm.topology.unwrap_or(Topology::flat(vm.vcpus));
    let tables = acpi::tables(topology, parts.acpi, !(vm.functions.is_empty() && vm.served.is_empty()), vm.serves);
    assert!(acpi::TABLES + tables.len() as u64 <= bios::RESET_AT, "the ACPI tables reach into the code at the reset vector");
    let mut more = parts.more;
    more.extend([(acpi::TABLES, tables), (bios::RESET_AT, bios::RESET.to_vec())]);
    let uses_vectors = parts.kernel.segments.iter().any(|segment| meets(&segment.memory(), &(0..BIOS_DATA)));
    if parts.acpi == acpi::Kind::Whole {
        let mut tables = mp::tables(topology);
        let room = (bios::CODE_AT - mp::TABLES) as usize;
        assert!(tables.len() <= room, "the tables of the MultiProcessor Specification reach into the BIOS");
        tables.resize(room, 0);
        more.push((mp::TABLES, [tables, bios::code(vm.memory)].concat()));
    }
    if parts.acpi == acpi::Kind::Whole && !uses_vectors {
        more.push((0, [bios::vectors(), bios::data_area()].concat()));
    } else {
        more.push((BIOS_DATA, bios::data_area()));
    }
    Ok(VmPlan { kernel: parts.kernel, initrd, dtb: parts.info, layout, mode: parts.mode, ram_base: 0, more })
}

fn parts(vm: &VmConfig, files: &VmFiles<'_>, initrd: Option<&[u8]>) -> Result<Parts, KernelError> {
    if files.kernel.is_empty() {
        return Err(KernelError::Empty);
    }
    let (kernel, compression) = unpack(files.kernel)?;
    let mut parts = unpacked_parts(vm, &kernel, files, initrd)?;
    parts.kernel.compression = compression;
    Ok(parts)
}

/// Unpacks a file that is compressed as a whole, such as Debian's Xen, as boot loaders do. Returns it with its compression; a file that is
/// not compressed, as it is.
///
/// # Errors
/// The file is corrupt, too large, or compressed in an unknown way.
pub fn unpack(file: &[u8]) -> Result<(Cow<'_, [u8]>, Option<Compression>), KernelError> {
    let compression = Compression::of(file).map_err(|name| KernelError::UnknownCompression(name.to_owned()))?;
    let unpacked = match compression {
        Some(compression) => compression.unpack(file, UNPACK_LIMIT)?.into(),
        None => file.into(),
    };
    Ok((unpacked, compression))
}

fn unpacked_parts(vm: &VmConfig, kernel: &[u8], files: &VmFiles<'_>, initrd: Option<&[u8]>) -> Result<Parts, KernelError> {
    let bootargs = files.bootargs;
    let line = vm.domains.first().map(|domain| format!("{} {}", name_of(&domain.kernel), domain.append)).unwrap_or_default();
    let domain = match (vm.domains.as_slice(), files.domains) {
        ([], _) | (_, []) => None,
        ([config], [kernel]) => Some((config, Domain { kernel, bootargs: &line })),
        (domains, _) => return Err(KernelError::Domains(domains.len())),
    };
    if domain.is_none()
        && let Some(parts) = linux::parts(kernel, vm.memory, bootargs, initrd)?
    {
        return Ok(parts);
    }
    let name = match &vm.kernel {
        KernelSource::File(path) => name_of(path),
        KernelSource::Debian(_) => "debian".into(),
        KernelSource::Disk => "disk".into(),
        KernelSource::Stile(_) => KernelSource::STILE.into(),
    };
    let of_domain = domain.map(|(config, _)| xen_options(config)).unwrap_or_default();
    let command_line = format!("{name} {of_domain}{bootargs}");
    let domain = domain.map(|(_, domain)| domain);
    if let Some(parts) = multiboot::parts(kernel, vm.memory, command_line.trim_end(), domain.as_ref(), initrd)? {
        return Ok(parts);
    }
    if domain.is_some() {
        return Err(KernelError::Domains(1));
    }
    pvh::parts(kernel, vm.memory, bootargs, initrd)?.ok_or_else(|| KernelError::NotForPc(describe(kernel)))
}

/// The name of a file. A command line of Multiboot begins with it: Xen drops that word.
fn name_of(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// Xen's options for its first domain, which it runs by VMX (Xen, "Xen Hypervisor Command Line Options"). The VM has no IOMMU.
fn xen_options(domain: &DomainConfig) -> String {
    let (memory, vcpus) = (domain.memory >> 20, domain.vcpus);
    format!("dom0=pvh dom0-iommu=none dom0_mem={memory}M,max:{memory}M dom0_max_vcpus={vcpus} ")
}

/// Names the kind of a file that no boot protocol starts, with its article.
fn describe(file: &[u8]) -> String {
    match (file_type::linux_arch(file), FileType::of(file)) {
        (Some(arch), _) => format!("a Linux image for {arch}"),
        (None, Some(kind)) => kind.name.to_owned(),
        (None, None) if firmware_volume(file).is_some() => "UEFI firmware for AArch64".to_owned(),
        (None, None) if file.starts_with(&object::elf::ELFMAG) => match elf::machine(file) {
            Some(arch) if !arch.contains("x86") => format!("an ELF file for {arch}"),
            _ => "an ELF file with neither of the two headers".to_owned(),
        },
        (None, None) => "a file of an unknown type".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::ops::Range;

    use super::memory::{HIGH_MEMORY, Memory, RESERVED, memory};
    use super::parts::{INFO, check_places, place};
    use super::*;
    use crate::image::Segment;

    fn ranges(ram: u64) -> Vec<(Range<u64>, u32)> {
        memory(ram).into_iter().map(|Memory { range, kind }| (range, kind)).collect()
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

    #[test]
    fn compressed_files_are_unpacked() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&[7; 1000]).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(unpack(&packed), Ok((vec![7; 1000].into(), Some(Compression::Gzip))));
        assert_eq!(unpack(b"plain"), Ok((b"plain".as_slice().into(), None)));
        assert!(unpack(&packed[..20]).is_err() && unpack(b"BZh").is_err());
    }
}
