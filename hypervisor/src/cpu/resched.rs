//! Requests to reschedule: a CPU takes them before it runs anything, and with them what waits for that.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use stile_board::MAX_CPUS;
use stile_sched::{CpuId, VcpuId};

use crate::arch::Cpu;
use crate::arch::contract::PhysicalCpu;
use crate::once::Once;

/// CPUs that must ask the scheduler ([`stile_sched::Scheduler::pick_next`]).
static RESCHED: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];

/// How much waits for CPUs to take a request to reschedule: VMs that leave, samples that are wanted, and traces.
pub static AT_RESCHED: AtomicUsize = AtomicUsize::new(0);

/// Called by a CPU that takes a request to reschedule while something waits for that, with the vCPU that it has loaded. That one is not in its
/// guest, and its ledger is exact.
pub static RESCHED_HOOK: Once<fn(Option<VcpuId>)> = Once::new();
/// Called next, with the CPU: it begins or ends to record its exits.
pub static TRACE_HOOK: Once<fn(&Cpu)> = Once::new();
/// Called next, with the CPU.
pub static LEAVING_HOOK: Once<fn(&Cpu)> = Once::new();

/// Makes a CPU reschedule.
pub fn request_resched(cpu: CpuId) {
    RESCHED[cpu.index()].store(true, Ordering::Release);
    Cpu::complete_stores();
    Cpu::regain(cpu.index());
}

/// Whether a CPU has a request to reschedule that it has not taken.
pub fn is_requested(cpu: CpuId) -> bool {
    RESCHED[cpu.index()].load(Ordering::Acquire)
}

/// Whether a reschedule is requested of this CPU.
#[inline(always)]
pub fn needs_resched(cpu: &Cpu) -> bool {
    RESCHED[cpu.index % MAX_CPUS].load(Ordering::Acquire)
}

/// Takes the request to reschedule, if there is one. The caller has no reference to a VM but to those of the vCPU that it has loaded.
#[inline]
pub fn take_resched(cpu: &Cpu) -> bool {
    // The common case needs no exclusive access.
    if !(needs_resched(cpu) && RESCHED[cpu.index % MAX_CPUS].swap(false, Ordering::AcqRel)) {
        return false;
    }
    if AT_RESCHED.load(Ordering::Acquire) != 0 {
        work_at_resched(cpu);
    }
    true
}

/// Does what waits for CPUs to take a request to reschedule.
#[cold]
#[inline(never)]
fn work_at_resched(cpu: &Cpu) {
    if let Some(hook) = RESCHED_HOOK.try_get() {
        hook(cpu.vcpu.map(|vcpu| vcpu.id));
    }
    if let Some(hook) = TRACE_HOOK.try_get() {
        hook(cpu);
    }
    if let Some(hook) = LEAVING_HOOK.try_get() {
        hook(cpu);
    }
}
