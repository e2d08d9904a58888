//! Exits of a local APIC that the processor virtualizes (the manual, "APIC Virtualization and Virtual Interrupts"): what it leaves
//! to the hypervisor.

use stile_board::pc;
use stile_ledger::x86_64 as rows;

use super::mmio::{self, Access};
use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::interrupts::delivery;

/// An access to the APIC's page that the processor does not answer.
pub fn access(cpu: &mut Cpu) -> Outcome {
    /// Access types of the exit qualification ("Exit Qualification for APIC-Access VM Exits from Linear Accesses"). Those that have no
    /// linear address are of tables, or of the delivery of events.
    const WRITE: u64 = 1;
    const FETCH: u64 = 2;
    const WALK: core::ops::RangeInclusive<u64> = 10..=15;
    let qualification = vmcs::read(Field::EXIT_QUALIFICATION);
    let address = pc::LOCAL_APIC | qualification & 0xfff;
    match qualification >> 12 & 0xf {
        FETCH => mmio::access(cpu, address, Access::Fetch, false),
        kind if WALK.contains(&kind) => mmio::access(cpu, address, Access::Walk(vmcs::read(Field::GUEST_LINEAR)), false),
        kind => mmio::access(cpu, address, Access::Data, kind == WRITE),
    }
}

/// The guest has written a register. The instruction is done, and the value in the page.
pub fn written(cpu: &mut Cpu) -> Outcome {
    let offset = vmcs::read(Field::EXIT_QUALIFICATION) as u32 & 0xfff;
    let effect = cpu.apic().written(offset, timer::now());
    delivery::apply(cpu, effect);
    delivery::pull(cpu);
    Outcome::again(rows::APIC_WRITE)
}

/// An interrupt has ended of which the I/O APIC must know. The processor has done the rest.
pub fn ended(cpu: &mut Cpu) -> Outcome {
    let vector = vmcs::read(Field::EXIT_QUALIFICATION) as u8;
    let effect = cpu.apic().ended(vector);
    delivery::apply(cpu, effect);
    delivery::pull(cpu);
    Outcome::again(rows::APIC_END)
}

/// An interrupt waited for the guest's task priority, which is low enough now.
pub fn priority_lowered(cpu: &mut Cpu) -> Outcome {
    delivery::pull(cpu);
    Outcome::again(rows::APIC_PRIORITY)
}
