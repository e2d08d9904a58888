//! Alarms of the guests' clocks, of Stile's watch, and of clients that wait for their servers. The CPU that set an alarm keeps its time, so that alarms cost
//! only the VM that sets them.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use stile_board::{MAX_CPUS, MAX_VMS};
use stile_sched::CpuId;

use crate::arch::Cpu;
use crate::arch::contract::PhysicalCpu;
use crate::once::Once;
use crate::{cpu, wall_clock};

/// The VMs', and Stile's own.
const ALARM_COUNT: usize = MAX_VMS + 2;
/// Expiry of each VM's alarm, in ticks of the counter; this value if it is off.
const NEVER: u64 = u64::MAX;
static ALARMS: [AtomicU64; ALARM_COUNT] = [const { AtomicU64::new(NEVER) }; ALARM_COUNT];
/// Index of the watch's alarm, after those of the VMs.
pub const WATCH_ALARM: usize = MAX_VMS;
/// Index of the alarm for clients that wait for their servers.
pub const PATIENCE_ALARM: usize = MAX_VMS + 1;
/// Called with the time when the watch's alarm expires.
pub static WATCH: Once<fn(u64)> = Once::new();
/// The CPU that keeps time for each alarm.
static KEEPERS: [AtomicUsize; ALARM_COUNT] = [const { AtomicUsize::new(0) }; ALARM_COUNT];
/// Earliest expiry of the alarms that each CPU keeps time for, or kept time for. Written by that CPU alone.
static NEXT: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(NEVER) }; MAX_CPUS];

/// Sets the alarm of a VM's clock, in seconds of [`wall_clock::seconds`].
pub fn set(vm: usize, seconds: Option<u64>) {
    set_at(vm, seconds.map_or(NEVER, wall_clock::ticks_at));
}

/// Sets the watch's alarm, in ticks of the counter.
pub fn set_watch(at: u64) {
    set_at(WATCH_ALARM, at);
}

/// Sets the alarm for clients that wait for their servers, in ticks of the counter.
#[allow(dead_code, reason = "not every architecture has served devices")]
pub fn set_patience(at: u64) {
    set_at(PATIENCE_ALARM, at);
}

fn set_at(vm: usize, ticks: u64) {
    set_on(Cpu::this_index(), vm, ticks);
}

/// Sets an alarm on `keeper`, the calling CPU.
fn set_on(keeper: usize, vm: usize, ticks: u64) {
    let is_kept = KEEPERS[vm].swap(keeper, Ordering::Relaxed) == keeper;
    // The previous keeper no longer checks this alarm.
    if ALARMS[vm].swap(ticks, Ordering::AcqRel) == ticks && is_kept {
        return;
    }
    update_next(keeper);
    if ticks != NEVER
        && let Some(keeper) = CpuId::new(keeper)
    {
        // Its timer is set at its next reschedule.
        cpu::request_resched(keeper);
    }
}

/// Recomputes the earliest expiry of the alarms that `cpu`, the calling CPU, keeps time for.
fn update_next(cpu: usize) {
    let kept = ALARMS.iter().zip(&KEEPERS).filter(|(_, keeper)| keeper.load(Ordering::Relaxed) == cpu);
    let first = kept.map(|(alarm, _)| alarm.load(Ordering::Acquire)).min();
    NEXT[cpu % MAX_CPUS].store(first.unwrap_or(NEVER), Ordering::Relaxed);
}

/// Earliest time at which `cpu` must check the alarms.
#[inline]
pub fn next(cpu: usize) -> Option<u64> {
    Some(NEXT[cpu % MAX_CPUS].load(Ordering::Relaxed)).filter(|&at| at != NEVER)
}

/// Alarms that ring in one pass. VMs can set theirs to the same second, and make each interrupt take some 8,000 instructions.
const AT_ONCE: usize = 4;

/// Calls `ring` with the numbers of due alarms that `cpu`, the calling CPU, keeps time for: at most [`AT_ONCE`]. If more are due,
/// [`next`] stays in the past, and the CPU's next reschedule, which is requested, is the next pass.
#[cold]
pub fn for_each_due(cpu: usize, now: u64, ring: impl Fn(usize)) {
    let kept = ALARMS.iter().zip(&KEEPERS).enumerate();
    let is_due = |alarm: &AtomicU64, keeper: &AtomicUsize| keeper.load(Ordering::Relaxed) == cpu && alarm.load(Ordering::Acquire) <= now;
    kept.filter(|(_, (alarm, keeper))| is_due(alarm, keeper)).take(AT_ONCE).for_each(|(number, _)| ring(number));
    update_next(cpu);
    if next(cpu).is_some_and(|at| at <= now)
        && let Some(cpu) = CpuId::new(cpu)
    {
        cpu::request_resched(cpu);
    }
}

/// Turns an alarm of Stile's own off.
pub fn clear(alarm: usize) {
    ALARMS[alarm].store(NEVER, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;

    use super::*;

    /// A guest's CPUs write the registers of its clock in turn.
    #[test]
    fn an_alarm_that_another_cpu_sets_again_rings_there() {
        // Of no other test.
        const VM: usize = MAX_VMS - 1;
        const CPUS: [usize; 2] = [MAX_CPUS - 2, MAX_CPUS - 1];
        let due = |cpu: usize, now: u64| {
            let rung = RefCell::new(Vec::new());
            for_each_due(cpu, now, |number| rung.borrow_mut().push(number));
            rung.into_inner()
        };
        set_on(CPUS[0], VM, 100);
        set_on(CPUS[1], VM, 100);
        assert_eq!(next(CPUS[1]), Some(100));
        assert_eq!(due(CPUS[0], 100), [], "the other one keeps it");
        assert_eq!(due(CPUS[1], 100), [VM]);
        set_on(CPUS[1], VM, NEVER);
        assert_eq!((next(CPUS[0]), next(CPUS[1])), (None, None));
    }

    #[test]
    fn alarms_of_one_moment_ring_in_several_passes() {
        // Of no other test.
        const VMS: core::ops::Range<usize> = 10..20;
        const CPU: usize = MAX_CPUS - 3;
        VMS.for_each(|vm| set_on(CPU, vm, 100));
        let rung = RefCell::new(Vec::new());
        for pass in 1.. {
            for_each_due(CPU, 100, |number| {
                set_on(CPU, number, NEVER);
                rung.borrow_mut().push(number);
            });
            assert!(rung.borrow().len() <= pass * AT_ONCE);
            if next(CPU).is_none() {
                break;
            }
            assert_eq!(next(CPU), Some(100), "another pass is due");
        }
        assert_eq!(rung.into_inner(), Vec::from_iter(VMS));
    }
}
