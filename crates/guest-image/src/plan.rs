//! The memory layout of a virtual machine.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::ops::Range;

use stile_blob::{Gic, Mode, Topology};
use stile_board::{map, memory_disks};
use thiserror::Error;

use super::domain::Domain;
use super::dtb::{self, Description, SEED_LEN};
use super::kernel::Unpacking;
use super::layout::{self, Layout, NoRoom};
use super::{Format, Kernel, KernelError};

/// A virtual machine, apart from its kernel.
#[derive(Clone, Debug)]
pub struct Guest<'a> {
    /// The name of the kernel's file: with Multiboot the command line begins with it.
    pub kernel_name: &'a str,
    /// The initial RAM file system. An empty one counts as none.
    pub initrd: Option<&'a [u8]>,
    /// The whole command line of the kernel.
    pub bootargs: &'a str,
    /// RAM in bytes.
    pub memory: u64,
    /// The contents of its disks in memory, none of which is empty: at most [`memory_disks::MAX_MEMORY_DISKS`].
    pub disks: &'a [&'a [u8]],
    /// Virtual CPUs: 1 to [`stile_board::MAX_VCPUS`].
    pub vcpus: u16,
    /// Topology that the guest sees, if configured.
    pub topology: Option<Topology>,
    /// Whether it has an EL2.
    pub nested: bool,
    /// Whether it owns PCI functions.
    pub pci: bool,
    /// Virtio devices that other virtual machines serve.
    pub served: usize,
    /// Devices that it serves.
    pub serves: u8,
    /// The interrupt controller of an Arm guest.
    pub gic: Gic,
    /// The domains that it starts, if it is Xen.
    pub domains: &'a [GuestDomain<'a>],
    /// The seed of an Arm guest's random numbers, if there is one.
    pub seed: Option<[u8; SEED_LEN]>,
}

impl<'a> Guest<'a> {
    /// The initial RAM file system, if there is one: the range of an empty one would have no first byte.
    pub fn initrd(&self) -> Option<&'a [u8]> {
        self.initrd.filter(|initrd| !initrd.is_empty())
    }

    /// Sizes of the regions of its disks in memory.
    pub fn disk_sizes(&self) -> Vec<u64> {
        self.disks.iter().map(|disk| memory_disks::region_size(disk.len() as u64)).collect()
    }

    /// Its disks in memory, the first one at `start`.
    pub(crate) fn disks_at(&self, start: u64) -> Vec<Disk<'a>> {
        let places = memory_disks::places(start, &self.disk_sizes()).collect::<Vec<_>>();
        places.into_iter().zip(self.disks).map(|(region, &bytes)| Disk { region, bytes: bytes.into() }).collect()
    }
}

/// A virtual machine that Xen, in one of Stile's, starts itself.
#[derive(Clone, Copy, Debug)]
pub struct GuestDomain<'a> {
    /// The name of its kernel's file.
    pub kernel_name: &'a str,
    /// Its kernel's file.
    pub kernel: &'a [u8],
    /// The kernel's command line.
    pub bootargs: &'a str,
    /// RAM in bytes.
    pub memory: u64,
    /// Virtual CPUs.
    pub vcpus: u16,
}

/// A disk in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk<'a> {
    /// Its guest-physical addresses; bytes behind the contents are zeroes.
    pub region: Range<u64>,
    /// Its contents.
    pub bytes: Cow<'a, [u8]>,
}

/// The memory layout of a virtual machine.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The kernel.
    pub kernel: Kernel<'a>,
    /// The device tree, or another boot information.
    pub dtb: Vec<u8>,
    /// Addresses of the latter, and of the initial RAM file system.
    pub layout: Layout,
    /// The first vCPU's initial mode.
    pub mode: Mode,
    /// The guest-physical address of RAM's first byte.
    pub ram_base: u64,
    /// Further bytes and their addresses.
    pub more: Vec<(u64, Cow<'a, [u8]>)>,
    /// Disks in memory.
    pub disks: Vec<Disk<'a>>,
}

/// Reason for which a virtual machine can't be made.
#[derive(Debug, Error)]
pub enum Error {
    /// Its kernel can't be booted.
    #[error("the kernel can't be booted: {0}")]
    Kernel(KernelError),
    /// A domain's kernel can't be booted.
    #[error("the kernel of domain {number} can't be booted: {error}")]
    Domain {
        /// The domain's number, counted from 1.
        number: usize,
        /// Its mistake.
        error: KernelError,
    },
    /// It has too little RAM.
    #[error("{0}")]
    NoRoom(NoRoom),
    /// The device tree can't be made.
    #[error("the device tree can't be made: {0}")]
    Dtb(vm_fdt::Error),
}

/// Plans the memory layout of an Arm virtual machine with the kernel in `file`.
///
/// # Errors
/// The kernel can't be booted, or there is too little RAM.
pub fn plan<'a>(guest: &Guest<'a>, file: &'a [u8], unpacking: &Unpacking) -> Result<Plan<'a>, Error> {
    let kernel = Kernel::recognise(file, guest.memory, unpacking).map_err(Error::Kernel)?;
    if kernel.format == Format::Firmware {
        check_firmware(guest).map_err(|why| Error::Kernel(KernelError::Firmware(why)))?;
    }
    for (number, domain) in (1..).zip(guest.domains) {
        Kernel::check_domain(domain.kernel, unpacking).map_err(|error| Error::Domain { number, error })?;
    }
    plan_with(guest, kernel)
}

/// Plans the memory layout of an Arm virtual machine with a kernel whose segments are in its RAM.
///
/// # Errors
/// There is too little RAM.
pub fn plan_with<'a>(guest: &Guest<'a>, kernel: Kernel<'a>) -> Result<Plan<'a>, Error> {
    let initrd_len = guest.initrd().map(|initrd| initrd.len() as u64);
    let behind = Behind::new(initrd_len, guest.domains);
    let disks = guest.disks_at(map::RAM_BASE + guest.memory);
    let describe = |start: u64| Description {
        memory: guest.memory,
        disks: disks.iter().map(|disk| disk.region.clone()).collect(),
        vcpus: guest.vcpus,
        topology: guest.topology,
        el2: guest.nested,
        bootargs: guest.bootargs,
        initrd: initrd_len.map(|len| start..start + len),
        seed: guest.seed,
        pci: guest.pci,
        flash: kernel.format == Format::Firmware,
        served: guest.served,
        serves: guest.serves.into(),
        gic: guest.gic,
        domains: guest.domains.iter().zip(behind.domains(start)).map(|(domain, image)| of_domain(domain, image)).collect(),
    };
    let build = |description: &Description<'_>| dtb::build(description).map_err(Error::Dtb);
    // The first tree only determines an upper limit of the length: node names contain addresses.
    let dtb_len = build(&describe(map::RAM_BASE + guest.memory))?.len() as u64;
    let mut layout = match kernel.format {
        Format::Firmware => layout::before_firmware(dtb_len),
        _ => layout::place(&kernel, guest.memory, dtb_len, behind.len()).map_err(Error::NoRoom)?,
    };
    let start = layout.initrd.as_ref().map_or(0, |range| range.start);
    layout.initrd = initrd_len.map(|len| start..start + len);
    let dtb = build(&describe(start))?;
    let more = behind.domains(start).zip(guest.domains).map(|(range, domain)| (range.start, domain.kernel.into())).collect();
    Ok(Plan { kernel, dtb, layout, mode: Mode::Reset, ram_base: map::RAM_BASE, more, disks })
}

/// The description of a domain for the device tree.
fn of_domain<'a>(domain: &GuestDomain<'a>, image: Range<u64>) -> Domain<'a> {
    Domain { vcpus: domain.vcpus, memory: domain.memory, image, bootargs: domain.bootargs }
}

/// Minimum memory for EDK2: it takes 64 MiB at RAM's end for itself; the started program needs the rest.
const FIRMWARE_MEMORY: u64 = 256 << 20;

/// Checks that a virtual machine with firmware has nothing that excludes firmware.
fn check_firmware(guest: &Guest<'_>) -> Result<(), &'static str> {
    let wrong = [
        (guest.initrd.is_some(), "takes no initial RAM file system; expected none: the system that it starts has its own"),
        (!guest.bootargs.is_empty(), "takes no command line; expected none: the system that it starts has its own"),
        (guest.nested, "does not work with an EL2 of the virtual machine's own; expected nested = false"),
        (guest.served != 0 || guest.serves != 0, "does not find served devices; expected devices of the VM's own, without `served`"),
        (guest.memory < FIRMWARE_MEMORY, "needs at least 256M of memory"),
    ];
    wrong.into_iter().find(|(is, _)| *is).map_or(Ok(()), |(_, why)| Err(why))
}

/// The initial RAM file system, followed by the kernels of domains.
struct Behind {
    /// From the first byte.
    domains: Vec<Range<u64>>,
    /// Its end.
    end: u64,
}

impl Behind {
    fn new(initrd: Option<u64>, domains: &[GuestDomain<'_>]) -> Self {
        let mut end = initrd.unwrap_or(0);
        let mut ranges = Vec::new();
        for domain in domains {
            let start = end.next_multiple_of(layout::INITRD_ALIGN);
            end = start + domain.kernel.len() as u64;
            ranges.push(start..end);
        }
        Self { domains: ranges, end }
    }

    fn len(&self) -> Option<u64> {
        (self.end > 0).then_some(self.end)
    }

    /// The domains' places, the first byte of all being at `start`.
    fn domains(&self, start: u64) -> impl Iterator<Item = Range<u64>> {
        self.domains.iter().map(move |range| start + range.start..start + range.end)
    }
}
