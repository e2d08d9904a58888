//! Deadlock check: reports a VM all of whose vCPUs wait in HLT with interrupts disabled, when nothing can send an NMI
//! or an INIT.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::console::log_of;
use crate::vm::Vcpu;

/// It does not wait with interrupts disabled.
const NONE: u8 = 0;
/// An NMI would end its wait.
const UNTIL_NMI: u8 = 1;
/// It handles an NMI, which blocks others.
const NMIS_BLOCKED: u8 = 2;

/// Whether a vCPU waits with interrupts disabled.
pub struct DeadlockCheck(AtomicU8);

impl DeadlockCheck {
    /// Not waiting.
    pub const fn new() -> DeadlockCheck {
        DeadlockCheck(AtomicU8::new(NONE))
    }

    /// Ends the state.
    pub fn end(&self) {
        self.0.store(NONE, Ordering::SeqCst);
    }
}

/// Records that a vCPU waits with interrupts disabled and nothing pending that would end its wait. `blocks_nmis`: it
/// handles an NMI. Reports the VM if it was the last vCPU.
#[cold]
pub fn check(vcpu: &Vcpu, blocks_nmis: bool) {
    // Of concurrent calls the last one sees the others.
    vcpu.arch.events.deadlock.0.store(if blocks_nmis { NMIS_BLOCKED } else { UNTIL_NMI }, Ordering::SeqCst);
    let vm = vcpu.vm();
    let is_silent = |vcpu: &Vcpu| {
        let events = &vcpu.arch.events;
        !events.is_on()
            || match events.deadlock.0.load(Ordering::SeqCst) {
                NONE => false,
                NMIS_BLOCKED => !events.init(),
                _ => !events.wakes(),
            }
    };
    let by_a_pin = || vm.vcpus.first().is_some_and(|first| first.arch.pages.has_signal()) || vm.arch.io_apic.lock().has_signals();
    if vm.vcpus.iter().all(|vcpu| is_silent(vcpu)) && !by_a_pin() && !vm.arch.silence_reported.swap(true, Ordering::Relaxed) {
        log_of!(vm, "{}: all of its vCPUs wait with interrupts off, and nothing can wake them", vm.name);
    }
}
