//! Exits of APIC virtualization (the manual, "APIC Virtualization and Virtual Interrupts").

use stile_board::pc;
use stile_ledger::x86_64 as rows;

use crate::arch::x86_64::handler::mmio::{self, Access};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::Outcome;

/// Handles an access to the APIC page that the processor does not virtualize.
pub fn access(cpu: &mut WholeCpu) -> Outcome {
    /// Access types of the exit qualification ("Exit Qualification for APIC-Access VM Exits from Linear Accesses").
    /// Accesses by guest-physical address are of table walks or event delivery.
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

/// Handles an APIC write: trap-like, with the value in the page.
pub fn written(cpu: &mut Cpu) -> Outcome {
    let offset = vmcs::read(Field::EXIT_QUALIFICATION) as u32 & 0xfff;
    let effect = cpu.apic().written(offset, timer::now());
    delivery::apply(cpu, effect);
    delivery::pull(cpu);
    Outcome::again(rows::APIC_WRITE)
}

/// Handles a virtualized EOI of an interrupt that the I/O APIC must know of.
pub fn ended(cpu: &mut Cpu) -> Outcome {
    let vector = vmcs::read(Field::EXIT_QUALIFICATION) as u8;
    let effect = cpu.apic().ended(vector);
    delivery::apply(cpu, effect);
    delivery::pull(cpu);
    Outcome::again(rows::APIC_END)
}

/// Handles a task priority that fell below that of a pending interrupt.
pub fn priority_lowered(cpu: &mut Cpu) -> Outcome {
    delivery::pull(cpu);
    Outcome::again(rows::APIC_PRIORITY)
}
