//! The configuration: the virtual machines and the machine-wide settings.

use core::ops::Range;

use heapless::Vec;
use serde::{Deserialize, Serialize};
use stile_board::memory_disks::{self, MAX_MEMORY_DISKS};
use stile_board::{CpuSet, MAX_FUNCTIONS, MAX_SERVED, map, pc};

use crate::{Served, Topology};

/// Maximum length of a virtual machine's name, in characters.
pub const MAX_NAME_LEN: usize = 32;

/// Maximum number of files loaded into one virtual machine.
pub const MAX_LOADS: usize = 16 + MAX_MEMORY_DISKS;

/// The settings of the whole machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether the ledger is sent after the last virtual machine has ended.
    pub report_exits: bool,
    /// The time slice of a vCPU that shares its CPU, in microseconds: 100 to 1,000,000.
    pub slice_us: u32,
    /// The applied mitigations of speculative-execution attacks.
    pub mitigations: Mitigations,
}

/// The set of mitigations of speculative-execution attacks that is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mitigations {
    /// Those that the CPU needs.
    #[default]
    Auto,
    /// None.
    Off,
    /// Each that the CPU can execute, needed or not: to measure their cost.
    All,
}

impl Mitigations {
    /// The configuration's words for the variants.
    pub const WORDS: [(&'static str, Mitigations); 3] = [("off", Mitigations::Off), ("auto", Mitigations::Auto), ("all", Mitigations::All)];
}

/// One virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm<'a> {
    /// Unique; 1 to [`MAX_NAME_LEN`] characters of `a` to `z`, `0` to `9` and `-`.
    pub name: &'a str,
    /// RAM in bytes: see [`stile_board::map::is_ram_size`].
    pub memory: u64,
    /// The guest-physical address of RAM's first byte: a multiple of 2 MiB, at most [`stile_board::map::RAM_BASE`].
    pub ram_base: u64,
    /// Memory for firmware at [`stile_board::map::FIRMWARE_BASE`], in bytes: a multiple of 2 MiB, at most
    /// [`stile_board::map::FIRMWARE_MAX`]. With any, there is also NOR flash for the firmware's variables.
    pub firmware: u64,
    /// Sizes of the regions of disks in memory, which are behind RAM: multiples of [`memory_disks::REGION_ALIGN`], in the order of
    /// [`Vm::disk_regions`].
    pub disks: Vec<u64, MAX_MEMORY_DISKS>,
    /// Virtual CPUs: 1 to [`stile_board::MAX_VCPUS`].
    pub vcpus: u16,
    /// Topology of the vCPUs that the guest sees; [`Topology::flat`] if not configured.
    pub topology: Option<Topology>,
    /// The class of the physical CPUs that it may use; `None` means all.
    pub class: Option<CpuClass>,
    /// The physical CPUs that it may use; none means all. Use [`Vm::cpus_of`].
    #[serde(with = "crate::cpus")]
    pub cpus: CpuSet,
    /// Whether each vCPU is pinned to one of those CPUs.
    pub pinned: bool,
    /// Its share of CPU time.
    pub share: Share,
    /// Entry point of the first vCPU: a guest-physical address in RAM or firmware, and with [`Mode::Reset`] a multiple of
    /// 4.
    pub entry: u64,
    /// Guest-physical address of the boot information (a device tree, or another boot protocol's structure),
    /// passed to the first vCPU in a register: in RAM, a multiple of 8.
    pub info: u64,
    /// The initial processor mode of the first vCPU.
    pub mode: Mode,
    /// The files copied into RAM and firmware before the first instruction, in this order.
    pub loads: Vec<Load, MAX_LOADS>,
    /// The effect of a reset by the guest.
    pub on_reset: OnReset,
    /// The enabled techniques.
    pub techniques: Techniques,
    /// The PCI functions that it owns, by their routing IDs (bus, device, function) in segment 0; no other
    /// virtual machine has them.
    pub functions: Vec<u16, MAX_FUNCTIONS>,
    /// The virtio devices that other virtual machines serve it, with access to all of its RAM.
    pub served: Vec<Served, MAX_SERVED>,
    /// Number of devices that it serves: see [`crate::Vms::served_by`].
    pub serves: u8,
    /// The interrupt controller of an Arm guest, which must be the machine's.
    pub gic: Gic,
}

impl Vm<'_> {
    /// Guest-physical addresses of RAM and the disks in memory behind it. Those of a PC, whose RAM starts at 0, include its devices'.
    pub fn memory_span(&self) -> Range<u64> {
        let disks = self.disk_memory();
        let end = if self.ram_base == 0 { pc::end(&pc::memory(self.memory, disks)) } else { self.ram_base + self.memory + disks };
        self.ram_base..end
    }

    /// Memory behind RAM for disks, in bytes.
    pub fn disk_memory(&self) -> u64 {
        memory_disks::total(&self.disks)
    }

    /// Guest-physical addresses of the disks in memory.
    pub fn disk_regions(&self) -> impl Iterator<Item = Range<u64>> {
        memory_disks::places(self.memory_span().end - self.disk_memory(), &self.disks)
    }

    /// Whether the VM serves devices, or other VMs serve it.
    pub fn has_links(&self) -> bool {
        !self.served.is_empty() || self.serves != 0
    }

    /// Whether the `len` bytes at a guest-physical address lie in RAM, or in the memory for firmware.
    pub(crate) fn is_in_ram(&self, gpa: u64, len: u64) -> bool {
        let in_firmware = self.firmware != 0 && map::contains(map::FIRMWARE_BASE, self.firmware, gpa, len);
        in_firmware || map::contains(self.ram_base, self.memory, gpa, len)
    }

    /// Whether the `len` bytes at a guest-physical address lie in RAM, in the memory for firmware, or in one disk in memory.
    pub(crate) fn contains(&self, gpa: u64, len: u64) -> bool {
        self.is_in_ram(gpa, len) || self.is_in_disk(gpa, len)
    }

    /// Whether the `len` bytes at a guest-physical address lie in one disk in memory.
    fn is_in_disk(&self, gpa: u64, len: u64) -> bool {
        self.disk_regions().any(|region| map::contains(region.start, region.end - region.start, gpa, len))
    }

    /// Topology of the vCPUs that the guest sees.
    pub fn arrangement(&self) -> Topology {
        self.topology.unwrap_or(Topology::flat(self.vcpus))
    }

    /// The physical CPUs out of `present` on which vCPU number `vcpu` may run: [`cpus_of`].
    pub fn cpus_of(&self, vcpu: usize, present: &CpuSet) -> CpuSet {
        cpus_of(&self.cpus, self.pinned, vcpu, present)
    }

    /// The physical CPUs out of `present` on which any of its vCPUs may run.
    pub fn cpus_of_all(&self, present: &CpuSet) -> CpuSet {
        (0..usize::from(self.vcpus)).fold(CpuSet::EMPTY, |all, vcpu| all.or(&self.cpus_of(vcpu, present)))
    }
}

/// The physical CPUs out of `present` on which vCPU number `vcpu` of a virtual machine may run. `cpus` and `pinned` are
/// as in [`Vm`].
///
/// Empty if none of the virtual machine's CPUs is present. A pinned vCPU has exactly one: vCPU *i* has CPU number *i* of
/// the virtual machine's CPUs, modulo their number.
pub fn cpus_of(cpus: &CpuSet, pinned: bool, vcpu: usize, present: &CpuSet) -> CpuSet {
    let cpus = if cpus.is_empty() { *present } else { cpus.and(present) };
    let count = cpus.len();
    if !pinned || count == 0 {
        return cpus;
    }
    cpus.iter().nth(vcpu % count).into_iter().collect()
}

/// A class of physical CPUs: those of the same capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CpuClass {
    /// The class with this number in the order of descending capacity, from 0.
    Nth(u8),
    /// The class with the least capacity.
    Last,
}

/// The architecture of an Arm machine's interrupt controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gic {
    /// GICv2, with at most [`MAX_GICV2_VCPUS`] vCPUs.
    V2,
    /// GICv3.
    #[default]
    V3,
}

/// Most vCPUs of a virtual machine with a GICv2.
pub const MAX_GICV2_VCPUS: u16 = 8;

impl Gic {
    /// The number of the architecture.
    pub const fn version(self) -> u8 {
        match self {
            Gic::V2 => 2,
            Gic::V3 => 3,
        }
    }
}

/// A virtual machine's share of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// CPU time relative to other virtual machines that compete for the same CPUs: 1 to
    /// [`Share::MAX_WEIGHT`].
    pub weight: u16,
    /// Upper limit of CPU time, in percent of one CPU: 1 to [`Share::MAX_CAP`]; `None` for no limit.
    pub cap: Option<u16>,
}

impl Share {
    /// Maximum weight.
    pub const MAX_WEIGHT: u16 = 10_000;
    /// Maximum cap: all CPUs.
    pub const MAX_CAP: u16 = 100 * stile_board::MAX_CPUS as u16;
    /// The period over which a cap is enforced, in microseconds.
    pub const PERIOD_US: u32 = 100_000;
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 100, cap: None }
    }
}

/// The initial processor mode of a virtual machine's first vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Reset state, as the Arm boot protocol requires: translation and caches off, [`Vm::info`] in `x0`.
    #[default]
    Reset,
    /// 32-bit protected mode without paging, as Multiboot and PVH require: flat segments, [`Vm::info`] in
    /// `EBX`, and Multiboot's magic number in `EAX`.
    Protected,
    /// 64-bit mode, as the Linux x86 boot protocol requires: flat segments, [`Vm::info`] in `RSI`.
    Long {
        /// The guest-physical address of the page tables, in RAM, a multiple of 4096.
        tables: u64,
    },
}

/// A file of the blob and its destination in a virtual machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Offset of the file from the blob's start in bytes: a multiple of [`crate::FILE_ALIGN`].
    pub offset: u64,
    /// Length of the file in bytes. If 0, [`Load::offset`] is ignored.
    pub len: u64,
    /// Guest-physical address of the first byte.
    pub gpa: u64,
    /// Size in RAM, at least [`Load::len`]: bytes after the file are zeroed.
    pub mem_len: u64,
}

/// The effect of a reset by the guest (PSCI `SYSTEM_RESET`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnReset {
    /// The files are loaded again and the first vCPU restarts.
    #[default]
    Restart,
    /// The virtual machine ends, as if it had powered off.
    Stop,
    /// Like [`OnReset::Restart`], this many times; the next reset ends the virtual machine.
    RestartAtMost(u32),
}

/// Techniques that avoid exits or make them cheaper, each with its own switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Techniques {
    /// `WFI` is not trapped while no other vCPU wants the CPU.
    pub wfi_passthrough: bool,
    /// Upper limit of the hardware virtualization of local APICs.
    pub apic_virtualization: ApicVirtualization,
    /// Whether the virtual machine has virtual EL2 or VMX, and which hardware support it uses.
    pub nested: Nested,
    /// The cache of decoded instructions, where Stile decodes any.
    pub decode_cache: DecodeCache,
    /// Whether a guest's group 1 has its own binary point.
    pub binary_point: BinaryPoint,
    /// Programmer of the deadline timer of an x86-64 guest's local APIC.
    pub timer: TimerAccess,
    /// The way of a guest's interprocessor interrupts.
    pub ipi: IpiAccess,
    /// The exception level that takes the physical interrupts of an Arm guest's timers and SGIs.
    pub interrupts: Interrupts,
    /// For measurements: avoidable work that is done at every exit. If set on any VM, even with all its
    /// switches off, all VMs of the machine use slower vectors.
    pub ablate: Option<Ablation>,
    /// For measurements: the guest reads the CPU's counters of cycles and instructions, Stile's included, by registers that trap.
    pub counters: bool,
}

impl Default for Techniques {
    fn default() -> Self {
        Self {
            wfi_passthrough: true,
            apic_virtualization: ApicVirtualization::Posted,
            nested: Nested::Off,
            decode_cache: DecodeCache::Verify,
            binary_point: BinaryPoint::Auto,
            timer: TimerAccess::Passthrough,
            ipi: IpiAccess::Trapped,
            interrupts: Interrupts::Virtual,
            ablate: None,
            counters: false,
        }
    }
}

/// Hardware virtualization of an x86-64 guest's local APICs: each level includes those before it. An
/// unsupported level falls back to the next lower one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ApicVirtualization {
    /// None: every register access exits, and interrupts are injected in software.
    Off,
    /// Register reads and task-priority writes go to the virtual-APIC page.
    Registers,
    /// Virtual-interrupt delivery, EOI virtualization and self-IPI virtualization.
    Delivery,
    /// Posted interrupts: delivered to a running guest without an exit.
    #[default]
    Posted,
}

impl ApicVirtualization {
    /// The configuration's words for the variants.
    pub const WORDS: [(&'static str, ApicVirtualization); 4] = [
        ("off", ApicVirtualization::Off),
        ("registers", ApicVirtualization::Registers),
        ("delivery", ApicVirtualization::Delivery),
        ("posted", ApicVirtualization::Posted),
    ];
}

/// The implementation of a virtual machine's own EL2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nested {
    /// No EL2.
    #[default]
    Off,
    /// Every access to an EL2 register, and to an EL1 register that belongs to the nested guest, traps
    /// (FEAT_NV).
    Nv,
    /// Accesses to registers that merely hold a value go to memory or to EL1 registers (FEAT_NV2).
    Nv2,
    /// VMX with Hyper-V's enlightened VMCS (x86-64).
    Enlightened,
}

impl Nested {
    /// The configuration's words for the variants.
    pub const WORDS: [(&'static str, Nested); 4] =
        [("off", Nested::Off), ("nv", Nested::Nv), ("nv2", Nested::Nv2), ("enlightened", Nested::Enlightened)];
}

/// Method by which cached decoded instructions are kept coherent with guest code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DecodeCache {
    /// Not cached: each instruction is fetched and decoded.
    Off,
    /// Verified: code bytes and the page-table entries that map them are compared at each use.
    #[default]
    Verify,
    /// Write-protected: those pages are read-only for the guest, until it writes.
    Protect,
}

impl DecodeCache {
    /// The configuration's words for the variants.
    pub const WORDS: [(&'static str, DecodeCache); 3] =
        [("off", DecodeCache::Off), ("protect", DecodeCache::Protect), ("verify", DecodeCache::Verify)];
}

/// Whether group 1 of an Arm guest's virtual interrupts has its own binary point (`ICC_BPR1_EL1`), or shares
/// group 0's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BinaryPoint {
    /// Its own, as the guest chooses (`ICC_CTLR_EL1.CBPR`).
    Own,
    /// Group 0's: `CBPR` reads as one and can't be cleared. Accesses to registers common to both groups trap.
    Common,
    /// Common on QEMU's board, whose interrupt controller aborts the emulator once `ICC_BPR1_EL1` was written
    /// with 8. Own elsewhere, and in a virtual machine that has an EL2.
    #[default]
    Auto,
}

impl BinaryPoint {
    /// The configuration's words for the variants.
    pub const WORDS: [(&'static str, BinaryPoint); 3] =
        [("own", BinaryPoint::Own), ("common", BinaryPoint::Common), ("auto", BinaryPoint::Auto)];
}

/// Access of an x86-64 guest to its local APIC's timer in TSC-deadline mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimerAccess {
    /// Every write of `IA32_TSC_DEADLINE` exits.
    Trapped,
    /// While a vCPU has its CPU for itself, it reads and writes the physical register.
    #[default]
    Passthrough,
    /// In addition, with [`IpiAccess::Direct`], the guest may have expiries notify it without an exit.
    Direct,
}

impl TimerAccess {
    /// Configuration keywords.
    pub const WORDS: [(&'static str, TimerAccess); 3] =
        [("trapped", TimerAccess::Trapped), ("passthrough", TimerAccess::Passthrough), ("direct", TimerAccess::Direct)];
}

/// Access of a guest to the physical registers that send interprocessor interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpiAccess {
    /// None: every interprocessor interrupt exits at its sender.
    #[default]
    Trapped,
    /// The guest sends them itself, to any physical CPU. Only for a virtual machine that all others trust.
    Direct,
    /// x86-64: the guest sends them through code of Stile's in a second EPT view, to CPUs of its own vCPUs.
    Gate,
}

impl IpiAccess {
    /// Configuration keywords.
    pub const WORDS: [(&'static str, IpiAccess); 3] =
        [("trapped", IpiAccess::Trapped), ("direct", IpiAccess::Direct), ("gate", IpiAccess::Gate)];
}

/// Delivery of the SGIs and timer interrupts of an Arm guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Interrupts {
    /// By list registers: each exits once.
    #[default]
    Virtual,
    /// While a vCPU has its CPU for itself, they are physical interrupts that EL1 takes.
    Direct,
}

impl Interrupts {
    /// Configuration keywords.
    pub const WORDS: [(&'static str, Interrupts); 2] = [("virtual", Interrupts::Virtual), ("direct", Interrupts::Direct)];
}

/// Techniques of the exit path to undo, for measurements: the named guest state is saved and restored at
/// every exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ablation {
    /// EL1 system registers.
    pub state: bool,
    /// Floating-point and vector registers.
    pub fp: bool,
    /// The guest's timers, which are disabled while another vCPU is loaded.
    pub timer: bool,
    /// List registers.
    pub lists: bool,
    /// Trap controls and the second stage.
    pub traps: bool,
}
