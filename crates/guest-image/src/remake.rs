//! Rebuilds virtual machines of an image at boot.

use alloc::borrow::{Cow, ToOwned};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use stile_blob::{Files, Gic, Load, MAX_GICV2_VCPUS, MAX_LOADS, Nested, Package, Rule, Vm};
use stile_board::memory_disks::MAX_MEMORY_DISKS;
use stile_config::raw_image;
use thiserror::Error;

use super::kernel::{Kernel, Unpacking};
use super::loaded::{self, Loaded};
use super::plan::{self, Guest, Plan};
use super::{KernelError, gunzip, pc};

/// The new values. `None`: the image's.
#[derive(Clone, Copy)]
pub struct Request<'a, 'r> {
    /// Whether it is a PC.
    pub is_pc: bool,
    /// Name and contents of the kernel's file.
    pub kernel: Option<(&'a str, &'a [u8])>,
    /// The initial RAM file system; `Some(None)` removes the image's.
    pub initrd: Option<Option<&'a [u8]>>,
    /// Whether the configuration names an initial RAM file system.
    pub has_initrd: bool,
    /// The new contents of each disk in memory; `None`, or beyond the end: the image's.
    pub disks: &'r [Option<&'a [u8]>],
    /// RAM in bytes: a size that virtual machines can have.
    pub memory: Option<u64>,
    /// Number of vCPUs, 1 to [`stile_board::MAX_VCPUS`]; none if the virtual machine has a topology.
    pub vcpus: Option<u16>,
    /// Returns the whole command line, given the image's if that is known; `None` if it can't be derived from that.
    pub bootargs: &'r dyn Fn(Option<&str>) -> Option<String>,
}

/// Reason for which a virtual machine can't be rebuilt.
#[derive(Debug, Error)]
pub enum RemakeError {
    /// Its kernel or its memory.
    #[error("{0}")]
    Plan(plan::Error),
    /// The command line is not that of the configuration.
    #[error("\"append\" can't be changed here: the image's command line has another end, by an option of `stile image`")]
    Bootargs,
    /// The image's kernel is in a form that can't be read back.
    #[error("this can't be changed with the kernel in the image, which is not Linux; expected its kernel as a file in the folder VMS")]
    Kernel,
    /// The image's initial RAM file system can't be found.
    #[error("the image's initial RAM file system can't be used here; expected it as a file in the folder VMS")]
    Initrd,
    /// The image's disk in memory can't be found.
    #[error("the image's disk can't be used here; expected it as a file in the folder VMS")]
    Disk,
    /// A new disk in memory is not a raw image. The message follows the file's name.
    #[error("{what}; expected {expected}")]
    Image {
        /// The disk's number.
        number: usize,
        /// The mistake.
        what: String,
        /// The expected image.
        expected: &'static str,
    },
    /// Virtual machines depend on each other.
    #[error("this can't be changed here, since the virtual machine serves devices, or others serve it; expected a new image")]
    Links,
    /// It starts from firmware.
    #[error("this can't be changed here, since the virtual machine has UEFI firmware; expected a new image")]
    Firmware,
    /// A GICv2 has fewer.
    #[error("{0} vCPUs are too many for a GICv2; expected at most {MAX_GICV2_VCPUS}")]
    Vcpus(u16),
    /// The kernel has too many parts.
    #[error("the kernel has too many segments")]
    Loads,
    /// No memory for the bytes that are neither the image's nor the boot medium's, such as of an unpacked kernel.
    #[error("there is no memory for its kernel and its tables")]
    Memory,
    /// It breaks a rule.
    #[error("{0}")]
    Rule(Rule),
}

/// Unpacking at boot: by gzip only, whose files give the size of the memory in advance.
pub const AT_BOOT: Unpacking = Unpacking { function: gunzip::unpack, most: gunzip::MOST, most_merged: 0 };

/// Returns the additional memory that [`remake`] needs for a compressed kernel, in bytes: for the unpacked kernel, a PC's copy of it, and
/// the copy in the result.
#[must_use]
pub fn memory_to_unpack(file: &[u8], is_pc: bool) -> u64 {
    3 * gunzip::unpacked_size(file, is_pc)
}

/// Rebuilds a virtual machine. Returns its configuration, and bytes to which its [`Load`]s refer as those of its own package; other loads
/// refer to `files`.
///
/// # Errors
/// See [`RemakeError`].
pub fn remake<'a>(vm: &Vm<'a>, files: Files<'a>, request: &Request<'a, '_>) -> Result<(Vm<'a>, Vec<u8>), RemakeError> {
    if vm.has_links() {
        return Err(RemakeError::Links);
    }
    if vm.firmware != 0 {
        return Err(RemakeError::Firmware);
    }
    let loaded = Loaded::read(vm, files, request.is_pc);
    let bootargs = (request.bootargs)(loaded.as_ref().map(|loaded| loaded.bootargs)).ok_or(RemakeError::Bootargs)?;
    let initrd = match (request.initrd, &loaded) {
        (Some(initrd), _) => initrd,
        (None, Some(loaded)) => loaded.initrd,
        (None, None) if request.has_initrd => return Err(RemakeError::Initrd),
        (None, None) => None,
    };
    let vcpus = request.vcpus.unwrap_or(vm.vcpus);
    if vm.gic == Gic::V2 && vcpus > MAX_GICV2_VCPUS {
        return Err(RemakeError::Vcpus(vcpus));
    }
    let disks = disks(vm, files, request.disks)?;
    let guest = Guest {
        kernel_name: request.kernel.map_or("", |(name, _)| name),
        initrd,
        bootargs: &bootargs,
        memory: request.memory.unwrap_or(vm.memory),
        disks: &disks,
        vcpus,
        topology: vm.topology,
        nested: vm.techniques.nested != Nested::Off,
        pci: !vm.functions.is_empty(),
        served: 0,
        serves: 0,
        gic: vm.gic,
        domains: &[],
        seed: if request.is_pc { None } else { loaded::seed(vm, files) },
    };
    let with_plan = |plan: Plan<'_>| made(vm, files, initrd, &guest, &plan);
    match (request.kernel, &loaded) {
        (Some((_, file)), _) if request.is_pc => pc::plan(&guest, file, &AT_BOOT).map_err(RemakeError::Plan).and_then(with_plan),
        (Some((_, file)), _) => plan::plan(&guest, file, &AT_BOOT).map_err(RemakeError::Plan).and_then(with_plan),
        (None, Some(loaded)) => loaded.plan(&guest).map_err(RemakeError::Plan)?.ok_or(RemakeError::Kernel).and_then(with_plan),
        (None, None) => Err(RemakeError::Kernel),
    }
}

/// Returns the contents of a virtual machine's disks in memory: those of `new`, or the image's.
fn disks<'a>(vm: &Vm<'_>, files: Files<'a>, new: &[Option<&'a [u8]>]) -> Result<Vec<&'a [u8]>, RemakeError> {
    let of_image = |region: Range<u64>| vm.loads.iter().find(|load| load.gpa == region.start).and_then(|load| files.file(load));
    for (number, disk) in new.iter().enumerate().filter_map(|(number, disk)| Some((number, (*disk)?))) {
        raw_image::check(disk.len() as u64, disk).map_err(|(what, expected)| RemakeError::Image { number, what, expected })?;
    }
    let mut old = vm.disk_regions().map(of_image);
    let mut new = new.iter().copied();
    let all = (0..vm.disks.len().max(new.len())).map(|_| {
        let old = old.next().flatten();
        new.next().flatten().or(old).ok_or(RemakeError::Disk)
    });
    all.collect()
}

/// Checks that the segments of an unpacked kernel, which are copied, are no more bytes than the kernel: an ELF file may have the same
/// bytes in several, and [`memory_to_unpack`] counts them once. `is_in_file` returns whether bytes lie in the file on the medium and need
/// no copy.
///
/// # Errors
/// See [`RemakeError`].
pub fn check_copies(kernel: &Kernel<'_>, is_in_file: impl Fn(&[u8]) -> bool) -> Result<(), RemakeError> {
    let copied = kernel.segments.iter().map(|segment| kernel.bytes(segment)).filter(|bytes| !is_in_file(bytes));
    if copied.map(|bytes| bytes.len() as u64).sum::<u64>() <= kernel.len() as u64 {
        return Ok(());
    }
    let what = "it is compressed, and its segments have bytes of the file in common; expected a kernel that is not compressed";
    Err(RemakeError::Plan(plan::Error::Kernel(KernelError::Malformed(what.to_owned()))))
}

/// The configuration and the new bytes of a virtual machine by its plan.
fn made<'a>(
    vm: &Vm<'a>,
    files: Files<'a>,
    initrd: Option<&[u8]>,
    guest: &Guest<'_>,
    plan: &Plan<'_>,
) -> Result<(Vm<'a>, Vec<u8>), RemakeError> {
    /// Alignment of new bytes, so that copies of them are by words.
    const ALIGN: usize = 16;
    let mut new = Vec::new();
    let mut loads = heapless::Vec::<Load, MAX_LOADS>::new();
    check_copies(&plan.kernel, |bytes| files.offset_of(bytes).is_some())?;
    let mut load = |bytes: &[u8], gpa: u64, mem_len: u64| {
        let offset = match files.offset_of(bytes) {
            Some(offset) => offset,
            None => {
                // Growth by doubling could exceed the memory for an unpacked kernel.
                new.try_reserve_exact(bytes.len() + ALIGN).map_err(|_| RemakeError::Memory)?;
                new.resize(new.len().next_multiple_of(ALIGN), 0);
                let at = new.len();
                new.extend_from_slice(bytes);
                Package::OWN + at as u64
            }
        };
        loads.push(Load { offset, len: bytes.len() as u64, gpa, mem_len }).map_err(|_| RemakeError::Loads)
    };
    for segment in &plan.kernel.segments {
        load(plan.kernel.bytes(segment), segment.gpa, segment.mem_len)?;
    }
    if let (Some(bytes), Some(range)) = (initrd, &plan.layout.initrd) {
        load(bytes, range.start, bytes.len() as u64)?;
    }
    let dtb = &plan.layout.dtb;
    load(&plan.dtb, dtb.start, dtb.end - dtb.start)?;
    for (gpa, bytes) in &plan.more {
        let bytes: &Cow<'_, [u8]> = bytes;
        load(bytes, *gpa, bytes.len() as u64)?;
    }
    for disk in &plan.disks {
        load(&disk.bytes, disk.region.start, disk.region.end - disk.region.start)?;
    }
    let vm = Vm {
        memory: guest.memory,
        disks: guest.disk_sizes().into_iter().take(MAX_MEMORY_DISKS).collect(),
        ram_base: plan.ram_base,
        firmware: plan.kernel.firmware_size(),
        vcpus: guest.vcpus,
        entry: plan.kernel.entry,
        info: dtb.start,
        mode: plan.mode,
        loads,
        ..vm.clone()
    };
    Ok((vm, new))
}

#[cfg(test)]
mod tests;
