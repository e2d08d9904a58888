//! Interrupts in traces: exits are not recorded with AMD-V.

use stile_board::VCPU_WORDS;
use stile_ledger::RowId;

use crate::arch::x86_64::host::cpu::Cpu;

/// See [`Platform`](crate::arch::contract::Platform::RECORDS_EXITS).
pub const RECORDS_EXITS: Result<(), &'static str> = Err("its processor has AMD-V, whose exit path records nothing yet");

/// There is no source.
pub fn choose_source(_cpu: &Cpu) {}

/// Records nothing.
pub fn each_new(_cpu: &Cpu, _before: Option<u64>, _each: impl FnMut(u32)) {}

/// As [`each_new`].
pub fn sent(_cpu: &Cpu, _row: RowId) -> Option<(u16, [u64; VCPU_WORDS])> {
    None
}
