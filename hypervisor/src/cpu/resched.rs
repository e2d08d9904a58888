//! Reschedule requests. A CPU takes its request before it runs anything, together with the work that waits for such a
//! point.

use core::sync::atomic::{AtomicUsize, Ordering};

use stile_board::MAX_CPUS;
use stile_sched::{CpuId, VcpuId};

use crate::arch::Cpu;
use crate::arch::contract::PhysicalCpu;
use crate::once::Once;

/// Whether a CPU must call [`stile_sched::Scheduler::pick_next`]: the mark of the CPU that requests it
/// ([`PhysicalCpu::mark`]), or 0. A mark takes no more instructions than a constant, and names the sender in traces. In a
/// cache line of its own, so that requests to other CPUs do not invalidate it.
#[repr(align(64))]
struct Request(AtomicUsize);

/// Requests to all CPUs.
static RESCHED: [Request; MAX_CPUS] = [const { Request(AtomicUsize::new(0)) }; MAX_CPUS];

/// Number of activities that wait for CPUs to take a reschedule request: VMs that are being retired, samples and
/// traces.
pub static AT_RESCHED: AtomicUsize = AtomicUsize::new(0);

/// Called by a CPU that takes a reschedule request while some activity waits for that, with its loaded vCPU, which is
/// outside of its guest and has an exact ledger.
pub static RESCHED_HOOK: Once<fn(Option<VcpuId>)> = Once::new();
/// Called next, with the CPU and the sender of the request, to start or stop recording its exits.
pub static TRACE_HOOK: Once<fn(&Cpu, Option<CpuId>)> = Once::new();
/// Called last, with the CPU.
pub static LEAVING_HOOK: Once<fn(&Cpu)> = Once::new();

/// Requests a reschedule of a CPU.
pub fn request_resched(cpu: CpuId) {
    Cpu::mark(&RESCHED[cpu.index()].0);
    Cpu::regain(cpu.index());
}

/// Whether a CPU has an untaken reschedule request.
pub fn is_requested(cpu: CpuId) -> bool {
    RESCHED[cpu.index()].0.load(Ordering::Acquire) != 0
}

/// Whether a reschedule is requested of this CPU.
#[inline(always)]
pub fn needs_resched(cpu: &Cpu) -> bool {
    RESCHED[cpu.index % MAX_CPUS].0.load(Ordering::Acquire) != 0
}

/// Takes this CPU's reschedule request, if any. The caller has no reference to any VM but that of its loaded vCPU.
#[inline]
pub fn take_resched(cpu: &Cpu) -> bool {
    // The common case needs no exclusive access.
    if !needs_resched(cpu) {
        return false;
    }
    let sender = RESCHED[cpu.index % MAX_CPUS].0.swap(0, Ordering::AcqRel);
    if sender == 0 {
        return false;
    }
    if AT_RESCHED.load(Ordering::Acquire) != 0 {
        work_at_resched(cpu, sender);
    }
    true
}

/// Serves the activities that wait for CPUs to take a reschedule request, which has the mark `sender`.
#[cold]
#[inline(never)]
fn work_at_resched(cpu: &Cpu, sender: usize) {
    if let Some(hook) = RESCHED_HOOK.try_get() {
        hook(cpu.vcpu.map(|vcpu| vcpu.id));
    }
    if let Some(hook) = TRACE_HOOK.try_get() {
        hook(cpu, Cpu::of_mark(sender));
    }
    if let Some(hook) = LEAVING_HOOK.try_get() {
        hook(cpu);
    }
}
