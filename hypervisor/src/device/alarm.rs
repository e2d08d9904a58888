//! The alarms of the guests' clocks. The CPU that set one keeps its time: a guest that sets many costs nobody else.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use stile_board::MAX_VMS;
use stile_sched::CpuId;

use crate::{arch, cpu, vm};

/// When each VM's alarm rings, in ticks of the counter; this if it does not.
const NEVER: u64 = u64::MAX;
static ALARMS: [AtomicU64; MAX_VMS] = [const { AtomicU64::new(NEVER) }; MAX_VMS];
/// The CPU that keeps time for each.
static KEEPERS: [AtomicUsize; MAX_VMS] = [const { AtomicUsize::new(0) }; MAX_VMS];

/// Sets the alarm of a VM's clock: in seconds as [`arch::wall_clock`] counts them.
pub fn set(vm: usize, seconds: Option<u64>) {
    let ticks = seconds.map_or(NEVER, arch::ticks_of_wall_clock);
    let keeper = arch::Cpu::this_index();
    KEEPERS[vm].store(keeper, Ordering::Relaxed);
    if ALARMS[vm].swap(ticks, Ordering::AcqRel) != ticks
        && ticks != NEVER
        && let Some(keeper) = CpuId::new(keeper)
    {
        // Its timer is set when it next chooses what to run.
        cpu::call(keeper);
    }
}

/// When the next alarm rings that `cpu` keeps time for.
pub fn next(cpu: usize) -> Option<u64> {
    let kept = ALARMS.iter().zip(&KEEPERS).filter(|(_, keeper)| keeper.load(Ordering::Relaxed) == cpu);
    kept.map(|(alarm, _)| alarm.load(Ordering::Acquire)).min().filter(|&at| at != NEVER)
}

/// Rings the alarms whose time has come, if `cpu` keeps time.
pub fn ring(cpu: usize, now: u64) {
    if next(cpu).is_none_or(|at| at > now) {
        return;
    }
    for (alarm, vm) in ALARMS.iter().zip(vm::all()) {
        if alarm.load(Ordering::Acquire) <= now {
            vm.devices.clock_alarm(vm);
        }
    }
}
