//! The schedule, and the timer and traps of this CPU that follow from it.

#[cfg(not(target_os = "none"))]
use stile_sched::Scheduler;
use stile_sched::{CpuId, Locked};

use crate::arch::contract::{Counter, PhysicalCpu};
use crate::arch::{Arch, Cpu};
use crate::device::alarm;
use crate::nodes::Near;
use crate::once::Once;

/// The schedule, with a lock for each CPU.
#[cfg(target_os = "none")]
pub static SCHEDULE: super::schedule_memory::Reserved = super::schedule_memory::Reserved;
/// The schedule, with a lock for each CPU, in memory for the largest machine.
#[cfg(not(target_os = "none"))]
pub static SCHEDULE: Scheduler = Scheduler::new();

/// Ticks of a time slice.
static SLICE: Once<u64> = Once::new();

/// Sets the length of a time slice.
pub fn setup(slice_us: u32) {
    SLICE.set(u64::from(slice_us) * Arch::frequency() / 1_000_000);
}

/// Ticks of a time slice.
pub fn slice() -> u64 {
    *SLICE.get()
}

/// A CPU's number as the scheduler's type.
pub fn id(cpu: &Cpu) -> CpuId {
    CpuId::wrapping(cpu.index)
}

/// Whether the running vCPU's slice has expired.
#[inline(always)]
pub fn slice_is_over(cpu: &Cpu, now: u64) -> bool {
    cpu.slice_end.is_some_and(|end| now >= end)
}

/// Earliest deadline of this CPU: a sleeper, an alarm or a cap. `is_shared`: vCPUs wait for the CPU.
pub fn next_deadline(schedule: &Locked<'_>, cpu: &Cpu, is_shared: bool) -> Option<u64> {
    let me = id(cpu);
    let never = u64::MAX;
    let sleeper = schedule.earliest(me).map_or(never, |at| cpu.pace.apply(at, is_shared));
    let next = sleeper.min(alarm::next(cpu.index).unwrap_or(never)).min(schedule.deadline(me));
    (next != never).then_some(next)
}

/// Sets the slice timer and the traps of WFI-like instructions, which depend on whether other vCPUs want this CPU.
#[inline(always)]
pub fn share(cpu: &mut Cpu, contended: bool, sleeper: Option<u64>, now: u64) {
    let vm = cpu.vcpu().vm();
    let slice_end = contended.then(|| cpu.slice_end.filter(|&end| end > now).unwrap_or(now + vm.turns.ticks()));
    cpu.slice_end = slice_end;
    set_timer(cpu, slice_end.into_iter().chain(sleeper).min());
    let trapped = contended || !vm.techniques.wfi_passthrough;
    if cpu.waiting_trapped != trapped {
        cpu.waiting_trapped = trapped;
        cpu.trap_waiting(trapped);
    }
}

/// Programs this CPU's timer, unless it is already set to that value.
pub fn set_timer(cpu: &mut Cpu, deadline: Option<u64>) {
    if cpu.deadline != deadline {
        cpu.deadline = deadline;
        cpu.set_deadline(deadline);
    }
}

/// Programs this CPU's timer for `deadline`, unless it expires before: its interrupt then sets it again.
#[inline(always)]
pub fn advance_timer(cpu: &mut Cpu, deadline: Option<u64>) {
    if let Some(at) = deadline
        && cpu.deadline.is_none_or(|set| at < set)
    {
        set_timer(cpu, deadline);
    }
}

/// Whether this CPU's timer expires no later than anything that it has to do, or a reschedule request will set it.
#[cfg(test)]
pub fn timer_is_in_time(cpu: &Cpu) -> bool {
    let wanted = next_deadline(&SCHEDULE.lock(id(cpu)), cpu, cpu.slice_end.is_some()).into_iter().chain(cpu.slice_end).min();
    let slice_ends = cpu.slice_end.is_none() || cpu.waiting_trapped;
    super::needs_resched(cpu) || slice_ends && wanted.is_none_or(|at| cpu.deadline.is_some_and(|set| set <= at))
}

/// Makes room for a VM's vCPUs, if possible `near`.
///
/// # Errors
/// A description: no memory is left.
#[cfg_attr(not(target_os = "none"), allow(unused_variables, reason = "the tests' schedule has room for all"))]
pub fn add_vm(vm: u8, vcpus: usize, near: &Near) -> Result<(), &'static str> {
    #[cfg(target_os = "none")]
    super::schedule_memory::add_vm(vm, vcpus, near)?;
    Ok(())
}

/// Bytes of memory that [`add_vm`] has taken: VMs with the numbers of those that were destroyed use it again.
pub fn memory_of_vms() -> u64 {
    #[cfg(target_os = "none")]
    return super::schedule_memory::of_vms();
    #[cfg(not(target_os = "none"))]
    0
}

/// Removes a VM. All its vCPUs are off, and none is started again.
pub fn remove_vm(vm: u8) {
    SCHEDULE.remove_vm(vm);
}
