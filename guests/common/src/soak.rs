//! The scheme of a soak: every CPU draws one operation after the other, of all kinds, until all together have made as many as was planned.
//!
//! The plan's seed, the CPU's number and the operation's number alone determine what an operation tries. A CPU that is turned off and on, and a
//! machine that is reset, go on behind the operation that did it: [`State`] is in memory that a reset keeps.

use core::sync::atomic::{AtomicU64, Ordering::*};

use crate::canary;
use crate::fail::Outcome;
use crate::phases;
use crate::random::{Random, mix};

/// The most CPUs.
const MAX_CPUS: usize = 8;
/// The most kinds.
const MAX_KINDS: usize = 24;
/// Operations between two lines on the console.
const REPORT: u64 = 10_000;

/// A kind of operation.
pub struct Kind {
    /// Its name, in the summary.
    pub name: &'static str,
    /// How often it is drawn, compared with the others.
    pub weight: u64,
    /// Tries something, and returns how many operations that was. What does not return, because its CPU is off, counts as one.
    pub run: fn(&mut Random) -> u64,
}

/// Requirements on a machine beyond those of the phases.
pub trait Machine: phases::Machine {
    /// Memory that a reset keeps, and that nothing else uses. Zero, or what an earlier start left.
    fn state() -> &'static State;
}

/// One CPU's progress.
#[repr(C)]
struct Progress {
    /// Draws.
    steps: AtomicU64,
    /// Operations.
    done: AtomicU64,
    /// Operations, by kind.
    kinds: [AtomicU64; MAX_KINDS],
}

/// The progress of all CPUs, and what was planned.
#[repr(C)]
pub struct State {
    mark: AtomicU64,
    seed: AtomicU64,
    /// How many operations all CPUs make together.
    limit: AtomicU64,
    /// The most resets.
    resets: AtomicU64,
    reset: AtomicU64,
    cpus: [Progress; MAX_CPUS],
}

/// Plan of a soak.
pub struct Plan {
    /// Determines every operation.
    pub seed: u64,
    /// Operations of all CPUs together, at least.
    pub operations: u64,
    /// The most resets of the machine.
    pub resets: u64,
}

impl State {
    const MARK: u64 = 0x536F_616B_5374_6174;

    /// Takes up a plan; returns whether an earlier start has begun with it.
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

    /// Whether all is done.
    pub fn is_done(&self) -> bool {
        self.operations() >= self.limit.load(Relaxed)
    }

    /// Takes one of the resets that are planned, if one is left.
    pub fn take_reset(&self) -> bool {
        let limit = self.resets.load(Relaxed);
        self.reset.fetch_update(AcqRel, Acquire, |count| (count < limit).then_some(count + 1)).is_ok()
    }
}

/// Takes up a plan, on the first CPU, before the others [`work`].
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

/// Makes operations until there have been enough of them.
pub fn work<M: Machine>(kinds: &[Kind]) {
    let state = M::state();
    let this = M::this();
    let progress = &state.cpus[this % MAX_CPUS];
    let seed = mix(state.seed.load(Relaxed) ^ mix(this as u64 + 1));
    let mut told = state.operations();
    while !state.is_done() {
        let step = progress.steps.fetch_add(1, Relaxed);
        let mut random = Random::new(mix(seed ^ step));
        let (number, kind) = draw(kinds, &mut random);
        let count = &progress.kinds[number % MAX_KINDS];
        // Counted first: an operation may turn its CPU off.
        count.fetch_add(1, Relaxed);
        progress.done.fetch_add(1, Relaxed);
        let more = (kind.run)(&mut random).saturating_sub(1);
        count.fetch_add(more, Relaxed);
        progress.done.fetch_add(more, Release);
        // The first CPU is never turned off, and prints for all.
        let all = state.operations();
        if this == 0 && all / REPORT != told / REPORT {
            M::say(format_args!("soak: operations {all}"));
            told = all;
        }
    }
}

/// One of the kinds, by weight.
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

/// Reports what was done, once all CPUs are back from [`work`], and checks the guest's memory.
pub fn finish<M: Machine>(kinds: &[Kind], plan: &Plan) -> Outcome {
    let state = M::state();
    for (number, kind) in kinds.iter().enumerate() {
        let count: u64 = state.cpus.iter().map(|cpu| cpu.kinds[number % MAX_KINDS].load(Relaxed)).sum();
        M::say(format_args!("soak: kind {} {count}", kind.name));
    }
    M::say(format_args!("soak: resets {}", state.reset.load(Relaxed)));
    M::say(format_args!("soak: done, operations {}", state.operations()));
    // The next contents of this memory are no progress of this plan.
    state.mark.store(0, Release);
    canary::check(M::canary(), plan.seed)
}
