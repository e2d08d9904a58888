//! This CPU's timer, shared by the scheduler and the loaded vCPU, to which it may be passed through
//! ([`stile_apic::HostTimer`]).

use core::ptr;

use stile_apic::{Demand, Form, Hardware};
use stile_blob::TimerAccess;

use crate::arch::x86_64::host::apic::{self, vector};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::virt::virtual_apic;
use crate::cpu::{self, Loaded};
use crate::vm::Vcpu;

/// This CPU's timer, and the MSR bitmap of the vCPU that is loaded.
struct ThisCpu(Option<&'static Vcpu>);

impl Hardware for ThisCpu {
    fn now(&mut self) -> u64 {
        timer::now()
    }

    fn deadline(&mut self) -> u64 {
        timer::deadline()
    }

    fn set_deadline(&mut self, deadline: u64) {
        timer::set_deadline(deadline);
    }

    fn is_pending(&mut self) -> bool {
        apic::is_pending(vector::TIMER)
    }

    fn pass_through(&mut self, on: bool) {
        if let Some(vcpu) = self.0 {
            virtual_apic::write_msr_bitmap(vcpu, on);
        }
    }

    fn set_notifies(&mut self, on: bool) {
        apic::set_timer_vector(if on { vector::POSTED } else { vector::TIMER });
    }

    fn is_notified(&mut self) -> bool {
        apic::is_pending(vector::POSTED)
    }
}

/// Sets or clears the scheduler's deadline on this CPU, which may give the timer to the loaded vCPU, or take it back.
pub fn set_own(cpu: &mut Cpu, deadline: Option<u64>) {
    let vcpu = cpu.vcpu;
    let (timer, apic) = cpu.timer_and_apic();
    let loaded = apic.zip(vcpu.map(demand));
    let posted = timer.set_own(&mut ThisCpu(vcpu), deadline, loaded);
    relay(cpu);
    if posted && let Some(vcpu) = cpu.vcpu {
        // The vCPU may be about to wait, or to be entered.
        cpu::notify(vcpu);
    }
}

/// Updates this CPU's timer after a change of the loaded vCPU's deadline, counter or local vector. The caller calls
/// [`delivery::pull`](super::delivery::pull) for what this posts.
#[inline(never)]
pub fn update(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    if let (timer, Some(apic)) = cpu.timer_and_apic() {
        timer.update(&mut ThisCpu(Some(vcpu)), apic, demand(vcpu));
    }
    relay(cpu);
}

/// Reads the loaded vCPU's IA32_TSC_DEADLINE back from this CPU's timer before its counter or APIC changes;
/// [`update`] follows. Returns whether an interrupt was posted.
pub fn reclaim(cpu: &mut Cpu) -> bool {
    let vcpu = cpu.vcpu();
    let posted = match cpu.timer_and_apic() {
        (timer, Some(apic)) => timer.reclaim(&mut ThisCpu(Some(vcpu)), apic),
        (_, None) => false,
    };
    relay(cpu);
    posted
}

/// Removes a vCPU's deadlines from this CPU's timer: it is being put or was powered off. Its VMCS is current.
pub fn release(cpu: &mut Cpu, loaded: Loaded<'_>) {
    cpu.timer.release(&mut ThisCpu(Some(loaded.vcpu())), loaded.apic());
    relay(cpu);
}

fn demand(vcpu: &Vcpu) -> Demand {
    Demand {
        passthrough: timer::PASSES_THROUGH && vcpu.vm().techniques.timer != TimerAccess::Trapped,
        notifies: vcpu.arch.direct.has_timer(),
        same_tsc: vcpu.arch.msrs.tsc_offset() == 0,
        watch: vcpu.arch.watch.next(),
    }
}

/// Publishes to `exit.S` the timer's owner: the address of the loaded vCPU's IA32_TSC_DEADLINE, if it may be written
/// together with this CPU's timer, and how to deliver the interrupts of a timer that is passed through.
fn relay(cpu: &mut Cpu) {
    let slot = match cpu.timer.form() {
        Form::Relayed => cpu.apic().tsc_deadline_slot().map_or(ptr::null_mut(), ptr::from_mut),
        Form::Merged | Form::PassedThrough => ptr::null_mut(),
    };
    // SAFETY: null, or a field of the loaded vCPU, whose put resets it to null. References to its APIC end before
    // this, or with the handler that has them.
    unsafe { Cpu::set_direct_deadline(slot) };
    cpu.note_passed_timer();
}

/// Writes the loaded vCPU's IA32_TSC_DEADLINE together with this CPU's timer, of which it is the only deadline. Returns false, without
/// effect, if [`update`] is needed.
#[inline(always)]
#[allow(dead_code, reason = "with VMX `exit.S` writes both")]
pub fn write_relayed(value: u64) -> bool {
    let slot = Cpu::direct_deadline();
    if slot.is_null() {
        return false;
    }
    // SAFETY: a field of the loaded vCPU's APIC, by `relay`. The callers are handlers that have borrowed no APIC.
    unsafe { slot.write(value) };
    timer::set_deadline(value);
    true
}

/// Whether this CPU's only deadline is that of the loaded vCPU's APIC, set by `exit.S`: after its expiry the timer is
/// off.
#[inline(always)]
pub fn is_relayed() -> bool {
    !Cpu::direct_deadline().is_null()
}

/// Deadlines of this CPU that have expired: the scheduler's, and the loaded vCPU's. The caller sets the timer to the
/// next one.
pub fn due(cpu: &mut Cpu) -> (bool, bool) {
    let (own, apic) = cpu.timer_and_apic();
    own.due(timer::now(), apic.map(|apic| &*apic))
}
