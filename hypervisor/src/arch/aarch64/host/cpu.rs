//! Block of a physical CPU: SP_EL2 points to it, and the CPU's stack grows down from it.

use core::cell::UnsafeCell;
use core::mem::offset_of;

use stile_ledger::Row;
use stile_sched::VcpuId;
use stile_trace::Recorder;

use super::general_registers::copy_general_registers;
use super::sysreg::{read_sysreg, write_sysreg};
use crate::cpu::{Block, Leave, Pace};
use crate::vm::Vcpu;

/// x0 to x30 of the loaded vCPU, as far as the exit path saved them here: see [`Cpu::registers_at`].
#[repr(C)]
pub struct Frame {
    /// By register number. The stub determines which are valid: see `exit.S`.
    pub x: [u64; 31],
}

impl Frame {
    /// Value of register `n` as an operand: 31 is the zero register.
    #[inline(always)]
    pub fn get(&self, n: usize) -> u64 {
        self.x.get(n).copied().unwrap_or(0)
    }

    /// Writes register `n`; writes to 31 are discarded.
    #[inline(always)]
    pub fn set(&mut self, n: usize, value: u64) {
        if let Some(x) = self.x.get_mut(n) {
            *x = value;
        }
    }
}

/// Registers of an exception at EL2, and a stack for its handler: the exception may be an overflow of the CPU's own.
#[repr(C, align(16))]
struct Emergency {
    registers: [u64; 32],
    stack: [u8; 8192],
}

/// Words of a CPU that are accessed while its block is borrowed, and therefore lie outside the block.
#[repr(C)]
pub struct Local {
    /// CPU number.
    pub index: usize,
    /// GICC_IAR of the last acknowledged interrupt, for `gicv2.S`, which alone accesses it.
    pub acknowledged: UnsafeCell<u64>,
}

impl Local {
    /// Words of CPU `index`.
    pub const fn new(index: usize) -> Local {
        Local { index, acknowledged: UnsafeCell::new(0) }
    }
}

/// The block. Only its own CPU refers to it.
#[repr(C, align(64))]
pub struct Cpu {
    /// First, so that SP_EL2 points to it.
    pub frame: Frame,
    /// Counter at the exit being handled.
    pub since: u64,
    /// Recorder of a trace. After `since`: the vectors store both with one instruction.
    pub recorder: Recorder,
    /// Rows of the loaded vCPU's ledger.
    pub rows: *mut Row,
    /// Exits counted by the vectors since the vCPU was loaded.
    pub taken: u64,
    /// x0 to x30 of the loaded vCPU in its context, where an exit by WFI stores them.
    general: *mut [u64; 31],
    /// Address of the loaded vCPU's x0 to x30, when it is loaded and when it is left: in its context, or in `frame`.
    registers: *const [u64; 31],
    /// ID registers as the loaded vCPU reads them.
    id_view: *const [u64; 64],
    /// The loaded vCPU.
    pub vcpu: Option<&'static Vcpu>,
    /// Reason for leaving the vCPU, set by a handler that returns [`Outcome::leave`](crate::cpu::Outcome::leave).
    pub leave: Leave,
    /// End of the running vCPU's slice, if the CPU is shared.
    pub slice_end: Option<u64>,
    /// Current setting of this CPU's timer, in ticks of the counter.
    pub deadline: Option<u64>,
    /// Next time at which deadlines of sleepers may interrupt the running vCPU.
    pub pace: Pace,
    /// The vCPU that a handler woke, and when. The scheduler is told when this CPU leaves a vCPU next.
    pub woken: Option<(VcpuId, u64)>,
    /// WFI and WFE trap.
    pub waiting_trapped: bool,
    /// FP, SIMD and SVE registers trap.
    pub fp_trapped: bool,
    /// Pointer-authentication keys trap. False at boot (`traps::setup`).
    pub keys_trapped: bool,
    /// CPU number.
    pub index: usize,
    /// Words that are accessed while the block is borrowed.
    pub local: Option<&'static Local>,
    /// MPIDR affinity.
    pub mpidr: u64,
    /// Number of taken branches that overwrite its branch history, for `speculation.S`; 0 if not needed.
    pub history_branches: u64,
    emergency: Emergency,
}

/// Offsets for `exit.S`.
pub const X: usize = offset_of!(Cpu, frame.x);
/// Offset of `since`, for `exit.S`.
pub const SINCE: usize = offset_of!(Cpu, since);
/// Offset of `rows`, for `exit.S`.
pub const ROWS: usize = offset_of!(Cpu, rows);
/// Offset of `general`, for `exit.S`.
pub const GENERAL: usize = offset_of!(Cpu, general);
/// Offset of `registers`, for `exit.S`.
pub const REGISTERS: usize = offset_of!(Cpu, registers);
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

/// This CPU's affinity: MPIDR_EL1.Aff0 to Aff3.
pub fn affinity() -> u64 {
    read_sysreg!(MPIDR_EL1) & 0xff_00ff_ffff
}

/// Address of the calling CPU's block: constant, so that a function reads it once.
#[inline(always)]
pub fn this_block() -> *const Block {
    let block;
    // SAFETY: reading the register does not affect memory. `install` writes it before any caller, and code does not move
    // to another CPU.
    unsafe { core::arch::asm!("mrs {}, tpidr_el2", out(reg) block, options(pure, nomem, nostack, preserves_flags)) };
    block
}

/// Number of the calling CPU; also while its block is borrowed.
#[inline(always)]
pub fn this_index() -> usize {
    let block = this_block();
    // SAFETY: `install` runs before any caller. The word is constant afterwards, and outside `Block::cpu`, which may
    // be borrowed.
    unsafe { (&raw const (*block).local.index).read() }
}

impl Cpu {
    /// Installs the block of CPU `index` below `top`, the upper end of its stack's memory.
    ///
    /// # Safety
    /// `top` was returned by [`crate::address_space::stack`] for this CPU, and the function is called once for it.
    pub unsafe fn install(top: u64, index: usize) -> &'static mut Cpu {
        // SAFETY: the caller guarantees that the memory is mapped and this CPU's alone.
        let cpu = unsafe { Cpu::place(top, index) };
        cpu.mpidr = affinity();
        write_sysreg!(TPIDR_EL2, &raw const *cpu as u64);
        cpu
    }

    /// Selects `general`, the registers of the vCPU that is being loaded, as those that the next entry restores.
    #[inline(always)]
    pub fn enter_from(&mut self, general: *mut [u64; 31]) {
        self.general = general;
        self.registers = general;
    }

    /// x0 to x30 of the loaded vCPU, in a handler that leaves it or after that. Null until a vCPU is loaded.
    #[inline(always)]
    pub fn registers_at(&self) -> *const [u64; 31] {
        self.registers
    }

    /// Stores x0 to x30 of the loaded vCPU, which was left and is being put, to its context.
    #[inline(always)]
    pub fn store_general(&self, to: &mut [u64; 31]) {
        if core::ptr::eq(self.registers, &raw const self.frame.x) {
            copy_general_registers(&self.frame.x, to);
        }
    }

    /// Sets the values, by CRm and op2, with which `exit.S` answers reads of ID registers.
    pub fn show_id_registers(&mut self, view: &'static [u64; 64]) {
        self.id_view = view;
    }
}
