//! From vector to handler and back: `exit.S`, its dispatch table, and the values that handlers return.

mod ablation;
mod stubs;
pub mod vectors;

use core::mem::offset_of;

use stile_ledger::aarch64 as rows;
use stile_ledger::{Row, RowId, layout};
use stile_sysreg::syndrome::Ec;
use stile_sysreg::{SysReg, operand};

use crate::arch::aarch64::host::cpu::{self, Cpu};
use crate::arch::aarch64::host::speculation;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::cpu::Outcome;
use crate::vm::Vcpu;
use vectors::Vectors;

/// An assembler macro that reads a register.
macro_rules! reader {
    ($macro:literal, $register:ident) => {
        concat!(".macro ", $macro, " to\n mrs \\to, ", operand!($register), "\n.endm")
    };
}

core::arch::global_asm!(
    reader!("read_spsr_el12", SPSR_EL12),
    reader!("read_elr_el12", ELR_EL12),
    reader!("read_vncr_el2", VNCR_EL2),
    include_str!("exit.S"),
    include_str!("../nested/exit.S"),
    include_str!("direct.S"),
    include_str!(concat!(env!("OUT_DIR"), "/traced.S")),
    include_str!(concat!(env!("OUT_DIR"), "/cleared.S")),
    include_str!(concat!(env!("OUT_DIR"), "/cleared_traced.S")),
    X = const cpu::X,
    SINCE = const cpu::SINCE,
    GENERAL = const cpu::GENERAL,
    REGISTERS = const cpu::REGISTERS,
    VCPU = const cpu::VCPU,
    VCPU_ID = const offset_of!(Vcpu, id),
    RECORD_SLOT = const cpu::RECORD_SLOT,
    RECORDS_DROPPED = const cpu::RECORDS_DROPPED,
    RING_SHIFT = const stile_trace::RING_SHIFT,
    ROW_OF_SGI = const ROW_OF_SGI.raw(),
    COUNT = const COUNT,
    ROWS = const cpu::ROWS,
    TAKEN = const cpu::TAKEN,
    EMERGENCY = const cpu::EMERGENCY,
    EMERGENCY_SIZE = const cpu::EMERGENCY_SIZE,
    ID_VIEW = const cpu::ID_VIEW,
    LEAVE_BIT = const Outcome::LEAVE_BIT,
    DONE_BIT = const DONE_BIT,
    ROW_SHIFT = const layout::ROW_SHIFT,
    HVC_UNKNOWN = const rows::reason::HVC.other().raw(),
    ERET_KERNEL = const rows::NESTED_ERET_KERNEL.raw(),
    ERET_USER = const rows::NESTED_ERET_USER.raw(),
    TLBI_ROW = const rows::NESTED_TLBI.raw(),
    TLBI_VAALE1IS = const TLBI_VAALE1IS,
    WRITE_OF_SGI1R = const WRITE_OF_SGI1R,
    MDSCR_IN_PAGE = const stile_nested_arm::vncr::MDSCR_EL1.offset(),
    HCR_IN_PAGE = const stile_nested_arm::vncr::HCR_EL2.offset(),
    ID_ROWS = const rows::id_register(0, 0).raw(),
);

/// Offset of a row's count, which its ticks follow.
const COUNT: usize = offset_of!(Row, count);
const _: () = assert!(offset_of!(Row, ticks) == COUNT + 8, "exit.S moves them as a pair");

/// ESR_EL2 of TLBI VAALE1IS, X0.
const TLBI_VAALE1IS: u32 = write_of(SysReg::TLBI_VAALE1IS);
/// ESR_EL2 of MSR ICC_SGI1R_EL1, X0.
const WRITE_OF_SGI1R: u32 = write_of(SysReg::ICC_SGI1R_EL1);

const fn write_of(reg: SysReg) -> u32 {
    /// IL: an instruction of 32 bits.
    const IL: u32 = 1 << 25;
    (Ec::MSR.bits() as u32) << 26 | IL | reg.to_iss()
}

/// The ledger's row of SGIs sent by a guest.
pub const ROW_OF_SGI: RowId = rows::sysreg(rows::HotRegister::IccSgi1r, true);

/// Bit of an [`Outcome`]: the instruction was emulated; skip it.
const DONE_BIT: u32 = Outcome::OWN_BIT;

impl Outcome {
    /// Re-entry after the trapped instruction, which was emulated.
    #[inline(always)]
    pub const fn done(row: RowId) -> Outcome {
        Outcome::again(row).with(DONE_BIT)
    }

    /// Whether the scheduler runs.
    pub fn leaves(&self) -> bool {
        self.has(Outcome::LEAVE_BIT)
    }

    /// Skips the instruction now, for handlers whose rest may change the program counter.
    pub fn finish(self) -> Outcome {
        if self.has(DONE_BIT) {
            crate::arch::aarch64::handler::skip_instruction();
        }
        self.without(DONE_BIT)
    }
}

unsafe extern "C" {
    fn enter_guest(cpu: *mut core::ffi::c_void) -> !;
}

/// Enters the guest of the loaded vCPU for the first time on this CPU; later entries are in `exit.S`.
pub fn enter(cpu: &mut Cpu) -> ! {
    // This CPU chose its vectors before its mitigations were known and the VMs created. If the vCPU's load has chosen
    // others (nested, direct), they stay.
    speculation::enter_first(cpu.index);
    if read_sysreg!(VBAR_EL2) == Vectors::Ordinary.address() {
        write_sysreg!(VBAR_EL2, vectors::base());
    }
    // SAFETY: `cpu` is this CPU's own block, above its stack, which SP_EL2 may point to. The caller has loaded a vCPU
    // (`PhysicalCpu::enter`), whose load has set `registers` to its x0 to x30.
    unsafe { enter_guest((&raw mut *cpu).cast()) }
}
