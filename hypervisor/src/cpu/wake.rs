//! Kicks and wake-ups of vCPUs.

use core::sync::atomic::Ordering;

use stile_sched::CpuId;

use super::resched::request_resched;
use super::schedule::{SCHEDULE, Schedule, id, next_deadline, share};
use super::turns;
use crate::arch::contract::{Counter, PhysicalCpu, VcpuPart};
use crate::arch::{Arch, Cpu};
use crate::vm::{NOWHERE, Vcpu};

/// Wakes those whose time has come. Kicks are for this CPU itself or are sent at once.
pub fn wake_sleepers(schedule: &mut Schedule, cpu: CpuId, now: u64) {
    while let Some(vcpu) = schedule.sleepers.expired(cpu, now) {
        if let Some(placement) = schedule.scheduler.wake(vcpu, now)
            && placement.kick
            && placement.cpu != cpu
        {
            request_resched(placement.cpu);
        }
    }
}

/// Kicks or wakes a vCPU for which a request was added.
#[inline]
pub fn notify(vcpu: &Vcpu) {
    if !kick_if_running(vcpu) {
        wake(vcpu);
    }
}

/// The first half of [`notify`]. False if the vCPU does not run, so that it must be woken.
#[inline(always)]
pub fn kick_if_running(vcpu: &Vcpu) -> bool {
    running_on(vcpu).inspect(|&cpu| Cpu::kick(cpu)).is_some()
}

/// The CPU that a vCPU runs on, for who has something for it and will kick that, or else must wake the vCPU.
#[inline(always)]
pub fn running_on(vcpu: &Vcpu) -> Option<usize> {
    // Pairs with the fence in `run` and `stand_aside`: whoever comes second sees what the first one wrote.
    Cpu::complete_stores();
    let cpu = vcpu.runs_on.load(Ordering::Relaxed);
    (cpu != NOWHERE).then_some(cpu as usize)
}

/// Whether a vCPU runs on this CPU.
pub fn runs_here(vcpu: &Vcpu) -> bool {
    vcpu.runs_on.load(Ordering::Relaxed) == Cpu::this_index() as u32
}

/// Wakes a vCPU that is blocked, or about to be.
#[cold]
pub fn wake(vcpu: &Vcpu) {
    if vcpu.arch.forward_requests() {
        return;
    }
    if let Some(cpu) = place(vcpu) {
        request_resched(cpu);
    }
}

/// Wakes a vCPU from a CPU that idles: it asks the scheduler next, and needs no kick.
pub fn wake_from_idle(cpu: &Cpu, vcpu: &Vcpu) {
    if let Some(other) = place(vcpu).filter(|&other| other != id(cpu)) {
        request_resched(other);
    }
}

/// Makes a vCPU ready. Returns the CPU that must choose again.
fn place(vcpu: &Vcpu) -> Option<CpuId> {
    let now = Arch::now();
    let mut schedule = SCHEDULE.lock();
    let placement = schedule.scheduler.wake(vcpu.id, now)?;
    (placement.kick || is_here(placement.cpu) && turns::sent(&schedule, placement.cpu, vcpu, now)).then_some(placement.cpu)
}

/// Whether a CPU is this one.
fn is_here(cpu: CpuId) -> bool {
    cpu.index() == Cpu::this_index()
}

/// Wakes a vCPU from a handler whose vCPU goes on: if the other one waits for this CPU from now on, the two share it.
pub fn wake_beside(cpu: &mut Cpu, vcpu: &Vcpu) {
    let now = Arch::now();
    let mut schedule = SCHEDULE.lock();
    let Some(placement) = schedule.scheduler.wake(vcpu.id, now) else { return };
    if !placement.kick {
        if placement.cpu != id(cpu) || !turns::sent(&schedule, placement.cpu, vcpu, now) {
            return;
        }
        turns::adjust(cpu, vcpu.vm(), false, now);
    }
    if placement.cpu != id(cpu) {
        drop(schedule);
        return request_resched(placement.cpu);
    }
    let sleeper = next_deadline(&schedule, cpu);
    drop(schedule);
    share(cpu, true, sleeper, now);
}

/// Starts a vCPU that is off and whose registers are set.
pub fn start(vcpu: &Vcpu) {
    let now = Arch::now();
    let mut schedule = SCHEDULE.lock();
    if vcpu.vm().power.is_ending() {
        // The VM's end stops its vCPUs after saying so, each under this lock: it may have been here already.
        return;
    }
    let placement = schedule.scheduler.start(vcpu.id, now);
    if placement.is_ok() && vcpu.vm().power.is_held() {
        // No CPU has its registers, so that it is parked at once.
        let _ = schedule.scheduler.park(vcpu.id, now);
        return;
    }
    drop(schedule);
    match placement {
        Ok(placement) if placement.kick => request_resched(placement.cpu),
        Ok(_) => {}
        Err(error) => crate::console::log_of!(vcpu.vm(), "vCPU {} of {} can't start: {error:?}", vcpu.id.vcpu(), vcpu.vm().name),
    }
}
