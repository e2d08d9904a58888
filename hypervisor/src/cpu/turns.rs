//! Decides when turns of a VM's vCPUs become short ([`Turns`](crate::vm::Turns)).

use stile_sched::{CpuId, Locked, State};

use super::schedule::slice;
use crate::arch::contract::Counter;
use crate::arch::{Arch, Cpu};
use crate::vm::{Turns, Vcpu, Vm};

/// Shortest turn of a vCPU, and what remains of one that sent an interrupt to another vCPU, in microseconds: shorter
/// than the time that spinning would waste.
const SHORT_US: u64 = 2;

/// Turns of a VM's vCPUs.
pub fn of_vm() -> Turns {
    Turns::new(slice(), (SHORT_US * Arch::frequency() / 1_000_000).max(1))
}

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
    is_beside && waited && vm.turns.shorten(ran, vm.vcpus.len()) > vm.turns.shortest()
}

/// Called when a vCPU was left because its slice expired, or by a request. Shortens its slice if turns have become
/// short; counts a short turn that `is_over`, or that ended early because a vCPU waited: those that wait for each other
/// do not spin.
#[inline(always)]
pub fn adjust(cpu: &mut Cpu, vm: &Vm, is_over: bool, now: u64) {
    if vm.turns.are_short() {
        adjust_short(cpu, vm, is_over, now);
    }
}

#[cold]
#[inline(never)]
fn adjust_short(cpu: &mut Cpu, vm: &Vm, is_over: bool, now: u64) {
    match cpu.slice_end {
        Some(slice_end) if !is_over => cpu.slice_end = Some(slice_end.min(now + vm.turns.shortest())),
        Some(_) | None => vm.turns.end(),
    }
}
