//! The interrupt that a vCPU has sent last, for traces.

use stile_apic::{Delivery, offset};
use stile_board::VCPU_WORDS;
use stile_ledger::RowId;
use stile_ledger::x86_64 as rows;

use crate::arch::x86_64::host::cpu::Cpu;

/// Whether an exit of this row, at the guest-physical `address` if it is an access to memory, was a write of the ICR.
pub fn writes_icr(row: RowId, address: impl FnOnce() -> u64) -> bool {
    row == rows::WRMSR_X2APIC_ICR || row == rows::local_apic(true) && address() as u32 & 0xfff == offset::ICR
}

/// Vector and target vCPUs of the loaded vCPU's last message, if it was a fixed interrupt.
pub fn last(cpu: &Cpu) -> Option<(u16, [u64; VCPU_WORDS])> {
    let vcpu = cpu.vcpu?;
    let message = vcpu.arch.pages.last_sent().filter(|message| matches!(message.delivery, Delivery::Fixed))?;
    let vcpus = vcpu.vm().vcpus.iter();
    let is_target = |index: usize| vcpus.clone().nth(index).is_some_and(|to| to.arch.pages.is_target(message.destination, vcpu.arch.id));
    let mut targets = [0; VCPU_WORDS];
    for index in (0..vcpus.len()).filter(|&index| is_target(index)) {
        targets[index / 64] |= 1_u64 << (index % 64);
    }
    Some((message.vector.into(), targets))
}
