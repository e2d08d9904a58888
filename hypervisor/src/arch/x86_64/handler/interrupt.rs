//! Physical interrupts, taken from a guest or by an idle CPU.

use stile_ledger::x86_64 as rows;

use crate::arch::x86_64::assigned::{faults, messages};
use crate::arch::x86_64::host::apic::{self, vector};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::interrupts::{deadline, delivery, events, window};
use crate::arch::x86_64::virt::{direct, state, virtual_apic};
use crate::cpu::{self, Leave, Outcome};

/// Handles a physical interrupt from a guest, acknowledged by the processor. `number`: its vector.
#[unsafe(no_mangle)]
pub extern "C" fn handle_interrupt(cpu: &mut Cpu, number: u8) -> Outcome {
    if number == vector::SPURIOUS {
        direct::end_spurious();
        return Outcome::again(rows::INTERRUPT_SPURIOUS);
    }
    apic::end_of_interrupt();
    match number {
        vector::KICK => {
            if cpu::needs_resched(cpu) {
                cpu.leave = Leave::Resched;
                return Outcome::leave(rows::INTERRUPT_KICK);
            }
            if cpu.vcpu().arch.events.init() {
                return events::leave(cpu, rows::INTERRUPT_KICK);
            }
            if virtual_apic::MAY_DELIVER || !delivery::take_posted(cpu) {
                delivery::pull(cpu);
            }
            Outcome::again(rows::INTERRUPT_KICK)
        }
        // For a vCPU that was loaded before, or whose processor does not handle posted interrupts.
        vector::POSTED => {
            delivery::pull(cpu);
            Outcome::again(rows::INTERRUPT_POSTED)
        }
        vector::TIMER => {
            if let Some(vector) = cpu.apic().lent_timer() {
                timer::clear_expired();
                let takes = window::can_interrupt() && !state::injects_at_interrupts();
                delivery::interrupt_self(cpu, vector, takes.into());
                return Outcome::again(rows::INTERRUPT_GUEST_TIMER);
            }
            if deadline::is_relayed() {
                if let Some(vector) = cpu.apic().fire_timer(timer::now()) {
                    let takes = window::can_interrupt() && !state::injects_at_interrupts();
                    delivery::interrupt_self(cpu, vector, takes.into());
                } else if timer::MAY_BE_EARLY {
                    deadline::update(cpu);
                }
                return Outcome::again(rows::INTERRUPT_GUEST_TIMER);
            }
            let (own, guest) = deadline::due(cpu);
            if guest {
                delivery::expire_timer(cpu);
                delivery::pull(cpu);
            }
            if !guest && !own {
                // From a deadline that was cancelled, which may have kept the timer from the guest.
                deadline::update(cpu);
            }
            if !own {
                return Outcome::again(rows::INTERRUPT_GUEST_TIMER);
            }
            cpu.leave = Leave::Timer;
            Outcome::leave(rows::INTERRUPT_TIMER)
        }
        vector::UART => {
            crate::operator::console_interrupt();
            Outcome::again(rows::INTERRUPT_CONSOLE)
        }
        vector::IOMMU => {
            faults::take();
            Outcome::again(rows::INTERRUPT_IOMMU)
        }
        vector::INVALIDATE => {
            catch_up(cpu);
            Outcome::again(rows::INTERRUPT_INVALIDATE)
        }
        vector::WAKE => {
            direct::wake_beside(cpu);
            Outcome::again(rows::INTERRUPT_WAKE)
        }
        vector::MESSAGE => {
            messages::take(cpu, true);
            Outcome::again(rows::INTERRUPT_MESSAGE)
        }
        _ => Outcome::again(rows::INTERRUPT_SPURIOUS),
    }
}

/// Applies changes of the loaded VM's second stage. Those of other VMs are applied at load.
fn catch_up(cpu: &Cpu) {
    let Some(vm) = cpu.vcpu.map(|vcpu| vcpu.vm()) else { return };
    if let Some(protected) = &vm.arch.protected {
        protected.catch_up(cpu);
    }
    if let Some(functions) = vm.arch.functions {
        functions.invalidations.catch_up(cpu.index);
    }
    if let Some(invalidations) = vm.arch.window_invalidations {
        invalidations.catch_up(cpu.index);
    }
}

/// Handles interrupts that an idle CPU has noted.
pub fn idle(cpu: &mut Cpu) {
    let noted = cpu.take_noted();
    let came = |number: u8| noted >> (number - vector::POSTED) & 1 != 0;
    let mut in_service = noted;
    while in_service != 0 {
        apic::end_of_interrupt();
        in_service &= in_service - 1;
    }
    if came(vector::INVALIDATE) {
        catch_up(cpu);
    }
    if came(vector::WAKE) || came(vector::POSTED) {
        direct::wake_from_idle(cpu);
    }
    if came(vector::KICK) {
        cpu::take_resched(cpu);
    }
    if let Some(vcpu) = cpu.vcpu
        && (came(vector::TIMER) && delivery::take_timer(cpu) || came(vector::POSTED) && delivery::take_notification(cpu))
    {
        cpu::wake_from_idle(cpu, vcpu);
    }
    if came(vector::IOMMU) {
        faults::take();
    }
    if came(vector::UART) {
        crate::operator::console_interrupt();
    }
    if came(vector::MESSAGE) {
        messages::take(cpu, false);
    }
}
