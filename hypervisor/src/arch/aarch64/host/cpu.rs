//! A physical CPU's block: what the exit path finds through SP_EL2, and the CPU's stack below it.

use core::mem::offset_of;

use stile_ledger::Row;
use stile_trace::Recorder;

use super::sysreg::{read_sysreg, write_sysreg};
use crate::cpu::{Block, Leave};
use crate::vm::Vcpu;

/// x0 to x30 of the vCPU that is loaded: those that the exit path saved, until entry.
#[repr(C)]
pub struct Frame {
    /// By register number. Which are valid depends on the stub: see `exit.S`.
    pub x: [u64; 31],
}

impl Frame {
    /// Register `n` as an operand: 31 is the zero register.
    #[inline(always)]
    pub fn get(&self, n: usize) -> u64 {
        self.x.get(n).copied().unwrap_or(0)
    }

    /// Writes register `n`; register 31 takes nothing.
    #[inline(always)]
    pub fn set(&mut self, n: usize, value: u64) {
        if let Some(x) = self.x.get_mut(n) {
            *x = value;
        }
    }
}

/// Room for the registers and the stack of an exception at EL2, which may have come because the stack is full.
#[repr(C, align(16))]
struct Emergency {
    registers: [u64; 32],
    stack: [u8; 8192],
}

/// Words of a CPU that are read while its block is borrowed: not part of it.
#[repr(C)]
pub struct Local {
    /// Number of this CPU.
    pub index: usize,
}

impl Local {
    /// The words of CPU `index`.
    pub const fn new(index: usize) -> Local {
        Local { index }
    }
}

/// The block. Only its own CPU has a reference to it.
#[repr(C, align(64))]
pub struct Cpu {
    /// At the block's start, so that SP_EL2 points to it.
    pub frame: Frame,
    /// The counter at the exit being handled.
    pub since: u64,
    /// Where a trace's records go. Behind `since`: the vectors store both at once.
    pub recorder: Recorder,
    /// Rows of the loaded vCPU's ledger.
    pub rows: *mut Row,
    /// Exits that the vectors counted since the vCPU was loaded.
    pub taken: u64,
    /// Identification registers as the loaded vCPU sees them.
    id_view: *const [u64; 64],
    /// The vCPU that is loaded.
    pub vcpu: Option<&'static Vcpu>,
    /// Why the vCPU is to be left: set by a handler that returns [`Outcome::leave`](crate::cpu::Outcome::leave).
    pub leave: Leave,
    /// When the slice of the vCPU that runs ends, if the CPU is shared now.
    pub slice_end: Option<u64>,
    /// Present setting of this CPU's timer, in ticks of the counter.
    pub deadline: Option<u64>,
    /// WFI and WFE trap.
    pub waiting_trapped: bool,
    /// FP, SIMD and SVE registers trap.
    pub fp_trapped: bool,
    /// Number of this CPU.
    pub index: usize,
    /// Words that are read while the block is borrowed.
    pub local: Option<&'static Local>,
    /// Its affinity.
    pub mpidr: u64,
    /// Taken branches that overwrite its branch history, for `speculation.S`: 0 if none are needed.
    pub history_branches: u64,
    emergency: Emergency,
}

/// Offsets for `exit.S`.
pub const X: usize = offset_of!(Cpu, frame.x);
/// Offset of `since`, for `exit.S`.
pub const SINCE: usize = offset_of!(Cpu, since);
/// Offset of `rows`, for `exit.S`.
pub const ROWS: usize = offset_of!(Cpu, rows);
/// Offset of `taken`, for `exit.S`.
pub const TAKEN: usize = offset_of!(Cpu, taken);
/// Offset of `id_view`, for `exit.S`.
pub const ID_VIEW: usize = offset_of!(Cpu, id_view);
/// Offset of `history_branches`, for `exit.S`.
pub const HISTORY_BRANCHES: usize = offset_of!(Cpu, history_branches);
/// Offset of the recorder's slot, for `exit.S`.
pub const RECORD_SLOT: usize = offset_of!(Cpu, recorder) + stile_trace::SLOT;
/// Offset of the recorder's count of dropped records, for `exit.S`.
pub const RECORDS_DROPPED: usize = offset_of!(Cpu, recorder) + stile_trace::DROPPED;
/// Offset of `vcpu`, for `exit.S`.
pub const VCPU: usize = offset_of!(Cpu, vcpu);
/// Offset for `speculation.S`.
pub const EMERGENCY: usize = offset_of!(Cpu, emergency);
/// Size of `emergency`, for `speculation.S`.
pub const EMERGENCY_SIZE: usize = size_of::<Emergency>();

const _: () = assert!(SINCE + 8 == offset_of!(Cpu, recorder) + stile_trace::BEFORE, "exit.S stores both at once");
const _: () = assert!(X == 0 && EMERGENCY < 4096, "exit.S relies on these");

/// This CPU's affinity: MPIDR_EL1's fields Aff0 to Aff3.
pub fn affinity() -> u64 {
    read_sysreg!(MPIDR_EL1) & 0xff_00ff_ffff
}

/// Number of the CPU that asks, also while its block is borrowed.
#[inline(always)]
pub fn this_index() -> usize {
    let block = read_sysreg!(TPIDR_EL2) as *const Block;
    // SAFETY: `install` comes before anything that asks. The word is constant after it, and outside of `Block::cpu`, which is borrowed.
    unsafe { (&raw const (*block).local.index).read() }
}

impl Cpu {
    /// Places the block of CPU `index` under `top`, the upper end of its stack's memory, and makes it this CPU's.
    ///
    /// # Safety
    /// `top` comes from [`crate::address_space::stack`] for this CPU, and this is called once for it.
    pub unsafe fn install(top: u64, index: usize) -> &'static mut Cpu {
        // SAFETY: the caller's promise.
        let cpu = unsafe { Cpu::place(top, index) };
        cpu.mpidr = affinity();
        write_sysreg!(TPIDR_EL2, &raw const *cpu as u64);
        cpu
    }

    /// Has the leaves of `exit.S` answer reads of identification registers with these, by CRm and op2.
    pub fn show_id_registers(&mut self, view: &'static [u64; 64]) {
        self.id_view = view;
    }
}
