//! Epochs: whether each CPU has dropped its references to a VM that was removed from lookups ([`super::retire`]).

use core::sync::atomic::{AtomicU64, Ordering, fence};

use stile_board::MAX_CPUS;

/// The retirements begun, and which of them each CPU knows. The caller of each function holds one lock.
pub struct Epochs {
    /// Number of retirements begun.
    begun: AtomicU64,
    /// The number at the time at which each CPU last held no reference.
    seen: [AtomicU64; MAX_CPUS],
}

impl Epochs {
    /// No retirement yet.
    pub const fn new() -> Epochs {
        Epochs { begun: AtomicU64::new(0), seen: [const { AtomicU64::new(0) }; MAX_CPUS] }
    }

    /// Begins the retirement of a VM that was removed from lookups. Returns its epoch: a CPU that sees it can no longer look up the VM.
    pub fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Records that a CPU holds no reference to a VM.
    pub fn see(&self, cpu: usize) {
        self.seen[cpu % MAX_CPUS].store(self.begun.load(Ordering::Acquire), Ordering::Relaxed);
    }

    /// Returns the last epoch that all of `cpus` have seen; 0 if there are none. VMs retired until then are referred to by no CPU.
    ///
    /// A confined CPU refers only to its own guest's VM, and counts as having seen all.
    pub fn seen_by_all(&self, cpus: impl Iterator<Item = usize>, is_confined: impl Fn(usize) -> bool) -> u64 {
        // Each VM was removed from lookups before: a CPU that is found confined now holds no reference to it, and cannot
        // obtain one.
        fence(Ordering::SeqCst);
        let waited_for = cpus.filter(|&cpu| !is_confined(cpu));
        waited_for.map(|cpu| self.seen[cpu % MAX_CPUS].load(Ordering::Relaxed)).min().unwrap_or(0)
    }
}
