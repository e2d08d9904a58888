//! Physical CPUs and what they run: the slow way out of an exit, where the scheduler (crate `stile-sched`) chooses.

use core::sync::atomic::Ordering;

use stile_ledger::RowId;
use stile_sched::deadline::Sleepers;
use stile_sched::lock::{TicketGuard, TicketLock};
use stile_sched::{CpuId, Loading, Scheduler, State, Switch, VcpuId};

mod block;
mod errand;
mod outcome;
mod patience;
#[cfg(target_os = "none")]
pub mod start;
mod wake;

use crate::arch::contract::{Counter, Host, PhysicalCpu, Platform, VcpuPart};
use crate::arch::{Arch, Cpu};
use crate::device::alarm;
use crate::once::Once;
use crate::vm::{self, Vcpu, power};
#[cfg_attr(not(target_os = "none"), allow(unused_imports))]
pub use block::Block;
#[cfg_attr(not(target_os = "none"), allow(unused_imports))]
pub use outcome::Outcome;
pub use wake::*;

/// Why a vCPU is left.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// A reschedule was requested, or the vCPU was stopped.
    Resched,
    /// The timer rang: a slice may be over, or a sleeping vCPU's deadline has come.
    Timer,
    /// The vCPU waits for an interrupt.
    Wait,
    /// The vCPU has nothing to do just now, but is ready.
    Yield,
    /// The vCPU powers itself off.
    Off,
}

/// Everything that the scheduler knows, and the sleepers.
pub struct Schedule {
    /// Who runs where.
    pub scheduler: Scheduler,
    sleepers: Sleepers,
}

/// The schedule.
pub static SCHEDULE: TicketLock<Schedule> = TicketLock::new(Schedule { scheduler: Scheduler::new(), sleepers: Sleepers::new() });

/// Ticks of a time slice.
static SLICE: Once<u64> = Once::new();

/// Sets the length of a time slice.
pub fn setup(slice_us: u32) {
    SLICE.set(u64::from(slice_us) * Arch::frequency() / 1_000_000);
}

/// Ticks of a time slice. (Not every architecture counts in them.)
#[allow(dead_code)]
pub fn slice() -> u64 {
    *SLICE.get()
}

/// Number of a CPU as the scheduler has it.
fn id(cpu: &Cpu) -> CpuId {
    CpuId::new(cpu.index).unwrap_or(const { CpuId::new(0).unwrap() })
}

/// Lets this CPU run vCPUs.
pub fn online(cpu: &Cpu) {
    SCHEDULE.lock().scheduler.cpu_online(id(cpu));
}

/// Unpublishes the running vCPU: senders must now go through the scheduler.
fn unpublish(vcpu: &Vcpu) {
    vcpu.runs_on.store(NOWHERE, Ordering::Relaxed);
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// The slow way out of an exit. When this returns, a vCPU is loaded, its general registers are in the frame, and it may be entered.
pub fn leave(cpu: &mut Cpu, row: RowId) {
    let vcpu = cpu.vcpu();
    unpublish(vcpu);
    let reason = cpu.leave;
    let now = Arch::now();
    let ticks = now.wrapping_sub(cpu.since);
    vcpu.with_ledger(|ledger| {
        ledger.account(row, ticks);
        cpu.settle_ledger(ledger);
    });
    take_resched(cpu);

    // Interrupts that are pending already end the wait before it begins.
    let reason = if reason == Leave::Wait && cpu.interrupt_pending() { Leave::Yield } else { reason };
    let me = id(cpu);
    alarm::expire(cpu.index, now);
    let mut schedule = SCHEDULE.lock();
    let switch = match reason {
        Leave::Wait => schedule.scheduler.block(me, now),
        Leave::Yield => schedule.scheduler.yield_now(me, now),
        Leave::Off => schedule.scheduler.off(me, now),
        // Whatever called, a slice that is over is over.
        Leave::Resched | Leave::Timer => {
            let due = slice_is_over(cpu, now);
            wake_sleepers(&mut schedule, me, now);
            if due { schedule.scheduler.slice_end(me, now) } else { schedule.scheduler.pick_next(me, now) }
        }
    };
    release(cpu, &schedule, &switch);
    let left = (reason == Leave::Off).then(|| Arch::record_off(vcpu.vm(), vcpu.arch.index()));
    let runs = carry_out(cpu, schedule, switch, now);
    if let Some(left) = left {
        Arch::powered_off(vcpu.vm(), vcpu.arch.index());
        if left == 0 {
            // Nobody is left to turn it on again.
            power::end(vcpu.vm(), power::End::Off);
        }
    }
    if vcpu.vm().power.is_changing() {
        power::settle(vcpu.vm());
    }
    run(cpu, runs);
}

/// Whether the slice of the vCPU that runs has ended.
#[inline(always)]
fn slice_is_over(cpu: &Cpu, now: u64) -> bool {
    cpu.slice_end.is_some_and(|end| now >= end)
}

/// If the vCPU whose registers this CPU holds is off now, lets go of them while the schedule is locked: who restarts its VM waits for the
/// lock, and finds its interrupts' state in memory. If it is parked now, puts it.
fn release(cpu: &mut Cpu, schedule: &Schedule, switch: &Switch) -> Option<&'static Vcpu> {
    let held = match switch.next {
        Some(next) => next.loading != Loading::Empty,
        None => schedule.scheduler.loaded(id(cpu)).is_some(),
    };
    if held {
        return None;
    }
    let_go(cpu, schedule)
}

/// Puts or drops the registers that this CPU holds, if any: their vCPU is parked or off.
#[cold]
#[inline(never)]
fn let_go(cpu: &mut Cpu, schedule: &Schedule) -> Option<&'static Vcpu> {
    let vcpu = cpu.vcpu.take()?;
    // The rest of its slice is nobody's.
    cpu.slice_end = None;
    if schedule.scheduler.state(vcpu.id) == State::Parked {
        // Once it is resumed it is ready, so that it needs no deadline.
        let _ = cpu.put(vcpu, false);
    } else {
        cpu.power_down(vcpu);
    }
    Some(vcpu)
}

/// Wakes those whose time has come. Kicks are for this CPU itself or are sent at once.
fn wake_sleepers(schedule: &mut Schedule, cpu: CpuId, now: u64) {
    while let Some(vcpu) = schedule.sleepers.expired(cpu, now) {
        if let Some(placement) = schedule.scheduler.wake(vcpu, now)
            && placement.kick
            && placement.cpu != cpu
        {
            request_resched(placement.cpu);
        }
    }
}

/// Does what the scheduler decided: puts the old vCPU while the schedule is locked, so that another CPU finds its registers in memory,
/// and loads the new one. Returns whether there is one to run.
fn carry_out(cpu: &mut Cpu, mut schedule: TicketGuard<'_, Schedule>, switch: Switch, now: u64) -> bool {
    let me = id(cpu);
    if let Some(next) = switch.next
        && let Loading::Replace(old) = next.loading
        && let Some(vcpu) = cpu.vcpu.take()
    {
        cpu.slice_end = None;
        let sleeps = schedule.scheduler.state(old) == State::Blocked;
        let deadline = cpu.put(vcpu, sleeps);
        if let Some(deadline) = deadline {
            schedule.sleepers.set(me, old, deadline);
        }
    }
    if let Some(next) = switch.next
        && next.loading != Loading::Loaded
    {
        // It sleeps no more, wherever it did.
        schedule.sleepers.cancel(next.vcpu);
    }
    let sleeper = next_deadline(&schedule, cpu);
    drop(schedule);
    if let Some(kick) = switch.kick {
        request_resched(kick);
    }

    let Some(next) = switch.next else {
        set_timer(cpu, sleeper);
        cpu.slice_end = None;
        return false;
    };
    match next.loading {
        Loading::Loaded => {}
        Loading::Empty => load(cpu, next.vcpu, false),
        Loading::Replace(_) => load(cpu, next.vcpu, true),
    }
    share(cpu, switch.contended, sleeper, now);
    true
}

/// When this CPU has to wake somebody, to ring an alarm, or to enforce a cap.
fn next_deadline(schedule: &Schedule, cpu: &Cpu) -> Option<u64> {
    let me = id(cpu);
    let never = u64::MAX;
    let sleeper = schedule.sleepers.earliest(me).unwrap_or(never);
    let next = sleeper.min(alarm::next(cpu.index).unwrap_or(never)).min(schedule.scheduler.deadline(me));
    (next != never).then_some(next)
}

/// Sets what depends on whether others want this CPU: the slice's timer, and the traps of instructions that wait.
#[inline(always)]
fn share(cpu: &mut Cpu, contended: bool, sleeper: Option<u64>, now: u64) {
    let slice_end = contended.then(|| cpu.slice_end.filter(|&end| end > now).unwrap_or(now + SLICE.get()));
    cpu.slice_end = slice_end;
    set_timer(cpu, slice_end.into_iter().chain(sleeper).min());
    let trapped = contended || !cpu.vcpu().vm().techniques.wfi_passthrough;
    if cpu.waiting_trapped != trapped {
        cpu.waiting_trapped = trapped;
        cpu.trap_waiting(trapped);
    }
}

/// Sets this CPU's timer, unless it is set so.
fn set_timer(cpu: &mut Cpu, deadline: Option<u64>) {
    if cpu.deadline != deadline {
        cpu.deadline = deadline;
        cpu.set_deadline(deadline);
    }
}

/// Loads a vCPU onto this CPU, which has none. `turns`: it had another one.
fn load(cpu: &mut Cpu, which: VcpuId, switched: bool) {
    let vcpu = vm::vcpu(which);
    cpu.vcpu = Some(vcpu);
    vcpu.with_ledger(|ledger| cpu.open_ledger(ledger));
    cpu.load(vcpu, switched);
}

/// Makes a vCPU ready for entry: the one that the scheduler chose, if it `runs`, or else the next that comes.
#[inline(always)]
fn run(cpu: &mut Cpu, runs: bool) {
    if !(runs && publish(cpu)) {
        run_later(cpu, runs);
    }
}

/// Publishes that the loaded vCPU runs here. False if it is not to be entered: it has an errand, or waits on.
#[inline(always)]
fn publish(cpu: &mut Cpu) -> bool {
    let vcpu = cpu.vcpu();
    if vcpu.vm().power.has_errand() {
        return false;
    }
    vcpu.runs_on.store(cpu.index as u32, Ordering::Relaxed);
    core::sync::atomic::fence(Ordering::SeqCst);
    // An interrupt that became pending before the store above sent no notification.
    cpu.take_interrupts()
}

/// No vCPU `runs`, or the one that does is not to be entered yet.
#[inline(never)]
fn run_later(cpu: &mut Cpu, mut runs: bool) {
    loop {
        runs = if !runs {
            idle(cpu)
        } else if cpu.vcpu().vm().power.has_errand() {
            errand::run(cpu)
        } else {
            wait_on(cpu)
        };
        if runs && publish(cpu) {
            return;
        }
    }
}

/// The vCPU was woken while it waits, by what does not end that. Returns whether there is one to run.
#[cold]
fn wait_on(cpu: &mut Cpu) -> bool {
    unpublish(cpu.vcpu());
    let pending = cpu.interrupt_pending();
    let (me, now) = (id(cpu), Arch::now());
    let mut schedule = SCHEDULE.lock();
    let switch = if pending { schedule.scheduler.yield_now(me, now) } else { schedule.scheduler.block(me, now) };
    apply(cpu, schedule, switch, now)
}

/// Nothing to run: sleeps until an interrupt, and asks again. Returns whether there is a vCPU to run.
fn idle(cpu: &mut Cpu) -> bool {
    // Masked interrupts end the wait, too, so none is missed between the scheduler's answer and here.
    if !take_resched(cpu) {
        Arch::wait_for_interrupt();
        cpu.idle_interrupt();
    }
    let now = Arch::now();
    alarm::expire(cpu.index, now);
    let mut schedule = SCHEDULE.lock();
    wake_sleepers(&mut schedule, id(cpu), now);
    let switch = schedule.scheduler.pick_next(id(cpu), now);
    apply(cpu, schedule, switch, now)
}

/// Does what the scheduler decided for a CPU whose vCPU, if it has one, waits: that may have been stopped meanwhile. Returns whether there is
/// one to run.
fn apply(cpu: &mut Cpu, schedule: TicketGuard<'_, Schedule>, switch: Switch, now: u64) -> bool {
    let stopped = release(cpu, &schedule, &switch);
    let runs = carry_out(cpu, schedule, switch, now);
    if let Some(stopped) = stopped {
        power::settle(stopped.vm());
    }
    runs
}

/// Forgets a VM. All its vCPUs are off, and nobody starts one.
pub fn remove_vm(vm: u8) {
    let mut schedule = SCHEDULE.lock();
    schedule.scheduler.vcpus_of(vm).for_each(|vcpu| schedule.sleepers.cancel(vcpu));
    schedule.scheduler.remove_vm(vm);
}

/// Brings a CPU of a test to its first vCPU.
#[cfg(test)]
pub fn run_for_tests(cpu: &mut Cpu) {
    run(cpu, false);
}

/// This CPU has booted: it runs vCPUs from now on.
pub fn work(cpu: &mut Cpu) -> ! {
    run(cpu, false);
    cpu.enter()
}
