//! Interrupts in traces.

use stile_apic::offset;
use stile_blob::ApicVirtualization;
use stile_board::VCPU_WORDS;
use stile_ledger::RowId;
use stile_ledger::x86_64 as rows;

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::sent;
use crate::arch::x86_64::vmx::vmcs::{self, Field};

/// Selects the VMCS field that shows pending interrupts: virtual-interrupt delivery's status, or the event to inject.
pub fn choose_source(cpu: &Cpu) {
    let delivers = cpu.apic_level >= ApicVirtualization::Delivery;
    let field = if delivers { Field::GUEST_INTERRUPT_STATUS } else { Field::ENTRY_INTERRUPTION };
    cpu.recorder.source.set(field.0.into());
}

/// Calls `each` with the pending vector if the field differs from `before`.
pub fn each_new(cpu: &Cpu, before: Option<u64>, mut each: impl FnMut(u32)) {
    /// The event is an external interrupt or an NMI ("VM-Entry Interruption-Information Field").
    const VALID: u64 = 1 << 31;
    const KINDS: [u64; 2] = [0, 2];
    let delivers = cpu.recorder.source.get() == u64::from(Field::GUEST_INTERRUPT_STATUS.0);
    let now = vmcs::read(if delivers { Field::GUEST_INTERRUPT_STATUS } else { Field::ENTRY_INTERRUPTION });
    // RVI is the low byte of the guest interrupt status.
    let is_pending = if delivers { now & 0xff != 0 } else { now & VALID != 0 && KINDS.contains(&(now >> 8 & 7)) };
    let is_new = before.is_none_or(|before| !delivers && before != now || delivers && before as u8 != now as u8);
    if is_pending && is_new {
        each(now as u32 & 0xff);
    }
}

/// Vector and target vCPUs of an ICR write, if that is the exit being handled.
pub fn sent(cpu: &Cpu, row: RowId) -> Option<(u16, [u64; VCPU_WORDS])> {
    let is_icr = if row == rows::APIC_WRITE {
        vmcs::read(Field::EXIT_QUALIFICATION) as u32 & 0xfff == offset::ICR
    } else {
        sent::writes_icr(row, || vmcs::read(Field::GUEST_PHYSICAL))
    };
    if is_icr { sent::last(cpu) } else { None }
}
