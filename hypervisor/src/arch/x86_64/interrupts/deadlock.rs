//! VMs that stay silent for ever: each vCPU waits by HLT with interrupts off, and nothing is left that could send an NMI or an INIT. The operator
//! is told, once.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::console::log_of;
use crate::vm::Vcpu;

/// Whether a vCPU waits with interrupts off.
pub struct DeadlockCheck(AtomicBool);

impl DeadlockCheck {
    /// It does not.
    pub const fn new() -> DeadlockCheck {
        DeadlockCheck(AtomicBool::new(false))
    }

    /// It does not any more.
    pub fn end(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A vCPU waits with interrupts off, and nothing is there that would end that. If it was the last of its VM, says so.
#[cold]
pub fn check(vcpu: &Vcpu) {
    // Of those that do so at the same time, the last one sees the others.
    vcpu.arch.events.deadlock.0.store(true, Ordering::SeqCst);
    let vm = vcpu.vm();
    let is_silent = |vcpu: &Vcpu| {
        let events = &vcpu.arch.events;
        !events.is_on() || events.deadlock.0.load(Ordering::SeqCst) && !events.wakes()
    };
    let by_a_pin = || vm.vcpus.first().is_some_and(|first| first.arch.pages.has_signal()) || vm.arch.io_apic.lock().has_signals();
    if vm.vcpus.iter().all(|vcpu| is_silent(vcpu)) && !by_a_pin() && !vm.arch.silence_told.swap(true, Ordering::Relaxed) {
        log_of!(vm, "{}: all of its vCPUs wait with interrupts off, and nothing can wake them", vm.name);
    }
}
