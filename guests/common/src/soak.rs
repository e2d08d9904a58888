//! The scheme of a soak: every CPU executes random operations of all kinds, until together they have done the
//! planned number.
//!
//! An operation is determined by the plan's seed, the CPU's number and the operation's number alone. After a
//! power cycle of a CPU or a reset of the machine, it continues with the next operation: [`State`] is in
//! memory that a reset preserves.

use core::sync::atomic::{AtomicU64, Ordering::*};

use crate::canary;
use crate::fail::Outcome;
use crate::phases;
use crate::random::{Random, mix};

/// Maximum number of CPUs.
const MAX_CPUS: usize = 16;
/// Maximum number of kinds.
const MAX_KINDS: usize = 32;
/// Number of console lines with the progress.
const REPORTS: u64 = 100;

/// A kind of operation.
pub struct Kind {
    /// Its name, for the summary.
    pub name: &'static str,
    /// Its relative frequency.
    pub weight: u64,
    /// Executes it, and returns the number of operations. One that doesn't return, because its CPU is turned
    /// off, counts as one.
    pub run: fn(&mut Random) -> u64,
}

/// Requirements on a machine beyond those of the phases.
pub trait Machine: phases::Machine {
    /// Memory that a reset preserves, reserved for this. Zero, or as left by an earlier start.
    fn state() -> &'static State;
}

/// One CPU's progress.
#[repr(C)]
struct Progress {
    /// Number of draws.
    steps: AtomicU64,
    /// Number of operations.
    done: AtomicU64,
    /// Number of operations by kind.
    kinds: [AtomicU64; MAX_KINDS],
}

/// The progress of all CPUs, and the plan.
#[repr(C)]
pub struct State {
    mark: AtomicU64,
    seed: AtomicU64,
    /// Number of operations planned for all CPUs together.
    limit: AtomicU64,
    /// Maximum number of resets.
    resets: AtomicU64,
    reset: AtomicU64,
    cpus: [Progress; MAX_CPUS],
}

/// Plan of a soak.
pub struct Plan {
    /// Determines every operation.
    pub seed: u64,
    /// Minimum number of operations of all CPUs together.
    pub operations: u64,
    /// Maximum number of resets of the machine.
    pub resets: u64,
}

impl State {
    const MARK: u64 = 0x536F_616B_5374_6174;

    /// Starts a plan; returns whether an earlier start had already begun it.
    fn begin(&self, plan: &Plan) -> bool {
        let mark = mix(Self::MARK ^ plan.seed);
        if self.mark.load(Acquire) == mark {
            return true;
        }
        for progress in &self.cpus {
            let counts = [&progress.steps, &progress.done].into_iter().chain(&progress.kinds);
            counts.for_each(|count| count.store(0, Relaxed));
        }
        self.seed.store(plan.seed, Relaxed);
        self.limit.store(plan.operations, Relaxed);
        self.resets.store(plan.resets, Relaxed);
        self.reset.store(0, Relaxed);
        self.mark.store(mark, Release);
        false
    }

    /// Operations of all CPUs.
    pub fn operations(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.done.load(Relaxed)).sum()
    }

    /// Whether the plan is completed.
    pub fn is_done(&self) -> bool {
        self.operations() >= self.limit.load(Relaxed)
    }

    /// Takes one of the planned resets, if one is left.
    pub fn take_reset(&self) -> bool {
        let limit = self.resets.load(Relaxed);
        self.reset.fetch_update(AcqRel, Acquire, |count| (count < limit).then_some(count + 1)).is_ok()
    }
}

/// Starts a plan, on the first CPU, before the others call [`work`].
pub fn begin<M: Machine>(plan: &Plan) -> Outcome {
    let again = M::state().begin(plan);
    if again {
        M::say(format_args!("soak: goes on after a reset, operations {}", M::state().operations()));
        canary::check(M::canary(), plan.seed)
    } else {
        M::say(format_args!("soak: seed {:#x}, operations {}, cpus {}", plan.seed, plan.operations, M::cpus()));
        canary::fill(M::canary(), plan.seed);
        Ok(())
    }
}

/// Executes operations until the plan is completed.
pub fn work<M: Machine>(kinds: &[Kind]) {
    let state = M::state();
    let this = M::this();
    let progress = &state.cpus[this % MAX_CPUS];
    let seed = mix(state.seed.load(Relaxed) ^ mix(this as u64 + 1));
    let report = (state.limit.load(Relaxed) / REPORTS).max(10_000);
    let mut told = state.operations();
    while !state.is_done() {
        let step = progress.steps.fetch_add(1, Relaxed);
        let mut random = Random::new(mix(seed ^ step));
        let (number, kind) = draw(kinds, &mut random);
        let count = &progress.kinds[number % MAX_KINDS];
        // Counted in advance: an operation may turn its CPU off.
        count.fetch_add(1, Relaxed);
        progress.done.fetch_add(1, Relaxed);
        let more = (kind.run)(&mut random).saturating_sub(1);
        count.fetch_add(more, Relaxed);
        progress.done.fetch_add(more, Release);
        // The first CPU is never turned off, and prints for all.
        let all = state.operations();
        if this == 0 && all / report != told / report {
            M::say(format_args!("soak: operations {all}"));
            told = all;
        }
    }
}

/// Draws a kind, by weight.
fn draw<'a>(kinds: &'a [Kind], random: &mut Random) -> (usize, &'a Kind) {
    let mut left = random.below(kinds.iter().map(|kind| kind.weight).sum());
    for (number, kind) in kinds.iter().enumerate() {
        if left < kind.weight {
            return (number, kind);
        }
        left -= kind.weight;
    }
    (0, &kinds[0])
}

/// Reports the operations after all CPUs have returned from [`work`], and checks the guest's memory.
pub fn finish<M: Machine>(kinds: &[Kind], plan: &Plan) -> Outcome {
    let state = M::state();
    for (number, kind) in kinds.iter().enumerate() {
        let count: u64 = state.cpus.iter().map(|cpu| cpu.kinds[number % MAX_KINDS].load(Relaxed)).sum();
        M::say(format_args!("soak: kind {} {count}", kind.name));
    }
    M::say(format_args!("soak: resets {}", state.reset.load(Relaxed)));
    M::say(format_args!("soak: done, operations {}", state.operations()));
    // Later contents of this memory are not this plan's progress.
    state.mark.store(0, Release);
    canary::check(M::canary(), plan.seed)
}
