//! Interrupts in traces.

use stile_board::VCPU_WORDS;
use stile_ledger::RowId;

use super::state::{self, Field};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::sent;
use crate::arch::x86_64::vcpu::inject::{EXTERNAL, NMI, TYPE, VALID};

/// Calls `each` with the vector of the event that the next entry injects, if it is an external interrupt or an NMI. The processor clears
/// the field at exits ("Event Injection"), so that each one is new.
pub fn each_new(_cpu: &Cpu, _before: Option<u64>, mut each: impl FnMut(u32)) {
    let event = state::read(Field::ENTRY_INTERRUPTION);
    if event & VALID != 0 && [EXTERNAL, NMI].contains(&(event & TYPE)) {
        each(event as u32 & 0xff);
    }
}

/// Vector and target vCPUs of an ICR write, if that is the exit being handled.
pub fn sent(cpu: &Cpu, row: RowId) -> Option<(u16, [u64; VCPU_WORDS])> {
    if sent::writes_icr(row, || state::read(Field::GUEST_PHYSICAL)) { sent::last(cpu) } else { None }
}
