//! A machine's configuration, checked and complete.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stile_blob::{CpuClass, Gic, Mitigations, OnReset, Served, Share, Techniques, Topology};
use stile_board::{CpuSet, map, memory_disks, pc};
use stile_pci::Address;

use super::units;
use crate::budget::Budget;
use crate::disk::drive::Drive;
use crate::disk::folder::Folder;
use crate::disk::in_memory::MemoryDisk;
use crate::disk::network::Network;
use crate::image::GuestDomain;

/// Upper limit of the physical memory that Stile needs besides the virtual machines' and the image: tables
/// and stacks.
pub const RESERVED: u64 = 64 << 20;

/// Maximum number of NUMA nodes of an emulated machine.
pub const MAX_NODES: usize = 8;

/// Default of the machine's memory besides the virtual machines' and the image.
const SPARE: u64 = 256 << 20;

/// A machine and its virtual machines: every value checked, every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineConfig {
    /// The architecture.
    pub arch: Arch,
    /// Physical CPUs: 1 to [`stile_board::MAX_CPUS`].
    pub cpus: u32,
    /// NUMA nodes of the emulated machine: 1 to [`MAX_NODES`], at most as many as CPUs. See [`MachineConfig::node_cpus`].
    pub nodes: u32,
    /// Physical memory in bytes, if configured: see [`MachineConfig::physical_memory`].
    pub memory: Option<u64>,
    /// The emulator's CPU model, with its options.
    pub cpu_model: String,
    /// Time slice of a vCPU while another one waits for the same CPU: 100 µs to 1 s.
    pub slice: Duration,
    /// Mitigations of speculative-execution attacks.
    pub mitigations: Mitigations,
    /// Architecture of an Arm machine's interrupt controller.
    pub gic: Gic,
    /// 1 to [`stile_board::MAX_VMS`] of them.
    pub vms: Vec<VmConfig>,
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Unique; 1 to 32 of `[a-z0-9-]`.
    pub name: String,
    /// Its kernel.
    pub kernel: KernelSource,
    /// Its initial RAM file system.
    pub initrd: InitrdSource,
    /// The kernel's command line, as the user gave it.
    pub append: String,
    /// RAM in bytes: a multiple of 2 MiB.
    pub memory: u64,
    /// Virtual CPUs: 1 to [`stile_board::MAX_VCPUS`].
    pub vcpus: u16,
    /// Topology of [`VmConfig::vcpus`] that the guest sees, if configured.
    pub topology: Option<Topology>,
    /// The class of the physical CPUs that it may use; `None` means all.
    pub class: Option<CpuClass>,
    /// The physical CPUs that it may use; none means all.
    pub cpus: CpuSet,
    /// Whether each vCPU is pinned to one of them.
    pub pinned: bool,
    /// Its share of CPU time.
    pub share: Share,
    /// Limits of its exits.
    pub budget: Budget,
    /// The effect of a reset.
    pub on_reset: OnReset,
    /// A shell command that it runs, and then powers off.
    pub exec: Option<String>,
    /// The techniques that are switched on.
    pub techniques: Techniques,
    /// The domains that it starts, if it is Xen: at most [`MAX_DOMAINS`].
    pub domains: Vec<DomainConfig>,
    /// The PCI functions that the VM owns: at most [`stile_board::MAX_FUNCTIONS`], none shared with another VM. Those of `disks`, then of
    /// `networks`, then of `folders` are last.
    pub functions: Vec<Address>,
    /// Images that are disks of the emulated machine.
    pub disks: Vec<Drive>,
    /// Images that are copied to the VM's memory: at most [`memory_disks::MAX_MEMORY_DISKS`].
    pub memory_disks: Vec<MemoryDisk>,
    /// The disk with the system that it starts, its own or a served one, if its kernel is [`KernelSource::Disk`].
    pub system_disk: Option<Drive>,
    /// Networks of the emulated machine.
    pub networks: Vec<Network>,
    /// Folders of this machine, each with a tag of its own.
    pub folders: Vec<Folder>,
    /// Images that the service VM serves. In [`VmConfig::served`] they follow the devices whose servers the configuration names.
    pub served_disks: Vec<Drive>,
    /// Folders of this machine that a virtual machine serves that the configuration does not name.
    pub served_folders: Vec<Folder>,
    /// Virtio devices that other virtual machines serve: at most [`stile_board::MAX_SERVED`].
    pub served: Vec<Served>,
    /// Networks of the last ones of them, which a virtual machine serves that the configuration does not name.
    pub served_networks: Vec<Network>,
    /// Its address for sockets (vsock), if the VM `service` serves them.
    pub cid: Option<u32>,
    /// Ports of this machine that lead to its sockets by way of the VM `service`, and its own ports.
    pub forwards: Vec<(u16, u32)>,
    /// The file for the output of its console, if the VM `service` serves one.
    pub console: Option<PathBuf>,
    /// Number of devices that it serves: at most [`stile_board::MAX_SERVED`].
    pub serves: u8,
    /// Its interrupt controller: [`MachineConfig::gic`].
    pub gic: Gic,
}

impl VmConfig {
    /// Number of its functions that are devices which the emulated machine gets for it: the last ones of [`VmConfig::functions`].
    pub const fn emulated_functions(&self) -> usize {
        self.disks.len() + self.networks.len() + self.folders.len()
    }

    /// Memory of its disks in memory, in bytes.
    pub fn disk_memory(&self) -> u64 {
        memory_disks::total(&self.disk_sizes())
    }

    /// Guest-physical addresses of its disks in memory.
    pub fn disk_regions(&self, arch: Arch) -> Vec<Range<u64>> {
        let start = match arch {
            Arch::Aarch64 => map::RAM_BASE + self.memory,
            Arch::X86_64 => pc::disks_start(self.memory, self.disk_memory()),
        };
        memory_disks::places(start, &self.disk_sizes()).collect()
    }

    fn disk_sizes(&self) -> Vec<u64> {
        self.memory_disks.iter().map(|disk| memory_disks::region_size(disk.size)).collect()
    }

    /// Folders of this machine, its own and served ones.
    pub fn all_folders(&self) -> impl Iterator<Item = &Folder> {
        self.folders.iter().chain(&self.served_folders)
    }

    /// Time for which a command waits for the VM's address, in the VM's seconds; `None` without a network, its own or a served one. The
    /// emulator's network always gives an address, on a busy computer late; on a bridge nobody may.
    pub fn seconds_to_address(&self) -> Option<u32> {
        let mut networks = self.networks.iter().chain(&self.served_networks).peekable();
        networks.peek()?;
        Some(if networks.any(|network| network.bridge.is_none()) { 300 } else { 60 })
    }
}

/// Maximum number of domains of a virtual machine, limited by the number of files in its image.
pub const MAX_DOMAINS: usize = 4;

/// A virtual machine that Xen, in one of Stile's, starts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainConfig {
    /// Its kernel: a file that was there when the configuration was read.
    pub kernel: PathBuf,
    /// The kernel's command line.
    pub append: String,
    /// RAM in bytes: a multiple of 2 MiB.
    pub memory: u64,
    /// Virtual CPUs: 1 to [`stile_board::MAX_VCPUS`].
    pub vcpus: u16,
}

impl DomainConfig {
    /// The domain with its kernel's file and that file's name.
    pub fn guest<'a>(&'a self, kernel_name: &'a str, kernel: &'a [u8]) -> GuestDomain<'a> {
        GuestDomain { kernel_name, kernel, bootargs: &self.append, memory: self.memory, vcpus: self.vcpus }
    }
}

/// An architecture that Stile runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    /// 64-bit Arm.
    #[default]
    Aarch64,
    /// 64-bit Intel.
    X86_64,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Arch {
    /// All of them.
    pub const ALL: [Arch; 2] = [Arch::Aarch64, Arch::X86_64];

    /// The architecture with this name.
    ///
    /// # Errors
    /// An unknown name: a sentence that lists the known ones.
    pub fn named(name: &str) -> Result<Arch, String> {
        let known = || Self::ALL.map(Self::name).join(" or ");
        Self::ALL.into_iter().find(|arch| arch.name() == name).ok_or_else(|| format!("Stile does not run on {name}; expected {}", known()))
    }

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Aarch64 => "aarch64",
            Arch::X86_64 => "x86_64",
        }
    }

    /// The option of commands that selects it, with a space behind it; empty for the default.
    pub const fn option(self) -> &'static str {
        match self {
            Arch::Aarch64 => "",
            Arch::X86_64 => "--arch x86_64 ",
        }
    }

    /// The default model of the emulated CPUs.
    pub const fn default_cpu_model(self) -> &'static str {
        match self {
            Arch::Aarch64 => "max",
            Arch::X86_64 => "corei7_skylake_x",
        }
    }

    /// Whether an emulated CPU model has AMD-V instead of VMX: QEMU's `max` and `EPYC` models.
    pub fn has_amd_v(self, cpu_model: &str) -> bool {
        let name = cpu_model.split(',').next().unwrap_or_default();
        self == Arch::X86_64 && (name == "max" || name.starts_with("EPYC"))
    }

    /// The guest-physical address of RAM's first byte.
    pub const fn ram_base(self) -> u64 {
        match self {
            Arch::Aarch64 => map::RAM_BASE,
            Arch::X86_64 => 0,
        }
    }
}

/// The source of a virtual machine's kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelSource {
    /// A file that was there when the configuration was read.
    File(PathBuf),
    /// A kernel of Debian.
    Debian(DebianKernel),
    /// The kernel of the system on the first disk, with its initial RAM file system.
    Disk,
    /// Stile itself, with the machine that it runs in the virtual machine.
    Stile(Box<MachineConfig>),
}

impl KernelSource {
    /// The word for Stile with a VM of Debian's. A configuration file may follow it, after a colon.
    pub const STILE: &'static str = "stile";
}

/// A kernel of Debian's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebianKernel {
    /// `debian` and `debian:newest`: the newest that the stable release and its backports have.
    Newest,
    /// `debian:6.12`: the stable release's.
    V6_12,
    /// `debian:6.1`: the release's before that.
    V6_1,
    /// `debian-general`: the stable release's with all drivers and file systems. On Arm it is `debian:6.12`; on x86-64 the kernels with
    /// other names are for clouds.
    General,
    /// `debian-installer`: the installer, with its own initial RAM file system.
    Installer,
    /// `debian-xen`: Xen of the stable release, for a virtual machine with an EL2.
    Xen,
    /// `debian-edk2`: UEFI firmware instead of a kernel, which starts the disks' boot loaders.
    Edk2,
}

impl DebianKernel {
    /// Linux's kernels, the newest first.
    const LINUX: [Self; 4] = [Self::Newest, Self::V6_12, Self::General, Self::V6_1];

    /// The kernel of the virtual machine that `stile run` adds to serve devices.
    pub const fn server(arch: Arch, has_folders: bool) -> Self {
        if has_folders && !Self::V6_1.has_folders(arch, false) { Self::General } else { Self::V6_1 }
    }

    /// Whether the kernel has the file system of shared folders: virtiofs if they are `served`, and 9P if not. True for kernels that are
    /// not in [`LINUX`](Self::LINUX).
    pub const fn has_folders(self, arch: Arch, served: bool) -> bool {
        match (self, arch) {
            (Self::Newest, _) => false,
            (Self::V6_12, Arch::X86_64) => false,
            (Self::V6_1, Arch::X86_64) => served,
            _ => true,
        }
    }

    /// The kernels that [have](Self::has_folders) the file system.
    pub fn with_folders(arch: Arch, served: bool) -> impl Iterator<Item = Self> {
        let has = move |kernel: &Self| kernel.has_folders(arch, served);
        // The general kernel is 6.12 on Arm.
        let is_own = move |kernel: &Self| arch == Arch::X86_64 || *kernel != Self::General;
        Self::LINUX.into_iter().filter(has).filter(is_own)
    }

    /// Whether it is Linux.
    pub const fn is_linux(self) -> bool {
        !matches!(self, Self::Xen | Self::Edk2)
    }

    /// Every word that names a kernel of Debian's, and the kernel that it names.
    pub const WORDS: [(&'static str, DebianKernel); 8] = [
        ("debian", DebianKernel::Newest),
        ("debian:newest", DebianKernel::Newest),
        ("debian:6.12", DebianKernel::V6_12),
        ("debian:6.1", DebianKernel::V6_1),
        ("debian-general", DebianKernel::General),
        ("debian-installer", DebianKernel::Installer),
        ("debian-xen", DebianKernel::Xen),
        ("debian-edk2", DebianKernel::Edk2),
    ];

    /// The word that names it.
    pub const fn word(self) -> &'static str {
        match self {
            DebianKernel::Newest => "debian",
            DebianKernel::V6_12 => "debian:6.12",
            DebianKernel::V6_1 => "debian:6.1",
            DebianKernel::General => "debian-general",
            DebianKernel::Installer => "debian-installer",
            DebianKernel::Xen => "debian-xen",
            DebianKernel::Edk2 => "debian-edk2",
        }
    }
}

/// The source of a virtual machine's initial RAM file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitrdSource {
    /// No initial RAM file system.
    None,
    /// A file that was there when the configuration was read.
    File(PathBuf),
    /// A minimal system that Stile builds from Debian's busybox.
    Busybox,
    /// The initial RAM file system of the kernel's package.
    Bundled,
    /// The initial RAM file system of Debian's installer, and a file with answers to its questions.
    Answered(PathBuf),
}

impl MachineConfig {
    /// The memory of all virtual machines together, with disks in memory, in bytes.
    pub fn vm_memory(&self) -> u64 {
        self.vms.iter().map(|vm| vm.memory + vm.disk_memory()).sum()
    }

    /// Whether a virtual machine owns PCI functions, so that the board needs an SMMU.
    pub fn has_functions(&self) -> bool {
        self.vms.iter().any(|vm| !vm.functions.is_empty())
    }

    /// Bytes that Stile reserves for the shadow tables of virtual machines with an EL2.
    fn shadow_memory(&self) -> u64 {
        let nested = self.vms.iter().filter(|vm| vm.techniques.nested != stile_blob::Nested::Off);
        nested.map(|vm| u64::from(vm.vcpus) * stile_board::SHADOW_MEMORY).sum()
    }

    /// Physical memory that Stile needs beside the virtual machines' and the image, in bytes: [`RESERVED`] and shadow tables.
    pub fn reserved(&self) -> u64 {
        RESERVED + self.shadow_memory()
    }

    /// Memory in bytes and number of CPUs that a virtual machine needs to run this machine.
    pub fn as_vm(&self) -> (u64, u32) {
        // The image is in this memory, too, and has the disks: SPARE has no room for them.
        let disks: u64 = self.vms.iter().flat_map(|vm| &vm.memory_disks).map(|disk| disk.size).sum();
        let enough = (self.vm_memory() + disks + self.shadow_memory() + SPARE).next_multiple_of(map::RAM_GRANULE);
        (self.memory.map_or(enough, |memory| memory.next_multiple_of(map::RAM_GRANULE)), self.cpus)
    }

    /// The machine's memory in bytes with an image of `image_len` bytes: as configured, or else sufficient.
    ///
    /// # Errors
    /// The configured memory is insufficient: a sentence with the required amount.
    pub fn physical_memory(&self, image_len: u64) -> Result<u64, String> {
        let (used, reserved) = (self.vm_memory() + image_len, self.reserved());
        match self.memory {
            None => Ok((used + self.shadow_memory() + SPARE).next_multiple_of(map::RAM_GRANULE)),
            Some(memory) if memory >= used + reserved => Ok(memory),
            Some(memory) => Err(format!(
                "the machine's memory is {}, but the virtual machines ({}), the image ({}) and Stile ({}) need {}",
                units::size(memory),
                units::size(self.vm_memory()),
                units::size(image_len.next_multiple_of(1 << 20)),
                units::size(reserved),
                units::size((used + reserved).next_multiple_of(1 << 20)),
            )),
        }
    }

    /// The CPUs of each NUMA node, among which CPUs and memory are divided evenly. Empty with a single node.
    pub fn node_cpus(&self) -> Vec<Range<u32>> {
        let start = |node: u32| node * self.cpus / self.nodes;
        if self.nodes < 2 { Vec::new() } else { (0..self.nodes).map(|node| start(node)..start(node + 1)).collect() }
    }

    /// The physical CPUs.
    pub fn present_cpus(&self) -> CpuSet {
        CpuSet::first_few(self.cpus as usize)
    }
}
