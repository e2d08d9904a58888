//! From exit to handler and back: `exit.S`, and the values that handlers return.

use core::mem::offset_of;

use stile_ledger::{Row, RowId, layout};
use stile_svm::{Field, clean};

use super::block::OfCpu;
use crate::arch::x86_64::host::cpu::{self, Cpu};
use crate::arch::x86_64::host::speculation;
pub use crate::cpu::Outcome;

pub use super::basic;

core::arch::global_asm!(
    include_str!("exit.S"),
    REGISTERS = const cpu::REGISTERS,
    VMCB = const cpu::VMCB,
    LOADED = const cpu::SVM + offset_of!(OfCpu, loaded),
    OWN = const cpu::SVM + offset_of!(OfCpu, own),
    GUEST_RAX = const Field::GUEST_RAX.offset,
    CLEAN = const Field::CLEAN.offset,
    CLEAN_ALL = const clean::ALL as i32,
    TLB_CONTROL = const Field::TLB_CONTROL.offset,
    TAKEN = const cpu::TAKEN,
    SINCE = const cpu::SINCE,
    ROWS = const cpu::ROWS,
    ROW_SHIFT = const layout::ROW_SHIFT,
    COUNT = const offset_of!(Row, count),
    TICKS = const offset_of!(Row, ticks),
    MIN = const offset_of!(Row, min),
    MAX = const offset_of!(Row, max),
);

/// Bit of an [`Outcome`] that requests the slow handler: nothing was done.
const WITH_ALL_BIT: u32 = Outcome::OWN_BIT;

impl Outcome {
    /// Nothing was done: call the slow handler.
    #[inline(always)]
    pub const fn with_all_registers() -> Outcome {
        Outcome::again(RowId::masked(0)).with(WITH_ALL_BIT)
    }

    /// Whether nothing was done.
    #[inline(always)]
    pub const fn wants_all_registers(&self) -> bool {
        self.has(WITH_ALL_BIT)
    }
}

// `exit.S` tests the bit as the sign.
const _: () = assert!(Outcome::LEAVE_BIT == 63);

unsafe extern "C" {
    fn enter_guest(cpu: *mut core::ffi::c_void) -> !;
}

/// First entry of this CPU into a guest; later ones are in `exit.S`.
pub fn enter(cpu: &mut Cpu) -> ! {
    speculation::enter_first(cpu);
    // SAFETY: the block is this CPU's own, a vCPU is loaded, and its general registers are in the frame.
    unsafe { enter_guest((&raw mut *cpu).cast()) }
}

/// Exits are not recorded.
pub fn trace(_on: bool) -> bool {
    false
}
