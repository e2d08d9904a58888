//! Decides when turns of a VM's vCPUs become short ([`Turns`](crate::vm::Turns)).

use stile_sched::{CpuId, Locked, State};

use crate::arch::contract::Counter;
use crate::arch::{Arch, Cpu};
use crate::vm::{Vcpu, Vm};

/// Remaining turn of a vCPU that sent an interrupt to another one, in microseconds: longer than a switch, shorter
/// than the time that spinning would waste.
const SHORT_US: u64 = 2;

/// Called when CPU `here` sent an interrupt to a vCPU that runs or waits, at `now`. Returns whether the target waits
/// for `here` behind a vCPU of its own VM whose turn should end earlier: see [`adjust`].
#[cold]
pub fn sent(schedule: &Locked<'_>, here: CpuId, to: &Vcpu, now: u64) -> bool {
    let vm = to.vm();
    if !schedule.holds(here) {
        // It has come to this CPU just now.
        return false;
    }
    let Some(sender) = schedule.current(here) else { return false };
    let is_beside = sender != to.id && sender.vm() == to.id.vm();
    let waited = schedule.state(to.id) == State::Ready(here) && schedule.since(to.id) < now;
    let ran = now.saturating_sub(schedule.since(sender));
    let short = short();
    is_beside && waited && vm.turns.shorten(ran.max(short), vm.vcpus.len()) > short
}

/// [`SHORT_US`] in ticks.
fn short() -> u64 {
    SHORT_US * Arch::frequency() / 1_000_000
}

/// Called when a vCPU was left because its slice expired, or by a request. Shortens its slice if turns have become
/// short; counts a short turn that `is_over`.
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
        let end = now + short();
        cpu.slice_end = cpu.slice_end.map(|slice_end| slice_end.min(end));
    }
}
