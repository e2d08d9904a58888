//! Deadlines: this CPU's timer between the scheduler and the vCPU that is loaded, to which it may be passed through ([`stile_apic::HostTimer`]).

use core::ptr;

use stile_apic::{Demand, Form, Hardware};
use stile_blob::TimerAccess;

use super::virtual_apic;
use crate::arch::x86_64::host::apic::{self, vector};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::timer;
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
}

/// Sets this CPU's deadline for the scheduler, or none. The loaded vCPU may get the timer by it, or lose it.
pub fn set_own(cpu: &mut Cpu, deadline: Option<u64>) {
    let vcpu = cpu.vcpu;
    let (timer, apic) = cpu.timer_and_apic();
    let loaded = apic.zip(vcpu.map(demand));
    let posted = timer.set_own(&mut ThisCpu(vcpu), deadline, loaded);
    relay(cpu);
    if posted && let Some(vcpu) = cpu.vcpu {
        // It may be about to wait, or to be entered.
        cpu::notify(vcpu);
    }
}

/// Sets this CPU's timer for the loaded vCPU, whose deadlines, counter or local vector may have changed. What is posted by it is left to
/// [`delivery::pull`](super::delivery::pull).
#[inline(never)]
pub fn update(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    if let (timer, Some(apic)) = cpu.timer_and_apic() {
        timer.update(&mut ThisCpu(Some(vcpu)), apic, demand(vcpu));
    }
    relay(cpu);
}

/// Takes IA32_TSC_DEADLINE of the loaded vCPU back from this CPU's timer, before it changes with the counter or the APIC; [`update`] follows.
pub fn reclaim(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    if let (timer, Some(apic)) = cpu.timer_and_apic() {
        timer.reclaim(&mut ThisCpu(Some(vcpu)), apic);
    }
    relay(cpu);
}

/// Takes a vCPU's deadlines off this CPU's timer: it is put, or was turned off. Its VMCS is current.
pub fn release(cpu: &mut Cpu, loaded: Loaded<'_>) {
    cpu.timer.release(&mut ThisCpu(Some(loaded.vcpu())), loaded.apic());
    relay(cpu);
}

fn demand(vcpu: &Vcpu) -> Demand {
    Demand {
        passthrough: vcpu.vm().techniques.timer == TimerAccess::Passthrough,
        same_tsc: vcpu.arch.kept.tsc_offset() == 0,
        watch: vcpu.arch.watch.next(),
    }
}

/// Tells `exit.S` who programs the timer: where IA32_TSC_DEADLINE of the loaded vCPU is, if it may write that and this CPU's timer, and how it
/// delivers the interrupts of a timer that is passed through.
fn relay(cpu: &mut Cpu) {
    let place = match cpu.timer.form() {
        Form::Relayed => cpu.apic().tsc_deadline_place().map_or(ptr::null_mut(), ptr::from_mut),
        Form::Merged | Form::PassedThrough => ptr::null_mut(),
    };
    // SAFETY: it is null, or in the loaded vCPU, whose release sets it to null. References to its APIC end with the handler that has them, or before
    // it comes here.
    unsafe { Cpu::set_direct_deadline(place) };
    cpu.note_passed_timer();
}

/// Whether this CPU's only deadline is that of the loaded vCPU's local APIC, which `exit.S` sets: once that has come, the timer is not set.
#[inline(always)]
pub fn is_relayed() -> bool {
    !Cpu::direct_deadline().is_null()
}

/// Which of this CPU's deadlines have come: the scheduler's, and the loaded vCPU's. The timer is set to the next one by whoever follows it.
pub fn due(cpu: &mut Cpu) -> (bool, bool) {
    let (own, apic) = cpu.timer_and_apic();
    own.due(timer::now(), apic.map(|apic| &*apic))
}
