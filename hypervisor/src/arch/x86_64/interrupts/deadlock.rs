//! Deadlock check: reports a VM all of whose vCPUs wait in HLT with interrupts disabled, when nothing can send an NMI
//! or an INIT.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::console::log_of;
use crate::vm::Vcpu;

/// Whether a vCPU waits with interrupts disabled.
pub struct DeadlockCheck(AtomicBool);

impl DeadlockCheck {
    /// Not waiting.
    pub const fn new() -> DeadlockCheck {
        DeadlockCheck(AtomicBool::new(false))
    }

    /// Ends the state.
    pub fn end(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Records that a vCPU waits with interrupts disabled and nothing pending. Reports the VM if it was the last vCPU.
#[cold]
pub fn check(vcpu: &Vcpu) {
    // Of concurrent calls the last one sees the others.
    vcpu.arch.events.deadlock.0.store(true, Ordering::SeqCst);
    let vm = vcpu.vm();
    let is_silent = |vcpu: &Vcpu| {
        let events = &vcpu.arch.events;
        !events.is_on() || events.deadlock.0.load(Ordering::SeqCst) && !events.wakes()
    };
    let by_a_pin = || vm.vcpus.first().is_some_and(|first| first.arch.pages.has_signal()) || vm.arch.io_apic.lock().has_signals();
    if vm.vcpus.iter().all(|vcpu| is_silent(vcpu)) && !by_a_pin() && !vm.arch.silence_reported.swap(true, Ordering::Relaxed) {
        log_of!(vm, "{}: all of its vCPUs wait with interrupts off, and nothing can wake them", vm.name);
    }
}
