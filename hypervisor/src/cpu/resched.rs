//! Reschedule requests. A CPU takes its request before it runs anything, together with the work that waits for such a
//! point.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use stile_board::MAX_CPUS;
use stile_sched::{CpuId, VcpuId};

use crate::arch::Cpu;
use crate::arch::contract::PhysicalCpu;
use crate::once::Once;

/// Whether a CPU must call [`stile_sched::Scheduler::pick_next`]. In a cache line of its own, so that requests to other
/// CPUs do not invalidate it.
#[repr(align(64))]
struct Request(AtomicBool);

/// Requests to all CPUs.
static RESCHED: [Request; MAX_CPUS] = [const { Request(AtomicBool::new(false)) }; MAX_CPUS];

/// Number of activities that wait for CPUs to take a reschedule request: VMs that are being retired, samples and
/// traces.
pub static AT_RESCHED: AtomicUsize = AtomicUsize::new(0);

/// Called by a CPU that takes a reschedule request while some activity waits for that, with its loaded vCPU, which is
/// outside of its guest and has an exact ledger.
pub static RESCHED_HOOK: Once<fn(Option<VcpuId>)> = Once::new();
/// Called next, with the CPU, to start or stop recording its exits.
pub static TRACE_HOOK: Once<fn(&Cpu)> = Once::new();
/// Called last, with the CPU.
pub static LEAVING_HOOK: Once<fn(&Cpu)> = Once::new();

/// Requests a reschedule of a CPU.
pub fn request_resched(cpu: CpuId) {
    RESCHED[cpu.index()].0.store(true, Ordering::Release);
    Cpu::complete_stores();
    Cpu::regain(cpu.index());
}

/// Whether a CPU has an untaken reschedule request.
pub fn is_requested(cpu: CpuId) -> bool {
    RESCHED[cpu.index()].0.load(Ordering::Acquire)
}

/// Whether a reschedule is requested of this CPU.
#[inline(always)]
pub fn needs_resched(cpu: &Cpu) -> bool {
    RESCHED[cpu.index % MAX_CPUS].0.load(Ordering::Acquire)
}

/// Takes this CPU's reschedule request, if any. The caller has no reference to any VM but that of its loaded vCPU.
#[inline]
pub fn take_resched(cpu: &Cpu) -> bool {
    // The common case needs no exclusive access.
    if !(needs_resched(cpu) && RESCHED[cpu.index % MAX_CPUS].0.swap(false, Ordering::AcqRel)) {
        return false;
    }
    if AT_RESCHED.load(Ordering::Acquire) != 0 {
        work_at_resched(cpu);
    }
    true
}

/// Serves the activities that wait for CPUs to take a reschedule request.
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
