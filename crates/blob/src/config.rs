//! The configuration: which virtual machines there are, and how they are run.

use heapless::Vec;
use serde::{Deserialize, Serialize};
use stile_board::MAX_VMS;

/// The longest name of a virtual machine, in characters.
pub const MAX_NAME_LEN: usize = 32;

/// The most files that are loaded into one virtual machine.
pub const MAX_LOADS: usize = 16;

/// Everything that Stile is told at start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine<'a> {
    /// The virtual machines, at least one. Their index is their number everywhere else.
    #[serde(borrow)]
    pub vms: Vec<Vm<'a>, MAX_VMS>,
    /// Whether the ledger is sent when the last virtual machine has ended.
    pub report_exits: bool,
    /// The time slice of a vCPU that shares its CPU, in microseconds: 100 to 1,000,000.
    pub slice_us: u32,
    /// Which mitigations of speculative-execution attacks are applied.
    pub mitigations: Mitigations,
}

/// Which mitigations of speculative-execution attacks are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mitigations {
    /// Those that the CPU needs.
    #[default]
    Auto,
    /// None.
    Off,
    /// Each that the CPU can execute, needed or not: to measure its cost.
    All,
}

impl Mitigations {
    /// The names in a configuration.
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
    /// Virtual CPUs: 1 to [`stile_board::MAX_VCPUS`].
    pub vcpus: u8,
    /// The physical CPUs that it may use, a bit each; 0 is all there are. Use [`Vm::cpus_of`].
    pub cpus: u64,
    /// Whether each vCPU stays on one CPU of those.
    pub pinned: bool,
    /// How much CPU time it gets.
    pub share: Share,
    /// Where the first vCPU starts: a guest-physical address in RAM, and with [`Mode::Reset`] a multiple of 4.
    pub entry: u64,
    /// The guest-physical address of what the guest is told about its machine (a device tree, or another boot protocol's information), which the first
    /// vCPU gets in a register: in RAM, a multiple of 8.
    pub info: u64,
    /// What the first vCPU starts in.
    pub mode: Mode,
    /// The files that are copied into RAM before the first instruction, in this order.
    pub loads: Vec<Load, MAX_LOADS>,
    /// What a reset by the guest does.
    pub on_reset: OnReset,
    /// The techniques that are switched on.
    pub techniques: Techniques,
}

impl Vm<'_> {
    /// The physical CPUs, a bit each, that vCPU number `vcpu` may run on, out of those `present`:
    /// [`cpus_of`].
    pub fn cpus_of(&self, vcpu: usize, present: u64) -> u64 {
        cpus_of(self.cpus, self.pinned, vcpu, present)
    }
}

/// The physical CPUs, a bit each, that vCPU number `vcpu` of a virtual machine may run on, out of
/// those `present`. `cpus` and `pinned` are as in [`Vm`].
///
/// Zero if the virtual machine names only CPUs that are not there. A pinned vCPU has exactly one:
/// vCPU *i* has the *i*-th of the virtual machine's CPUs, round again from the first when there are
/// fewer CPUs than vCPUs.
pub fn cpus_of(cpus: u64, pinned: bool, vcpu: usize, present: u64) -> u64 {
    let cpus = if cpus == 0 { present } else { cpus & present };
    let count = cpus.count_ones() as usize;
    if !pinned || count == 0 {
        return cpus;
    }
    let mut rest = cpus;
    for _ in 0..vcpu % count {
        rest &= rest - 1;
    }
    rest & rest.wrapping_neg()
}

/// How much CPU time a virtual machine gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// CPU time relative to other virtual machines that want the same CPUs: 1 to [`Share::MAX_WEIGHT`].
    pub weight: u16,
    /// The most CPU time, in percent of one CPU: 1 to [`Share::MAX_CAP`]; `None` is no limit.
    pub cap: Option<u16>,
}

impl Share {
    /// The highest weight.
    pub const MAX_WEIGHT: u16 = 10_000;
    /// The highest cap: all CPUs.
    pub const MAX_CAP: u16 = 100 * stile_board::MAX_CPUS as u16;
    /// The period in which a cap holds, in microseconds.
    pub const PERIOD_US: u32 = 100_000;
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 100, cap: None }
    }
}

/// The state in which a virtual machine's first vCPU starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// What a CPU is in after reset, as the Arm boot protocol has it: translation and caches off, [`Vm::info`] in `x0`.
    #[default]
    Reset,
    /// 32-bit protected mode without paging, as Multiboot and PVH have it: flat segments, [`Vm::info`] in `EBX`, and Multiboot's magic
    /// number in `EAX`.
    Protected,
    /// 64-bit mode, as the Linux x86 boot protocol has it: flat segments, [`Vm::info`] in `RSI`.
    Long {
        /// The guest-physical address of the page tables, in RAM, a multiple of 4096.
        tables: u64,
    },
}

/// A file of the blob, and where it goes in a virtual machine's RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Where the file is, in bytes from the blob's start: a multiple of [`crate::FILE_ALIGN`].
    pub offset: u64,
    /// Its length in bytes. With none, [`Load::offset`] has no meaning.
    pub len: u64,
    /// Where its first byte goes.
    pub gpa: u64,
    /// What it takes in RAM, at least [`Load::len`]: bytes after the file are zeroed.
    pub mem_len: u64,
}

/// What a reset by the guest (PSCI `SYSTEM_RESET`) does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnReset {
    /// The files are loaded again and the first vCPU starts anew.
    #[default]
    Restart,
    /// The virtual machine ends, as if it had powered off.
    Stop,
    /// As [`OnReset::Restart`], this many times; the next reset ends the virtual machine.
    RestartAtMost(u32),
}

/// Techniques that avoid exits or make them cheaper, each a switch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Techniques {
    /// `WFI` is not trapped while no other vCPU wants the CPU.
    pub wfi_passthrough: bool,
    /// The most that the processor does for local APICs.
    pub apic_virtualization: ApicVirtualization,
    /// Whether the virtual machine has an EL2 of its own, and what the processor does for it.
    pub nested: Nested,
    /// How decoded instructions are remembered, where Stile decodes any.
    pub decode_cache: DecodeCache,
    /// Whether a guest's group 1 has a binary point of its own.
    pub binary_point: BinaryPoint,
    /// An experiment: what is done at every exit that need not be. With some, even if none of its
    /// switches is on, all virtual machines of the machine take a longer way in.
    pub ablate: Option<Ablation>,
}

impl Default for Techniques {
    fn default() -> Self {
        Self {
            wfi_passthrough: true,
            apic_virtualization: ApicVirtualization::Posted,
            nested: Nested::Off,
            decode_cache: DecodeCache::Verify,
            binary_point: BinaryPoint::Auto,
            ablate: None,
        }
    }
}

/// What the processor does for the local APICs of an x86-64 guest: each includes those before it. Of what it can't do, the next
/// lower one is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ApicVirtualization {
    /// Nothing: every access to a register exits, and interrupts are injected by hand.
    Off,
    /// Registers are read from the virtual-APIC page, and the task priority is written there.
    Registers,
    /// Interrupts are delivered and ended, and those to oneself sent.
    Delivery,
    /// Interrupts of others come to a guest that runs.
    #[default]
    Posted,
}

impl ApicVirtualization {
    /// The words for them in the configuration.
    pub const WORDS: [(&'static str, ApicVirtualization); 4] = [
        ("off", ApicVirtualization::Off),
        ("registers", ApicVirtualization::Registers),
        ("delivery", ApicVirtualization::Delivery),
        ("posted", ApicVirtualization::Posted),
    ];
}

/// How a virtual machine's own EL2 is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nested {
    /// It has none.
    #[default]
    Off,
    /// Every access to a register of EL2, and to EL1's that belong to the guest of the guest, traps (FEAT_NV).
    Nv,
    /// Those that only hold a value go to memory or to EL1's registers (FEAT_NV2).
    Nv2,
}

impl Nested {
    /// The words for them in the configuration.
    pub const WORDS: [(&'static str, Nested); 3] = [("off", Nested::Off), ("nv", Nested::Nv), ("nv2", Nested::Nv2)];
}

/// How the decoded form of an instruction that touches a device is kept right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DecodeCache {
    /// Not remembered: each is fetched and decoded.
    Off,
    /// By a look at the code, and at the tables that lead to it, at each use.
    #[default]
    Verify,
    /// By taking the right to write those pages from the guest, until it writes.
    Protect,
}

impl DecodeCache {
    /// The words for them in the configuration.
    pub const WORDS: [(&'static str, DecodeCache); 3] =
        [("off", DecodeCache::Off), ("protect", DecodeCache::Protect), ("verify", DecodeCache::Verify)];
}

/// Whether group 1 of an Arm guest's virtual interrupts has a binary point of its own (`ICC_BPR1_EL1`), or that of group 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BinaryPoint {
    /// Its own, as the guest chooses (`ICC_CTLR_EL1.CBPR`).
    Own,
    /// That of group 0: `CBPR` reads as one and can't be cleared. Accesses of the registers that both groups share trap.
    Common,
    /// Common on QEMU's board, whose interrupt controller ends the emulator after `ICC_BPR1_EL1` was written with 8. Its own
    /// elsewhere, and in a virtual machine that has an EL2.
    #[default]
    Auto,
}

impl BinaryPoint {
    /// The words for them in the configuration.
    pub const WORDS: [(&'static str, BinaryPoint); 3] =
        [("own", BinaryPoint::Own), ("common", BinaryPoint::Common), ("auto", BinaryPoint::Auto)];
}

/// Techniques of the exit path that are done without: what the guest has in the CPU is moved out
/// and in again at every exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ablation {
    /// The registers of the guest's kernel.
    pub state: bool,
    /// Floating-point and vector registers.
    pub fp: bool,
    /// The guest's timers, which are stopped.
    pub timer: bool,
    /// The virtual interrupts that are in the CPU.
    pub lists: bool,
    /// What says which of the guest's accesses trap, and the second stage.
    pub traps: bool,
}
