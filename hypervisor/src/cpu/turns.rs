//! When turns of a VM's vCPUs become short ([`Turns`](crate::vm::Turns)).

use stile_sched::CpuId;

use super::schedule::Schedule;
use crate::arch::contract::Counter;
use crate::arch::{Arch, Cpu};
use crate::vm::{Vcpu, Vm};

/// Length of a short turn, in microseconds: more than a switch takes, and less than a spinning vCPU would waste otherwise.
const SHORT_US: u64 = 2;

/// CPU `here` has sent an interrupt to a vCPU that runs or waits, at `now`. Returns whether it waits for `here` behind one of the same VM, whose
/// turn was not short before: that is to be shortened.
#[cold]
pub fn sent(schedule: &Schedule, here: CpuId, to: &Vcpu, now: u64) -> bool {
    let scheduler = &schedule.scheduler;
    let vm = to.vm();
    let is_beside = scheduler.current(here).is_some_and(|sender| sender != to.id && sender.vm() == to.id.vm());
    let waited = scheduler.waits_since(to.id, here).is_some_and(|since| since < now);
    is_beside && waited && vm.turns.shorten(SHORT_US * Arch::frequency() / 1_000_000, vm.vcpus.len())
}

/// A vCPU was left because its turn may be over, or by a request. Its slice ends earlier if turns have become short; a short one that `is_over` is
/// counted.
#[inline(always)]
pub fn adjust(cpu: &mut Cpu, vm: &Vm, is_over: bool, now: u64) {
    if vm.turns.are_short() {
        adjust_short(cpu, vm, is_over, now);
    }
}

#[cold]
#[inline(never)]
fn adjust_short(cpu: &mut Cpu, vm: &Vm, is_over: bool, now: u64) {
    if is_over {
        vm.turns.end();
    } else {
        let end = now + vm.turns.ticks();
        cpu.slice_end = cpu.slice_end.map(|slice_end| slice_end.min(end));
    }
}
