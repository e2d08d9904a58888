//! Interrupt handling, with a per-CPU log of taken interrupts.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

use crate::board::MAX_CPUS;
use crate::{icc, instruction, mrs, smp};

/// Capacity of the log; further interrupts are only counted.
const DEPTH: usize = 128;

/// A test's hook between acknowledge and end of an interrupt.
pub type Hook = fn(intid: u32);

struct Log {
    count: AtomicUsize,
    spurious: AtomicUsize,
    intids: [AtomicU32; DEPTH],
    hook: AtomicPtr<()>,
}

static LOGS: [Log; MAX_CPUS] = [const {
    Log {
        count: AtomicUsize::new(0),
        spurious: AtomicUsize::new(0),
        intids: [const { AtomicU32::new(0) }; DEPTH],
        hook: AtomicPtr::new(core::ptr::null_mut()),
    }
}; MAX_CPUS];

/// Masks interrupts on this CPU.
pub fn mask() {
    instruction!("msr DAIFSet, #2");
}

/// Unmasks interrupts on this CPU.
pub fn unmask() {
    instruction!("msr DAIFClr, #2");
    instruction!("isb");
}

/// Takes pending interrupts, and masks them again.
pub fn take() {
    unmask();
    mask();
}

/// Whether an IRQ is pending for this CPU (ISR_EL1), taken or not.
pub fn is_pending() -> bool {
    mrs!("ISR_EL1") & 1 << 7 != 0
}

/// Empties this CPU's log and removes its hook.
pub fn clear() {
    let log = &LOGS[smp::this()];
    log.count.store(0, Release);
    log.spurious.store(0, Release);
    log.hook.store(core::ptr::null_mut(), Release);
}

/// Sets this CPU's hook.
pub fn set_hook(hook: Hook) {
    LOGS[smp::this()].hook.store(hook as *mut (), Release);
}

/// Number of interrupts that a CPU has taken since [`clear`].
pub fn count(cpu: usize) -> usize {
    LOGS[cpu].count.load(Acquire)
}

/// Number of spurious interrupts of a CPU.
pub fn spurious(cpu: usize) -> usize {
    LOGS[cpu].spurious.load(Acquire)
}

/// The n-th interrupt that a CPU took since [`clear`].
pub fn nth(cpu: usize, n: usize) -> u32 {
    LOGS[cpu].intids[n % DEPTH].load(Acquire)
}

/// The standard handler: acknowledge, log, hook, end.
pub(crate) fn handle() {
    let log = &LOGS[smp::this()];
    let intid = icc::iar1();
    if intid >= 1020 {
        log.spurious.fetch_add(1, AcqRel);
        return;
    }
    let position = log.count.load(Relaxed);
    log.intids[position % DEPTH].store(intid, Relaxed);
    log.count.store(position + 1, Release);
    let hook = log.hook.load(Acquire);
    if !hook.is_null() {
        // SAFETY: only `set_hook` stores here, with this type.
        let hook: Hook = unsafe { core::mem::transmute(hook) };
        hook(intid);
    }
    icc::eoir1(intid);
    if icc::ctlr() & icc::CTLR_EOIMODE != 0 {
        icc::dir(intid);
    }
}
