//! Physical CPUs and the slow path of an exit, on which the scheduler (crate `stile-sched`) selects the next vCPU.

use core::mem;
use core::sync::atomic::Ordering;

use stile_ledger::RowId;
use stile_sched::{CpuId, Loading, Locked, State, Switch, VcpuId};

mod block;
pub mod classes;
mod errand;
mod expiry;
mod leave;
mod loaded;
mod outcome;
mod pace;
mod patience;
mod resched;
mod schedule;
#[cfg(target_os = "none")]
mod schedule_memory;
#[cfg(target_os = "none")]
pub mod start;
pub mod stolen;
pub mod turns;
mod wake;

use crate::arch::contract::{Counter, Host, PhysicalCpu, Platform, VcpuPart};
use crate::arch::{Arch, Cpu};
use crate::console::log_of;
use crate::vm::{self, NOWHERE, Vcpu, power};
#[cfg_attr(not(target_os = "none"), allow(unused_imports, reason = "used by the exit paths of real back ends"))]
pub use block::Block;
pub use leave::Leave;
pub use loaded::Loaded;
#[cfg_attr(not(target_os = "none"), allow(unused_imports, reason = "used by the exit paths of real back ends"))]
pub use outcome::Outcome;
pub use pace::Pace;
pub use resched::*;
#[cfg(test)]
pub use schedule::timer_is_in_time;
#[allow(unused_imports, reason = "not every architecture counts in slices")]
pub use schedule::{SCHEDULE, add_vm, memory_of_vms, remove_vm, setup, slice};
use schedule::{advance_timer, id, next_deadline, set_timer, share, slice_is_over};
pub use wake::*;
use wake::{report_woken, wake_sleepers};

/// Makes this CPU available to the scheduler.
///
/// # Errors
/// A description of why it cannot be used.
pub fn online(cpu: &Cpu) -> Result<(), &'static str> {
    classes::add(id(cpu), cpu.kind())?;
    SCHEDULE.cpu_online(id(cpu));
    Ok(())
}

/// Unpublishes the running vCPU: senders must now go through the scheduler.
fn unpublish(vcpu: &Vcpu) {
    vcpu.runs_on.store(NOWHERE, Ordering::Relaxed);
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// The slow path of an exit. On return a vCPU is loaded, its general registers are in the frame, and it may be
/// entered.
pub fn leave(cpu: &mut Cpu, row: RowId) {
    let mut now = Arch::now();
    let reason = cpu.leave;
    let ticks = now.wrapping_sub(cpu.since);
    let taken = mem::take(&mut cpu.taken);
    let loaded = cpu.loaded();
    let vcpu = loaded.vcpu();
    let ledger = loaded.ledger();
    ledger.account(row, ticks);
    ledger.taken += taken;
    unpublish(vcpu);
    let requested = take_resched(cpu);

    // Interrupts that are already pending end the wait before it starts.
    let reason = if reason == Leave::Wait && cpu.interrupt_pending() { Leave::Yield } else { reason };
    let me = id(cpu);
    expiry::due(cpu.index, now);
    let mut schedule = SCHEDULE.lock(me);
    if reason == Leave::Wait
        && let Some((next, deadline)) = hand_over(cpu, &mut schedule, me, now)
    {
        // The timer is set for this CPU's other deadlines, unless the request stands for an alarm.
        let deadline = if requested { next_deadline(&schedule, cpu, false) } else { deadline };
        drop(schedule);
        cpu.finish_put();
        assign(cpu, next);
        cpu.load_beside(next);
        // The slice timer and the traps of waiting instructions stay as the slice that ended early needed them: the
        // next vCPU often hands the CPU back, and would set both again. Otherwise the timer's interrupt, or a wait
        // that traps, reaches `share`, which resets them.
        advance_timer(cpu, deadline);
        return run(cpu, true);
    }
    report_woken(&mut schedule, cpu);
    let switch = match reason {
        Leave::Wait => schedule.block(me, now),
        Leave::Yield => schedule.yield_now(me, now),
        Leave::Off => schedule.off(me, now),
        // An expired slice ends, for any reason of leaving.
        Leave::Resched | Leave::Timer => {
            let due = slice_is_over(cpu, now);
            turns::adjust(cpu, vcpu.vm(), due, now);
            now = wake_sleepers(&mut schedule, cpu, now);
            if due { slice_end(&mut schedule, vcpu, me, now) } else { schedule.pick_next(me, now) }
        }
    };
    release(cpu, &schedule, &switch);
    let left = (reason == Leave::Off).then(|| Arch::record_off(vcpu.vm(), vcpu.arch.index()));
    let runs = carry_out(cpu, schedule, switch, now);
    if let Some(left) = left {
        Arch::powered_off(vcpu.vm(), vcpu.arch.index());
        if left == 0 {
            // No vCPU is left that could power it on again.
            log_of!(vcpu.vm(), "{}: all of its vCPUs are off", vcpu.vm().name);
            power::end(vcpu.vm(), power::End::Off);
        }
    }
    if vcpu.vm().power.is_changing() {
        power::settle(vcpu.vm());
    }
    run(cpu, runs);
}

/// Puts the loaded vCPU, which waits, if the one that it woke replaces it: see [`Scheduler::hand_over`](stile_sched::Scheduler::hand_over).
/// Returns that one, to be loaded, and the deadline of the vCPU that was put. The scheduler need not know of the wake-up
/// yet.
#[inline(always)]
fn hand_over(cpu: &mut Cpu, schedule: &mut Locked<'_>, me: CpuId, now: u64) -> Option<(&'static Vcpu, Option<u64>)> {
    let (to, woken) = cpu.woken?;
    schedule.hand_over(me, to, woken, now)?;
    cpu.woken = None;
    // One is loaded: the one that waits.
    let (from, deadline) = put(cpu, schedule, me, true)?;
    // It is of the same VM.
    Some((from.vm().vcpus[usize::from(to.vcpu())], deadline))
}

/// Ends the slice of `vcpu`, and publishes the stolen time of it and of the next one.
#[cold]
fn slice_end(schedule: &mut Locked<'_>, vcpu: &Vcpu, me: CpuId, now: u64) -> Switch {
    let switch = schedule.slice_end(me, now);
    stolen::publish(schedule, vcpu, now);
    if let Some(next) = switch.next.filter(|next| next.vcpu != vcpu.id) {
        stolen::publish(schedule, vm::vcpu(next.vcpu), now);
    }
    switch
}

/// Drops this CPU's registers of a vCPU that is off, while the schedule is locked: a CPU that restarts the VM waits
/// for the lock, and finds the interrupt state in memory. Puts those of a vCPU that is parked.
fn release(cpu: &mut Cpu, schedule: &Locked<'_>, switch: &Switch) -> Option<&'static Vcpu> {
    let held = match switch.next {
        Some(next) => next.loading != Loading::Empty,
        None => schedule.loaded(id(cpu)).is_some(),
    };
    if held {
        return None;
    }
    let_go(cpu, schedule)
}

/// Puts or drops the registers that this CPU holds, if any: their vCPU is parked or off.
#[cold]
#[inline(never)]
fn let_go(cpu: &mut Cpu, schedule: &Locked<'_>) -> Option<&'static Vcpu> {
    let loaded = cpu.unload()?;
    let vcpu = loaded.vcpu();
    // The rest of its slice is forfeited.
    cpu.slice_end = None;
    if schedule.state(vcpu.id) == State::Parked {
        // A resumed vCPU becomes ready, and so needs no deadline.
        let _ = cpu.put(loaded, false);
    } else {
        cpu.power_down(loaded);
    }
    Some(vcpu)
}

/// Carries out the scheduler's decision: puts the old vCPU while the schedule is locked, so that another CPU finds
/// its registers in memory, and loads the new one. Returns whether there is one to run.
fn carry_out(cpu: &mut Cpu, mut schedule: Locked<'_>, switch: Switch, now: u64) -> bool {
    if let Some(next) = switch.next
        && let Loading::Replace(old) = next.loading
    {
        let sleeps = schedule.state(old) == State::Blocked;
        put(cpu, &mut schedule, id(cpu), sleeps);
    }
    if let Some(next) = switch.next
        && next.loading != Loading::Loaded
    {
        // Cancels its deadline, on whichever CPU it slept.
        schedule.cancel_deadline(next.vcpu);
    }
    let sleeper = next_deadline(&schedule, cpu, switch.contended);
    drop(schedule);
    cpu.finish_put();
    switch.kicks.iter().for_each(request_resched);

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

/// Puts the loaded vCPU, which another one replaces, and returns it. If it `sleeps`, its timers' deadline is set, and returned.
#[inline(always)]
fn put(cpu: &mut Cpu, schedule: &mut Locked<'_>, me: CpuId, sleeps: bool) -> Option<(&'static Vcpu, Option<u64>)> {
    let loaded = cpu.unload()?;
    cpu.slice_end = None;
    let vcpu = loaded.vcpu();
    let deadline = cpu.put(loaded, sleeps);
    if sleeps {
        vcpu.fall_asleep(cpu.index);
    }
    if let Some(deadline) = deadline {
        schedule.set_deadline(me, vcpu.id, deadline);
    }
    Some((vcpu, deadline))
}

/// Loads a vCPU onto this CPU, which has none loaded. `switched`: another vCPU was loaded before.
#[inline(never)]
fn load(cpu: &mut Cpu, which: VcpuId, switched: bool) {
    load_vcpu(cpu, vm::vcpu(which), switched);
}

/// [`load`], of a vCPU that was looked up before.
fn load_vcpu(cpu: &mut Cpu, vcpu: &'static Vcpu, switched: bool) {
    assign(cpu, vcpu);
    cpu.load(vcpu, switched);
}

/// Makes `vcpu`, which is loaded next, this CPU's.
#[inline(always)]
fn assign(cpu: &mut Cpu, vcpu: &'static Vcpu) {
    vcpu.wake_up();
    cpu.vcpu = Some(vcpu);
    cpu.rows = vcpu.ledger_rows();
}

/// Prepares a vCPU for entry: the one that the scheduler selected, if it `runs`, otherwise the next one.
#[inline(always)]
fn run(cpu: &mut Cpu, runs: bool) {
    if !(runs && publish(cpu)) {
        run_later(cpu, runs);
    }
}

/// Publishes that the loaded vCPU runs here. Returns false if it must not be entered: it has an errand, or still
/// waits.
#[inline(always)]
fn publish(cpu: &mut Cpu) -> bool {
    let vcpu = cpu.vcpu();
    if vcpu.vm().power.has_errand() {
        return false;
    }
    vcpu.runs_on.store(cpu.index as u32, Ordering::Relaxed);
    core::sync::atomic::fence(Ordering::SeqCst);
    // Requests that were added before the store above sent no notification.
    cpu.take_interrupts()
}

/// Slow path of `run`: no vCPU `runs`, or the one that does must not be entered yet.
#[inline(never)]
fn run_later(cpu: &mut Cpu, mut runs: bool) {
    loop {
        runs = if !runs {
            idle(cpu)
        } else if cpu.vcpu().vm().power.has_errand() {
            errand::run(cpu, |cpu, vcpu| load_vcpu(cpu, vcpu, false), apply)
        } else {
            wait_on(cpu)
        };
        if runs && publish(cpu) {
            return;
        }
    }
}

/// Handles a wake-up that does not end the vCPU's wait. Returns whether there is a vCPU to run.
#[cold]
fn wait_on(cpu: &mut Cpu) -> bool {
    unpublish(cpu.vcpu());
    let pending = cpu.interrupt_pending();
    let (me, now) = (id(cpu), Arch::now());
    let mut schedule = SCHEDULE.lock(me);
    let switch = if pending { schedule.yield_now(me, now) } else { schedule.block(me, now) };
    apply(cpu, schedule, switch, now)
}

/// Idle: sleeps until an interrupt, then asks the scheduler. Returns whether there is a vCPU to run.
fn idle(cpu: &mut Cpu) -> bool {
    // Masked interrupts also end the wait, so that none is missed between the scheduler's answer and the wait.
    if !take_resched(cpu) {
        Arch::wait_for_interrupt();
        cpu.idle_interrupt();
    }
    let now = Arch::now();
    expiry::due(cpu.index, now);
    let mut schedule = SCHEDULE.lock(id(cpu));
    let now = wake_sleepers(&mut schedule, cpu, now);
    let switch = schedule.pick_next(id(cpu), now);
    apply(cpu, schedule, switch, now)
}

/// Carries out the scheduler's decision for a CPU whose vCPU, if any, waits and may have been stopped since. Returns
/// whether there is a vCPU to run.
fn apply(cpu: &mut Cpu, schedule: Locked<'_>, switch: Switch, now: u64) -> bool {
    let stopped = release(cpu, &schedule, &switch);
    let runs = carry_out(cpu, schedule, switch, now);
    if let Some(stopped) = stopped {
        power::settle(stopped.vm());
    }
    runs
}

/// Brings the CPU of a test to its first vCPU.
#[cfg(test)]
pub fn run_for_tests(cpu: &mut Cpu) {
    run(cpu, false);
}

/// Entry of a booted CPU into the scheduler: it runs vCPUs from here on.
pub fn work(cpu: &mut Cpu) -> ! {
    run(cpu, false);
    cpu.enter()
}
