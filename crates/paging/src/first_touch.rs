//! Guest RAM that gets its first contents when it is first touched.
//!
//! RAM is divided into blocks of [`BLOCK_SIZE`]. A block is mapped in the second stage once it is filled: with zeros, and with the parts of
//! files that belong there. Filling takes [`STEPS`] steps. Whoever fills a block claims it, does some steps and gives it back, so that no
//! exit does more than a bounded part of the work, and no CPU waits for another one's.

use core::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a block: what one second-stage block descriptor of level 2 maps.
pub const BLOCK_SIZE: u64 = 2 << 20;
/// Steps to fill a block.
pub const STEPS: u8 = 8;
/// Bytes that one step fills.
pub const STEP_SIZE: u64 = BLOCK_SIZE / STEPS as u64;

/// A CPU is filling it.
const CLAIMED: u8 = 1 << 7;
/// It was full before: what is no file's keeps its contents.
const REFILL: u8 = 1 << 6;
/// The steps done.
const DONE: u8 = REFILL - 1;

/// How far a block is filled. All zeros is an empty block.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Block(AtomicU8);

/// The answer to a CPU that wants a block filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is full and mapped.
    Full,
    /// Another CPU is filling it.
    Busy,
    /// The caller fills it from this step on, and then calls [`Block::release`] or [`Block::complete`].
    Fill {
        /// The first step to do.
        step: u8,
        /// Only the files' parts are to be written: the block was full before.
        again: bool,
    },
}

impl Block {
    /// An empty block.
    #[must_use]
    pub const fn new() -> Block {
        Block(AtomicU8::new(0))
    }

    /// Whether it is full and mapped.
    #[inline(always)]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.load(Ordering::Acquire) == STEPS
    }

    /// Claims the block, to fill it.
    #[must_use]
    pub fn claim(&self) -> Claim {
        let old = self.0.load(Ordering::Acquire);
        if old == STEPS {
            return Claim::Full;
        }
        // Acquire: the steps that another CPU did are in memory before this one maps the block.
        let won = old & CLAIMED == 0 && self.0.compare_exchange(old, old | CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if won { Claim::Fill { step: old & DONE, again: old & REFILL != 0 } } else { Claim::Busy }
    }

    /// Gives the claimed block back with the steps before `step` done.
    pub fn release(&self, step: u8) {
        let kept = self.0.load(Ordering::Relaxed) & REFILL;
        self.0.store(kept | step.min(STEPS - 1), Ordering::Release);
    }

    /// The claimed block is full, and mapped.
    pub fn complete(&self) {
        self.0.store(STEPS, Ordering::Release);
    }

    /// Makes a full block one that is to be filled again by files. Returns whether it was full, so that it must be unmapped. No vCPU of the VM
    /// is on.
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
        assert!(!block.drain(), "a block that is not full keeps its progress");
        block.complete();
        assert!(block.is_full());
        assert_eq!(block.claim(), Claim::Full);
    }

    #[test]
    fn a_drained_block_is_filled_by_files_alone() {
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

    /// CPUs that fill the same block do each step once.
    #[test]
    fn cpus_share_the_steps() {
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
