//! Invalidation of translations on other CPUs, after a change of a VM's second stage.

use core::sync::atomic::{AtomicU64, Ordering};

use stile_board::MAX_CPUS;

use crate::arch::x86_64::host::apic;
use crate::arch::x86_64::host::cpu::this_index;
use crate::arch::x86_64::virt::second_stage;

/// CPUs whose TLBs may still hold translations or permissions of a VM that were revoked.
///
/// No CPU waits for others, and so none depends on another while it holds a lock.
pub struct Invalidations {
    ept: u64,
    /// Number of revocations.
    wanted: AtomicU64,
    /// Number of revocations after which each CPU last invalidated.
    done: [AtomicU64; MAX_CPUS],
    /// CPUs on which a vCPU of the VM is loaded: bit n % 64 of word n / 64 is CPU n. Other CPUs invalidate at load.
    on: [AtomicU64; MAX_CPUS.div_ceil(64)],
}

impl Invalidations {
    /// No revocations, in the second stage that `ept` points to.
    pub fn new(ept: u64) -> Invalidations {
        Invalidations {
            ept,
            wanted: AtomicU64::new(0),
            done: [const { AtomicU64::new(0) }; MAX_CPUS],
            on: [const { AtomicU64::new(0) }; MAX_CPUS.div_ceil(64)],
        }
    }

    /// Called when a vCPU of the VM is loaded on this CPU, `cpu`: applies the invalidations that it missed, and subscribes it to new ones.
    pub fn load(&self, cpu: usize) {
        self.on[cpu % MAX_CPUS / 64].fetch_or(1 << (cpu % 64), Ordering::SeqCst);
        self.catch_up(cpu);
    }

    /// Called when a vCPU of the VM is put: unsubscribes the CPU.
    pub fn put(&self, cpu: usize) {
        self.on[cpu % MAX_CPUS / 64].fetch_and(!(1 << (cpu % 64)), Ordering::Release);
    }

    fn others(&self, here: usize) -> impl Iterator<Item = usize> {
        let on = self.on.each_ref().map(|word| word.load(Ordering::SeqCst));
        (0..MAX_CPUS).filter(move |&cpu| cpu != here && on[cpu / 64] >> (cpu % 64) & 1 != 0)
    }

    /// Requests an invalidation by all CPUs, after a revocation. The caller holds a lock that all revocations take.
    pub fn request(&self) {
        // Ordered before the load of `on`: a CPU that loads a vCPU later sees the new number.
        self.wanted.fetch_add(1, Ordering::SeqCst);
        self.others(this_index()).for_each(apic::invalidate);
    }

    /// Whether all CPUs have invalidated; this one does. The caller holds a lock that all revocations take.
    pub fn all_invalidated(&self) -> bool {
        let here = this_index();
        // The request of another CPU may still be on its way to this one.
        self.catch_up(here);
        let wanted = self.wanted.load(Ordering::Relaxed);
        self.others(here).all(|cpu| self.done[cpu].load(Ordering::Acquire) >= wanted)
    }

    /// Invalidates the TLB entries of this CPU, `cpu`, unless it did so after the last revocation.
    pub fn catch_up(&self, cpu: usize) {
        let wanted = self.wanted.load(Ordering::SeqCst);
        let done = &self.done[cpu & (MAX_CPUS - 1)];
        if done.load(Ordering::Relaxed) != wanted {
            second_stage::invalidate(self.ept);
            done.store(wanted, Ordering::Release);
        }
    }
}
