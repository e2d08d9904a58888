//! Putting an image together.

use std::borrow::Cow;
use std::path::Path;

use stile_blob::write::{self, Machine};
use stile_blob::{Blob, Load, MAX_LOADS, Mode, Nested, Settings, Vm};
use stile_board::memory_disks::MAX_MEMORY_DISKS;
use stile_guest_image::plan::Disk;
use stile_guest_image::{self, Guest};
use thiserror::Error;

use super::{
    Hypervisor, Kernel, KernelError,
    dtb::SEED_LEN,
    efi,
    hypervisor::PAGE,
    layout::{Layout, NoRoom},
    pc,
    unpack::UNPACKING,
};
use crate::config::{Arch, KernelSource, MachineConfig, VmConfig};

/// The files of a virtual machine.
#[derive(Clone, Copy, Debug)]
pub struct VmFiles<'a> {
    /// The kernel's unmodified file.
    pub kernel: &'a [u8],
    /// The initial RAM file system.
    pub initrd: Option<&'a [u8]>,
    /// The whole command line of the kernel.
    pub bootargs: &'a str,
    /// The kernels of Xen's domains, one for each of [`VmConfig::domains`].
    pub domains: &'a [Vec<u8>],
    /// The contents of its disks in memory.
    pub disks: &'a [Vec<u8>],
}

/// The seed of the guests' random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// Random bytes of the system's.
    Random,
    /// Always the same, for reproducible runs.
    Fixed,
}

/// The memory layout of one virtual machine.
#[derive(Clone, Debug)]
pub struct VmPlan {
    /// The kernel.
    pub kernel: Kernel<'static>,
    /// The initial RAM file system.
    pub initrd: Option<Vec<u8>>,
    /// The device tree, or another boot information.
    pub dtb: Vec<u8>,
    /// Addresses of the latter two.
    pub layout: Layout,
    /// The first vCPU's initial mode.
    pub mode: Mode,
    /// The guest-physical address of RAM's first byte.
    pub ram_base: u64,
    /// Further bytes and their addresses.
    pub more: Vec<(u64, Vec<u8>)>,
    /// Disks in memory.
    pub disks: Vec<Disk<'static>>,
}

/// A finished image.
#[derive(Clone, Debug)]
pub struct Image {
    /// The file.
    pub bytes: Vec<u8>,
    /// Length of the hypervisor; the blob follows.
    pub hypervisor_len: usize,
}

/// Reason for which an image can't be assembled.
#[derive(Debug, Error)]
pub enum Error {
    /// A kernel can't be booted.
    #[error("{vm}: the kernel can't be booted: {error}")]
    Kernel {
        /// The virtual machine's name.
        vm: String,
        /// The error.
        error: KernelError,
    },
    /// A domain's kernel can't be booted.
    #[error("{vm}: the kernel of domain {number} can't be booted: {error}")]
    Domain {
        /// The virtual machine's name.
        vm: String,
        /// The domain's number, counted from 1.
        number: usize,
        /// Its mistake, in words.
        error: KernelError,
    },
    /// A virtual machine has too little RAM.
    #[error("{vm}: {error}")]
    NoRoom {
        /// The virtual machine's name.
        vm: String,
        /// The error.
        error: NoRoom,
    },
    /// The operating system's random numbers are unavailable.
    #[error("no random numbers can be had: {0}")]
    Random(getrandom::Error),
    /// The device tree can't be made.
    #[error("{vm}: the device tree can't be made: {error}")]
    Dtb {
        /// The virtual machine's name.
        vm: String,
        /// The writer's error.
        error: vm_fdt::Error,
    },
    /// The header for UEFI firmware can't be written: a mistake of this program.
    #[error("the image has no room for a header for UEFI firmware")]
    Efi,
    /// The place of the second program can't be written: a mistake of this program.
    #[error("the image has no room for the place of its second program")]
    Other,
    /// The blob would be refused: a mistake of this program.
    #[error("the image can't be written: {0}")]
    Blob(stile_blob::Error),
}

impl Error {
    /// An error of a virtual machine's.
    fn of(vm: &VmConfig, error: stile_guest_image::Error) -> Self {
        let vm = vm.name.clone();
        match error {
            stile_guest_image::Error::Kernel(error) => Error::Kernel { vm, error },
            stile_guest_image::Error::Domain { number, error } => Error::Domain { vm, number, error },
            stile_guest_image::Error::NoRoom(error) => Error::NoRoom { vm, error },
            stile_guest_image::Error::Dtb(error) => Error::Dtb { vm, error },
        }
    }
}

/// Plans the memory layout of an Arm virtual machine.
///
/// # Errors
/// The kernel can't be booted, or there is too little RAM.
pub fn plan(vm: &VmConfig, files: &VmFiles<'_>, seed: Seed) -> Result<VmPlan, Error> {
    plan_for(Arch::Aarch64, vm, files, seed)
}

/// Plans the memory layout of a virtual machine, on an architecture.
///
/// # Errors
/// The kernel can't be booted, or there is too little RAM.
pub fn plan_for(arch: Arch, vm: &VmConfig, files: &VmFiles<'_>, seed: Seed) -> Result<VmPlan, Error> {
    let mut seed_bytes = [0x5a; SEED_LEN];
    if seed == Seed::Random {
        getrandom::fill(&mut seed_bytes).map_err(Error::Random)?;
    }
    let kernel_name = match &vm.kernel {
        KernelSource::File(path) => name_of(path),
        KernelSource::Debian(_) => "debian".into(),
        KernelSource::Disk => "disk".into(),
        KernelSource::Stile(_) => KernelSource::STILE.into(),
    };
    let names: Vec<_> = vm.domains.iter().map(|domain| name_of(&domain.kernel)).collect();
    let domains: Vec<_> =
        vm.domains.iter().zip(files.domains).zip(&names).map(|((domain, kernel), name)| domain.guest(name, kernel)).collect();
    let disks: Vec<&[u8]> = files.disks.iter().map(Vec::as_slice).collect();
    let guest = Guest {
        kernel_name: &kernel_name,
        initrd: files.initrd,
        bootargs: files.bootargs,
        memory: vm.memory,
        disks: &disks,
        vcpus: vm.vcpus,
        topology: vm.topology,
        nested: vm.techniques.nested != Nested::Off,
        pci: !vm.functions.is_empty(),
        served: vm.served.len(),
        serves: vm.serves,
        gic: vm.gic,
        domains: &domains,
        seed: Some(seed_bytes),
    };
    let plan = match arch {
        Arch::Aarch64 => stile_guest_image::plan::plan(&guest, files.kernel, &UNPACKING),
        Arch::X86_64 => pc::plan(&guest, files.kernel, &UNPACKING),
    };
    let plan = plan.map_err(|error| Error::of(vm, error))?;
    let initrd = guest.initrd().filter(|_| plan.layout.initrd.is_some()).map(<[u8]>::to_vec);
    let more = plan.more.into_iter().map(|(gpa, bytes)| (gpa, bytes.into_owned())).collect();
    let disks = plan.disks.into_iter().map(|disk| Disk { region: disk.region, bytes: disk.bytes.into_owned().into() }).collect();
    let (kernel, dtb, layout) = (plan.kernel.into_owned(), plan.dtb, plan.layout);
    Ok(VmPlan { kernel, initrd, dtb, layout, mode: plan.mode, ram_base: plan.ram_base, more, disks })
}

/// The name of a file.
fn name_of(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// Assembles the image of a machine: `plans` has one per virtual machine, in order. `text`: see [`Blob::text`].
///
/// # Errors
/// [`Error::Blob`]: the configuration is invalid.
pub fn assemble(hypervisor: &Hypervisor, config: &MachineConfig, plans: &[VmPlan], report_exits: bool, text: &str) -> Result<Image, Error> {
    let mut machine = Machine {
        settings: Settings {
            report_exits,
            slice_us: u32::try_from(config.slice.as_micros()).unwrap_or(u32::MAX),
            mitigations: config.mitigations,
        },
        vms: Vec::new(),
        text,
    };
    let mut files = Vec::new();
    for (index, (vm, plan)) in config.vms.iter().zip(plans).enumerate() {
        machine.vms.push(blob_vm(vm, plan));
        files.extend(vm_files(index, plan));
    }
    let symbols = write::symbols(&hypervisor.functions);
    let blob = write::blob(&machine, &symbols, &files).map_err(Error::Blob)?;

    let mut bytes = hypervisor.image.clone();
    let hypervisor_len = bytes.len();
    bytes.extend_from_slice(&blob);
    if let (Some(other), Some(at)) = (&hypervisor.other, hypervisor.other_program) {
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        let words = [bytes.len() as u32, other.len() as u32].map(u32::to_le_bytes).concat();
        bytes.extend_from_slice(other);
        bytes.get_mut(at as usize..).and_then(|rest| rest.get_mut(..words.len())).ok_or(Error::Other)?.copy_from_slice(&words);
    }
    if let Some(entry) = hypervisor.efi_entry {
        efi::write_header(config.arch, &mut bytes, entry).ok_or(Error::Efi)?;
    }
    // The boot loader keeps its own data (the machine's device tree) out of the memory that the header claims
    // for the image.
    let image_size = (bytes.len() as u64).to_le_bytes();
    if let (Arch::Aarch64, Some(field)) = (config.arch, bytes.get_mut(16..24)) {
        field.copy_from_slice(&image_size);
    }
    Ok(Image { bytes, hypervisor_len })
}

/// A virtual machine for a machine that runs; `image` is the blob that it was started with: files that it has are named, not repeated.
///
/// # Errors
/// There are too many files.
pub fn package(vm: &VmConfig, plan: &VmPlan, image: Option<&[u8]>) -> Result<Vec<u8>, stile_blob::PackageError> {
    let image = image.and_then(|image| Blob::parse(image).ok());
    let loads: Vec<Load> = image.iter().flat_map(|image| image.vms.clone().flat_map(|vm| vm.loads)).collect();
    let find = |bytes: &[u8]| {
        let is_same = |load: &&Load| load.len == bytes.len() as u64 && image.as_ref().and_then(|image| image.file(load)) == Some(bytes);
        loads.iter().find(is_same).map(|load| load.offset)
    };
    write::package(&blob_vm(vm, plan), &vm_files(0, plan), find)
}

fn blob_vm<'a>(vm: &'a VmConfig, plan: &VmPlan) -> Vm<'a> {
    Vm {
        name: &vm.name,
        memory: vm.memory,
        ram_base: plan.ram_base,
        firmware: plan.kernel.firmware_size(),
        disks: plan.disks.iter().map(|disk| disk.region.end - disk.region.start).take(MAX_MEMORY_DISKS).collect(),
        vcpus: vm.vcpus,
        topology: vm.topology,
        class: vm.class,
        cpus: vm.cpus,
        pinned: vm.pinned,
        share: vm.share,
        entry: plan.kernel.entry,
        info: plan.layout.dtb.start,
        mode: plan.mode,
        loads: heapless::Vec::<Load, MAX_LOADS>::new(),
        on_reset: vm.on_reset,
        techniques: vm.techniques,
        // Validation of the configuration bounds the number.
        functions: vm.functions.iter().map(|function| function.routing_id()).take(stile_board::MAX_FUNCTIONS).collect(),
        served: vm.served.iter().copied().take(stile_board::MAX_SERVED).collect(),
        serves: vm.serves,
        gic: vm.gic,
    }
}

/// All files loaded into one virtual machine.
fn vm_files<'p>(vm: usize, plan: &'p VmPlan) -> Vec<write::File<'p>> {
    let kernel = plan.kernel.segments.iter().map(|segment| write::File {
        vm,
        bytes: plan.kernel.bytes(segment),
        gpa: segment.gpa,
        mem_len: segment.mem_len,
    });
    let mut files: Vec<_> = kernel.collect();
    if let (Some(bytes), Some(range)) = (&plan.initrd, &plan.layout.initrd) {
        files.push(write::File { vm, bytes, gpa: range.start, mem_len: bytes.len() as u64 });
    }
    let dtb = &plan.layout.dtb;
    files.push(write::File { vm, bytes: &plan.dtb, gpa: dtb.start, mem_len: dtb.end - dtb.start });
    files.extend(plan.more.iter().map(|(gpa, bytes)| write::File { vm, bytes, gpa: *gpa, mem_len: bytes.len() as u64 }));
    let disk = |Disk { region, bytes }: &'p Disk<'static>| write::File { vm, bytes, gpa: region.start, mem_len: region.end - region.start };
    files.extend(plan.disks.iter().map(disk));
    files
}
