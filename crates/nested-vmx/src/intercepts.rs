//! Exits of L2 that L1 asked for: by its controls, bitmaps, masks and shadows (SDM, "VMX Non-Root Operation").

mod bitmaps;
mod control_registers;
mod table;

pub use bitmaps::{MSR_BITMAP_WORDS, intercepts_msr, intercepts_port, msr_bit};
pub use control_registers::intercepts_control_register;
pub use table::{Condition, condition, is_absent_instruction};

use crate::controls::primary;
use crate::field::Field;
use crate::vmcs12::Vmcs12;

/// An exit of L2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exit {
    /// The basic exit reason.
    pub reason: u16,
    /// The exit qualification.
    pub qualification: u64,
    /// The VM-exit interruption information.
    pub interruption: u32,
    /// The VM-exit interruption error code.
    pub error_code: u32,
}

/// L2's registers and L1's memory, as far as exits depend on them.
pub trait Operands {
    /// L2's general register, by its number.
    fn register(&self, number: usize) -> u64;

    /// The word at an L1 physical address, a multiple of 8. `None` if that is not memory of the VM.
    fn word(&self, address: u64) -> Option<u64>;
}

/// Whether exits for a reason report instruction information, as far as L1 sees them ("VM-Exit Instruction-Information Field").
pub const fn has_instruction_information(reason: u64) -> bool {
    /// INS and OUTS; VMX instructions with operands; descriptor tables; RDRAND, INVPCID and RDSEED.
    const REASONS: u64 = 1 << 30 | 0b1_1101 << 19 | 0b101 << 25 | 0b11 << 46 | 1 << 50 | 1 << 53 | 0b11 << 57 | 1 << 61;
    reason < 64 && REASONS >> reason & 1 != 0
}

/// Whether exits for a reason can report an address of L2: by LMSW, by INS and OUTS, or because of its second stage.
pub const fn has_addresses(reason: u64) -> bool {
    const REASONS: u64 = 1 << 28 | 1 << 30 | 0b11 << 48;
    reason < 64 && REASONS >> reason & 1 != 0
}

/// The handler of an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// L1: it is forwarded.
    Forward,
    /// L0.
    Keep,
    /// Decided by L1's extended page tables; L0's if L1 uses none.
    SecondStage,
}

/// Decides who handles an exit of L2.
pub fn verdict(exit: &Exit, vmcs: &Vmcs12, operands: &impl Operands) -> Verdict {
    const RCX: usize = 1;
    let has = |field, bits: u32| vmcs.get32(field) & bits != 0;
    let is_forwarded = match condition(exit.reason) {
        Condition::Always => true,
        Condition::Never => false,
        Condition::Pin(bits) => has(Field::PIN_CONTROLS, bits),
        Condition::Primary(bits) => has(Field::PRIMARY_CONTROLS, bits),
        Condition::Secondary(bits) => vmcs.secondary() & bits != 0,
        Condition::Both(primary, secondary) => has(Field::PRIMARY_CONTROLS, primary) && vmcs.secondary() & secondary != 0,
        Condition::Either(primary, secondary) => has(Field::PRIMARY_CONTROLS, primary) || vmcs.secondary() & secondary != 0,
        Condition::Exception => intercepts_exception(vmcs, exit.interruption, exit.error_code),
        Condition::ControlRegister => intercepts_control_register(vmcs, exit.qualification, |number| operands.register(number)),
        Condition::Port => intercepts_port(vmcs, exit.qualification, |address| operands.word(address)),
        Condition::Msr { is_write } => intercepts_msr(vmcs, operands.register(RCX) as u32, is_write, |address| operands.word(address)),
        Condition::MonitorTrap => has(Field::PRIMARY_CONTROLS, primary::MONITOR_TRAP) || injects_trap(vmcs),
        Condition::SecondStage => return Verdict::SecondStage,
    };
    if is_forwarded { Verdict::Forward } else { Verdict::Keep }
}

/// Whether L1's entry injects an exit of the monitor trap flag ("Injection of Pending MTF VM Exits"). It is the first exit after that entry.
fn injects_trap(vmcs: &Vmcs12) -> bool {
    const VALID_TYPE: u32 = 1 << 31 | 7 << 8;
    const OTHER: u32 = 1 << 31 | 7 << 8;
    vmcs.get32(Field::ENTRY_INTERRUPTION) & VALID_TYPE == OTHER
}

/// Whether L1 intercepts an exception ("Exception Bitmap"). Physical NMIs are L0's.
pub fn intercepts_exception(vmcs: &Vmcs12, interruption: u32, error_code: u32) -> bool {
    const NMI: u32 = 2;
    const PAGE_FAULT: u32 = 14;
    if interruption >> 8 & 7 == NMI {
        return false;
    }
    let vector = interruption & 0x1f;
    let bit = vmcs.get32(Field::EXCEPTION_BITMAP) >> vector & 1 != 0;
    if vector != PAGE_FAULT {
        return bit;
    }
    let matches = error_code & vmcs.get32(Field::PAGE_FAULT_MASK) == vmcs.get32(Field::PAGE_FAULT_MATCH);
    bit == matches
}
