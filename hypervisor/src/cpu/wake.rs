//! Kicks and wake-ups of vCPUs.

use core::sync::atomic::Ordering;

use stile_sched::{CpuId, Locked};

use super::pace::AT_ONCE;
use super::resched::request_resched;
use super::schedule::{SCHEDULE, id, next_deadline, share, slice};
use super::turns;
use crate::arch::contract::{Counter, PhysicalCpu, VcpuPart};
use crate::arch::{Arch, Cpu};
use crate::vm::{NOWHERE, Vcpu};

/// Reports to the scheduler the vCPU that a handler woke since this CPU's last call, if any: see [`wake_beside`].
#[inline(always)]
pub fn report_woken(schedule: &mut Locked<'_>, cpu: &mut Cpu) {
    if let Some((vcpu, at)) = cpu.woken.take()
        && let Some(placement) = schedule.wake(vcpu, at)
        && placement.kick
        && placement.cpu != id(cpu)
    {
        request_resched(placement.cpu);
    }
}

/// Wakes sleepers whose deadline has passed, a bounded number of them, at their VMs' expense. Kicks are for this CPU, or are sent
/// immediately. Returns the time of its end, from which on the caller charges others.
#[must_use]
pub fn wake_sleepers(schedule: &mut Locked<'_>, cpu: &mut Cpu, now: u64) -> u64 {
    let me = id(cpu);
    let (mut woken, mut ended) = (0, now);
    while woken < AT_ONCE
        && let Some(vcpu) = schedule.expired(me, now)
    {
        woken += 1;
        if let Some(placement) = schedule.wake(vcpu, now)
            && placement.kick
            && placement.cpu != me
        {
            request_resched(placement.cpu);
        }
        let began = core::mem::replace(&mut ended, Arch::now());
        schedule.charge_woken(me, vcpu, began, ended);
    }
    if woken != 0 {
        cpu.pace.woke(cpu.slice_end.is_some(), now, ended, slice());
    }
    if woken == AT_ONCE {
        // The timer is set again, even if the next deadline is the one for which it has just expired.
        cpu.deadline = Some(0);
    }
    ended
}

/// Kicks or wakes a vCPU for which a request was added.
#[inline]
pub fn notify(vcpu: &Vcpu) {
    if !kick_if_running(vcpu) {
        wake(vcpu);
    }
}

/// First half of [`notify`]. Returns false if the vCPU does not run, so that it must be woken.
#[inline(always)]
pub fn kick_if_running(vcpu: &Vcpu) -> bool {
    running_on(vcpu).inspect(|&cpu| Cpu::kick(cpu)).is_some()
}

/// Returns the CPU on which a vCPU runs, for a sender that has added a request: it kicks that CPU, or wakes the vCPU
/// if there is none.
#[inline(always)]
pub fn running_on(vcpu: &Vcpu) -> Option<usize> {
    // Pairs with the fence in `run` and `stand_aside`: at least one side sees the other side's write.
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

/// Wakes a vCPU from an idle CPU, which asks the scheduler next and needs no kick.
pub fn wake_from_idle(cpu: &Cpu, vcpu: &Vcpu) {
    if let Some(other) = place(vcpu).filter(|&other| other != id(cpu)) {
        request_resched(other);
    }
}

/// Makes a vCPU ready. Returns the CPU that must reschedule.
fn place(vcpu: &Vcpu) -> Option<CpuId> {
    let now = Arch::now();
    let mut schedule = SCHEDULE.lock_vcpu(vcpu.id);
    vcpu.wake_up();
    let placement = schedule.wake(vcpu.id, now)?;
    (placement.kick || is_here(placement.cpu) && turns::sent(&schedule, placement.cpu, vcpu, now)).then_some(placement.cpu)
}

/// Whether `cpu` is the calling CPU.
fn is_here(cpu: CpuId) -> bool {
    cpu.index() == Cpu::this_index()
}

/// Wakes a vCPU from a handler whose own vCPU continues: if the woken one waits for this CPU, the two now share it.
///
/// A vCPU that is bound to this CPU can run nowhere else, and not before this CPU leaves its own: the schedule is not locked
/// before that.
pub fn wake_beside(cpu: &mut Cpu, vcpu: &Vcpu) {
    let now = Arch::now();
    if vcpu.sleeps_on(cpu.index) && cpu.woken.is_none() {
        vcpu.wake_up();
        cpu.woken = Some((vcpu.id, now));
        // Otherwise the CPU is shared already: its slice ends, and instructions that wait are trapped.
        if cpu.slice_end.is_none() {
            // Without a slice the timer is set for what else this CPU has to do.
            share(cpu, true, cpu.deadline, now);
        }
        return;
    }
    let me = id(cpu);
    if cpu.woken.is_some() {
        report_woken(&mut SCHEDULE.lock(me), cpu);
    }
    let mut schedule = SCHEDULE.lock_vcpu(vcpu.id);
    vcpu.wake_up();
    let Some(placement) = schedule.wake(vcpu.id, now) else { return };
    if !placement.kick {
        if placement.cpu != me || !turns::sent(&schedule, placement.cpu, vcpu, now) {
            return;
        }
        turns::adjust(cpu, vcpu.vm(), false, now);
    }
    if placement.cpu != me {
        drop(schedule);
        return request_resched(placement.cpu);
    }
    if !schedule.holds(me) {
        drop(schedule);
        schedule = SCHEDULE.lock(me);
    }
    let sleeper = next_deadline(&schedule, cpu, true);
    // An idle CPU's lock was not free, or the CPU became idle just now.
    let spreads = placement.kick && schedule.may_spread(me);
    drop(schedule);
    share(cpu, true, sleeper, now);
    if spreads {
        request_resched(me);
    }
}

/// Starts a vCPU that is off and whose registers are set.
pub fn start(vcpu: &Vcpu) {
    let now = Arch::now();
    let mut schedule = SCHEDULE.lock_vcpu(vcpu.id);
    if vcpu.vm().power.is_ending() {
        // The end of a VM sets its state, then stops its vCPUs, each under its CPU's lock: this vCPU may have been
        // stopped already.
        return;
    }
    let placement = if vcpu.vm().power.is_held() {
        // No CPU has its registers.
        schedule.start_parked(vcpu.id, now)
    } else {
        schedule.start(vcpu.id, now)
    };
    drop(schedule);
    match placement {
        Ok(placement) if placement.kick => request_resched(placement.cpu),
        Ok(_) => {}
        Err(error) => crate::console::log_of!(vcpu.vm(), "vCPU {} of {} can't start: {error:?}", vcpu.id.vcpu(), vcpu.vm().name),
    }
}
