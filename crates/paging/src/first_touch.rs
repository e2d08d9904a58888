//! Lazy initialization of guest RAM: a block gets its contents at the guest's first access.
//!
//! RAM is divided into blocks of [`BLOCK_SIZE`]. A block is mapped in the second stage once it is filled,
//! with zeros and the file contents placed in it. Filling takes [`STEPS`] steps. A CPU claims a block, does
//! some steps and releases it: an exit does a bounded part of the work, and no CPU waits for another.

use core::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a block: what one second-stage block descriptor of level 2 maps.
pub const BLOCK_SIZE: u64 = 2 << 20;
/// Steps to fill a block.
pub const STEPS: u8 = 8;
/// Bytes that one step fills.
pub const STEP_SIZE: u64 = BLOCK_SIZE / STEPS as u64;

/// A CPU holds the block's claim.
const CLAIMED: u8 = 1 << 7;
/// The block was full before a reset: only file contents are written again, other memory is preserved.
const REFILL: u8 = 1 << 6;
/// Number of completed steps.
const DONE: u8 = REFILL - 1;

/// Fill progress of a block. All zeros is an empty block.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Block(AtomicU8);

/// The result of [`Block::claim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The block is filled and mapped.
    Full,
    /// Another CPU holds the claim.
    Busy,
    /// The caller owns the claim: it fills from `step` on, then calls [`Block::release`] or
    /// [`Block::complete`].
    Fill {
        /// The first step to do.
        step: u8,
        /// Write only the file contents: the block was full before a reset.
        again: bool,
    },
}

impl Block {
    /// An empty block.
    #[must_use]
    pub const fn new() -> Block {
        Block(AtomicU8::new(0))
    }

    /// Whether the block is filled and mapped.
    #[inline(always)]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.load(Ordering::Acquire) == STEPS
    }

    /// Tries to claim the block for filling.
    #[must_use]
    pub fn claim(&self) -> Claim {
        let old = self.0.load(Ordering::Acquire);
        if old == STEPS {
            return Claim::Full;
        }
        // Acquire: steps done by another CPU are visible before this CPU maps the block.
        let won = old & CLAIMED == 0 && self.0.compare_exchange(old, old | CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if won { Claim::Fill { step: old & DONE, again: old & REFILL != 0 } } else { Claim::Busy }
    }

    /// Releases the claim, with the steps before `step` done.
    pub fn release(&self, step: u8) {
        let kept = self.0.load(Ordering::Relaxed) & REFILL;
        self.0.store(kept | step.min(STEPS - 1), Ordering::Release);
    }

    /// Releases the claim of a block that is now filled and mapped.
    pub fn complete(&self) {
        self.0.store(STEPS, Ordering::Release);
    }

    /// Marks a full block for refilling from files. Returns whether it was full; the caller must then unmap
    /// it. All vCPUs of the VM are off.
    pub fn drain(&self) -> bool {
        self.0.compare_exchange(STEPS, REFILL, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_filled_in_steps() {
        let block = Block::new();
        assert!(!block.is_full());
        assert_eq!(block.claim(), Claim::Fill { step: 0, again: false });
        assert_eq!(block.claim(), Claim::Busy);
        block.release(3);
        assert_eq!(block.claim(), Claim::Fill { step: 3, again: false });
        assert!(!block.drain(), "drain must not discard the progress of a partly filled block");
        block.complete();
        assert!(block.is_full());
        assert_eq!(block.claim(), Claim::Full);
    }

    #[test]
    fn a_drained_block_is_refilled_from_files_only() {
        let block = Block::new();
        assert!(matches!(block.claim(), Claim::Fill { .. }));
        block.complete();
        assert!(block.drain());
        assert!(!block.is_full());
        assert!(!block.drain());
        assert_eq!(block.claim(), Claim::Fill { step: 0, again: true });
        block.release(5);
        assert_eq!(block.claim(), Claim::Fill { step: 5, again: true });
        block.complete();
        assert_eq!(block.claim(), Claim::Full);
    }

    /// CPUs that fill the same block concurrently do each step exactly once.
    #[test]
    fn concurrent_cpus_do_each_step_once() {
        let block = Block::new();
        let done: [AtomicU8; STEPS as usize] = core::array::from_fn(|_| AtomicU8::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        match block.claim() {
                            Claim::Full => break,
                            Claim::Busy => std::thread::yield_now(),
                            Claim::Fill { step, .. } => {
                                done[usize::from(step)].fetch_add(1, Ordering::Relaxed);
                                if step + 1 == STEPS { block.complete() } else { block.release(step + 1) }
                            }
                        }
                    }
                });
            }
        });
        assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}
