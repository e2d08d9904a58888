//! VMX-preemption timer of L1: the processor's timer counts while L2 runs, and is reloaded at each entry that L1 does
//! not see.

use stile_nested_vmx::capability::misc;
use stile_nested_vmx::{Field, PreemptionTimer};

use super::state::GuestVmx;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::extension::{exit, pin};

impl GuestVmx {
    /// Starts L1's timer at its entry to L2, if activated. VMCS02 is current.
    pub fn start_timer(&mut self, cpu: &Cpu) {
        if self.vmcs12.get32(Field::PIN_CONTROLS) & pin::PREEMPTION_TIMER == 0 {
            self.timer = None;
            return;
        }
        let value = self.vmcs12.get32(Field::PREEMPTION_TIMER);
        self.timer = Some(PreemptionTimer::new(value, counter(cpu)));
        self.vmcs02().set_timer(value);
    }

    /// Reloads the processor's timer with the remaining value. VMCS02 is current, and about to be re-entered.
    #[inline]
    pub fn continue_timer(&mut self, cpu: &Cpu) {
        if let Some(timer) = self.timer {
            self.vmcs02().set_timer(left(cpu, timer));
        }
    }

    /// Stops the timer at an exit to L1, and saves its value if L1 requests that ("Saving Non-Register State").
    pub fn stop_timer(&mut self, cpu: &Cpu, reason: u64) {
        let Some(timer) = self.timer.take() else { return };
        if self.vmcs12.get32(Field::EXIT_CONTROLS) & exit::SAVE_PREEMPTION_TIMER != 0 {
            let value = if reason == basic::PREEMPTION_TIMER { 0 } else { left(cpu, timer) };
            self.vmcs12.set_from_exit(Field::PREEMPTION_TIMER, value.into());
        }
    }

    /// Whether the timer runs and has expired: the next entry exits immediately, before interrupts.
    pub fn timer_has_expired(&self, cpu: &Cpu) -> bool {
        self.timer.is_some_and(|timer| left(cpu, timer) == 0)
    }
}

/// Remaining value of a timer.
fn left(cpu: &Cpu, timer: PreemptionTimer) -> u32 {
    let reported = cpu.vcpu().vm().arch.nested.as_ref().map_or(0, |offer| offer.capabilities.misc);
    timer.remaining(counter(cpu), (reported & misc::TIMER_RATE) as u32)
}

/// L1's time-stamp counter, which is stopped while the VM is paused.
fn counter(cpu: &Cpu) -> u64 {
    timer::now().wrapping_add(cpu.vcpu().arch.msrs.tsc_offset())
}
