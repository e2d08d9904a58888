//! Secondary CPUs: started by PSCI, then given functions to run.

use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use crate::entry::Entry;
use crate::harness::{Fail, Outcome};
use crate::lock::SpinLock;
use crate::{board::MAX_CPUS, check, instruction, machine, mrs, psci, wait};

/// A CPU's state, as seen by other CPUs.
struct Cpu {
    /// Number of entries at the start code.
    arrivals: AtomicU64,
    /// The state at its last entry.
    entry: SpinLock<Option<Entry>>,
    /// A `fn() -> Outcome` to run, or null.
    work: AtomicPtr<()>,
    /// The outcome of the last function.
    outcome: SpinLock<Outcome>,
}

static CPUS: [Cpu; MAX_CPUS] = [const {
    Cpu {
        arrivals: AtomicU64::new(0),
        entry: SpinLock::new(None),
        work: AtomicPtr::new(core::ptr::null_mut()),
        outcome: SpinLock::new(Ok(())),
    }
}; MAX_CPUS];

/// The number of this CPU: affinity level 0 of MPIDR_EL1.
pub fn this() -> usize {
    mrs!("MPIDR_EL1") as usize & (MAX_CPUS - 1)
}

/// Records this CPU's entry at the start code.
pub(crate) fn arrived(entry: &Entry) {
    let cpu = &CPUS[this()];
    *cpu.entry.lock() = Some(*entry);
    cpu.arrivals.fetch_add(1, Release);
}

/// Number of a CPU's entries at the start code.
pub fn arrivals(cpu: usize) -> u64 {
    CPUS[cpu].arrivals.load(Acquire)
}

/// The state of a CPU's last entry.
pub fn entry(cpu: usize) -> Option<Entry> {
    *CPUS[cpu].entry.lock()
}

/// Main loop of secondary CPUs: runs given functions forever.
pub(crate) extern "C" fn secondary(entry: &Entry) -> ! {
    arrived(entry);
    let cpu = &CPUS[this()];
    loop {
        let work = cpu.work.load(Acquire);
        if work.is_null() {
            instruction!("wfe");
            continue;
        }
        // SAFETY: not null, and `give` alone stores anything else, with this type.
        let work: fn() -> Outcome = unsafe { core::mem::transmute(work) };
        *cpu.outcome.lock() = work();
        cpu.work.store(core::ptr::null_mut(), Release);
        instruction!("dsb ishst");
        instruction!("sev");
    }
}

/// Turns a CPU on and waits until it has entered.
pub fn start(cpu: usize, context: u64) -> Outcome {
    let before = arrivals(cpu);
    let result = psci::cpu_on(cpu, context);
    check!(result == psci::SUCCESS, "CPU_ON of CPU {cpu} returned {result}");
    check!(wait::until(|| arrivals(cpu) > before), "CPU {cpu} does not come up");
    Ok(())
}

/// Turns on all CPUs that are off.
pub fn start_all() -> Outcome {
    for cpu in 0..machine::cpus() {
        if psci::affinity_info(cpu) == psci::OFF {
            start(cpu, 0)?;
        }
    }
    Ok(())
}

/// Gives a CPU, which must be on, a function to run, without waiting.
pub fn give(cpu: usize, work: fn() -> Outcome) {
    CPUS[cpu].work.store(work as *mut (), Release);
    instruction!("dsb ishst");
    instruction!("sev");
}

/// Whether a CPU has finished its function.
pub fn is_idle(cpu: usize) -> bool {
    CPUS[cpu].work.load(Acquire).is_null()
}

/// Waits until a CPU has finished its function.
pub fn join(cpu: usize) -> Outcome {
    check!(wait::until(|| is_idle(cpu)), "CPU {cpu} does not come back");
    *CPUS[cpu].outcome.lock()
}

/// Withdraws a CPU's function; the CPU must be off.
pub fn forget(cpu: usize) {
    CPUS[cpu].work.store(core::ptr::null_mut(), Release);
}

/// Runs a function on another CPU and waits for it.
pub fn on(cpu: usize, work: fn() -> Outcome) -> Outcome {
    give(cpu, work);
    join(cpu)
}

/// Runs a function on all CPUs concurrently, including this one, and waits for all. Returns the first
/// failure.
pub fn on_all(work: fn() -> Outcome) -> Outcome {
    start_all()?;
    let others = || (0..machine::cpus()).filter(|cpu| *cpu != this());
    for cpu in others() {
        give(cpu, work);
    }
    let mut outcome = work();
    for cpu in others() {
        outcome = outcome.and(join(cpu));
    }
    outcome
}

/// A barrier for all CPUs of the machine.
pub struct Barrier(AtomicUsize);

impl Barrier {
    /// A barrier with no arrivals.
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Waits until all CPUs have called this as often as this one.
    pub fn wait(&self) -> Outcome {
        let cpus = machine::cpus();
        let ticket = self.0.fetch_add(1, AcqRel);
        let full = (ticket / cpus + 1) * cpus;
        check!(wait::until(|| self.0.load(Acquire) >= full), "only {} of {full} at the barrier", self.0.load(Acquire));
        Ok(())
    }
}

impl Default for Barrier {
    fn default() -> Self {
        Self::new()
    }
}

/// Skips a test that needs more CPUs than there are.
pub fn need(cpus: usize) -> Outcome {
    if machine::cpus() < cpus {
        return Err(Fail::skip(format_args!("needs {cpus} CPUs")));
    }
    start_all()
}
