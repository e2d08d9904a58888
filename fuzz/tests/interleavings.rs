//! Lock-free exchanges in all orders that the memory model allows, with loom. The code is Stile's own, with loom's atomics (`build.rs`);
//! docs/proofs.md lists the exchanges. `--cfg loom` is not needed.
#![allow(dead_code, reason = "parts of Stile's files are not tested here")]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

/// What the included files name in their crates.
const PAGE_SIZE: u64 = 4096;
const SGIS: usize = 16;

struct Vectors([u64; 4]);

impl Vectors {
    const fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }
}

mod lock {
    include!(concat!(env!("OUT_DIR"), "/lock.rs"));
}

mod posted {
    include!(concat!(env!("OUT_DIR"), "/posted.rs"));

    impl Descriptor {
        /// NV as a guest reads it, which sends to its own vCPUs.
        pub(crate) fn vector(&self) -> u64 {
            self.control.load(Ordering::SeqCst) >> 16 & 0xff
        }
    }
}

mod first_touch {
    include!(concat!(env!("OUT_DIR"), "/first_touch.rs"));
}

mod pending_requests {
    use super::SGIS;
    use loom::sync::atomic::{AtomicU32, Ordering};

    struct Bits(u32);

    impl Iterator for Bits {
        type Item = usize;

        fn next(&mut self) -> Option<usize> {
            let bit = self.0.trailing_zeros();
            self.0 &= self.0.wrapping_sub(1);
            (bit < 32).then_some(bit as usize)
        }
    }

    include!(concat!(env!("OUT_DIR"), "/pending_requests.rs"));
}

/// Explores all orders with at most this many preemptions.
fn model(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// A plain value that loom watches: two CPUs that access it without order are an error.
struct Watched(UnsafeCell<u32>);

// SAFETY: the tests access it only where the code under test promises exclusion; loom panics if that is wrong.
unsafe impl Send for Watched {}
// SAFETY: likewise.
unsafe impl Sync for Watched {}

impl Watched {
    fn new(value: u32) -> Self {
        Self(UnsafeCell::new(value))
    }

    fn get(&self) -> u32 {
        // SAFETY: loom checks that nothing writes meanwhile.
        self.0.with(|value| unsafe { *value })
    }

    fn add(&self, more: u32) {
        // SAFETY: loom checks that nothing accesses it meanwhile.
        self.0.with_mut(|value| unsafe { *value += more });
    }
}

#[test]
fn a_ticket_lock_excludes() {
    model(3, || {
        let lock = Arc::new(lock::TicketLock::new(Watched::new(0)));
        let other = {
            let lock = lock.clone();
            thread::spawn(move || {
                lock.lock().add(1);
                if let Some(value) = lock.try_lock() {
                    value.add(2);
                }
            })
        };
        lock.lock().add(4);
        other.join().unwrap();
        let sum = lock.lock().get();
        assert!(sum == 5 || sum == 7, "{sum}");
    });
}

/// Two CPUs fill a block in steps, and the one that maps it has seen all steps.
#[test]
fn a_block_is_filled_once() {
    use first_touch::{Block, Claim, EarlyPages, STEPS};

    fn touch(block: &Block, pages: &EarlyPages, filled: &Watched) {
        match block.claim() {
            Claim::Full => assert_eq!(filled.get(), u32::from(STEPS)),
            Claim::Busy => {}
            Claim::Fill { step, .. } => {
                assert_eq!(filled.get(), step.into(), "the steps before");
                let end = (step + STEPS / 2).min(STEPS);
                filled.add((end - step).into());
                if end == STEPS { block.complete(pages) } else { block.release(end) }
            }
        }
    }

    model(3, || {
        let state = Arc::new((Block::new(), EarlyPages::new(), Watched::new(0)));
        let other = {
            let state = state.clone();
            thread::spawn(move || (0..2).for_each(|_| touch(&state.0, &state.1, &state.2)))
        };
        (0..2).for_each(|_| touch(&state.0, &state.1, &state.2));
        other.join().unwrap();
        (0..2).for_each(|_| touch(&state.0, &state.1, &state.2));
        assert!(state.0.is_full() && state.2.get() == u32::from(STEPS));
    });
}

/// Two senders post vectors; the receiver takes them when it finds the notification, and none is lost.
#[test]
fn posted_interrupts_are_not_lost() {
    use posted::Descriptor;

    fn receive(descriptor: &Descriptor) -> u64 {
        if !descriptor.is_outstanding() {
            return 0;
        }
        descriptor.acknowledge();
        descriptor.requests().take().0[0]
    }

    model(3, || {
        let state = Arc::new((Descriptor::default(), AtomicU32::new(0)));
        let senders: Vec<_> = [33, 35]
            .map(|vector| {
                let state = state.clone();
                thread::spawn(move || {
                    state.0.requests().insert(vector);
                    if state.0.notify() {
                        state.1.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .into();
        let mut taken = receive(&state.0);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        // Each notification that was sent makes the receiver look once more.
        if state.1.load(Ordering::Relaxed) > 0 {
            taken |= receive(&state.0);
        }
        assert_eq!(taken, 1 << 33 | 1 << 35);
    });
}

/// Two guests' vCPUs post vectors for a third, which is put meanwhile: what was sent to where it was loaded may be lost there. Either the CPU that
/// puts it finds the notification outstanding, or one is sent to where Stile looks.
#[test]
fn direct_interrupts_to_a_vcpu_that_is_put_are_not_lost() {
    use posted::Descriptor;

    const LOADED: u8 = 0xf3;
    const PUT: u8 = 0xf5;
    model(3, || {
        let descriptor = Arc::new(Descriptor::default());
        assert!(!descriptor.redirect(LOADED, 0));
        let senders: Vec<_> = [33, 35]
            .map(|vector| {
                let descriptor = descriptor.clone();
                thread::spawn(move || {
                    descriptor.requests().insert(vector);
                    descriptor.notify() && descriptor.vector() == PUT.into()
                })
            })
            .into();
        let mut noticed = descriptor.redirect(PUT, 0);
        for sender in senders {
            noticed |= sender.join().unwrap();
        }
        assert!(noticed && descriptor.is_outstanding());
    });
}

/// A sender posts a request and then reads where the vCPU runs (`cpu::wake::notify`); the vCPU's CPU writes that it stops running and then
/// looks for requests (`cpu::stand_aside`). Both have a fence in between: the request is seen by one of them.
#[test]
fn a_request_to_a_vcpu_that_stops_is_seen() {
    use pending_requests::PendingRequests;

    const NOWHERE: u32 = u32::MAX;
    model(4, || {
        let state = Arc::new((PendingRequests::new(), AtomicU32::new(0)));
        let sender = {
            let state = state.clone();
            thread::spawn(move || {
                state.0.post_sgi(3);
                fence(Ordering::SeqCst);
                // Kicks that CPU; else wakes the vCPU by the scheduler.
                state.1.load(Ordering::Relaxed) != NOWHERE
            })
        };
        state.1.store(NOWHERE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seen = !state.0.is_empty();
        let is_kick_only = sender.join().unwrap();
        assert!(seen || !is_kick_only, "the vCPU sleeps, and nobody wakes it");
    });
}

/// Requests of two senders, taken by the vCPU's CPU: each is taken once, and what the sender wrote before is visible.
#[test]
fn requests_are_taken_once() {
    use pending_requests::PendingRequests;

    model(3, || {
        let state = Arc::new((PendingRequests::new(), [Watched::new(0), Watched::new(0)]));
        let senders: Vec<_> = [0, 1]
            .map(|n: usize| {
                let state = state.clone();
                thread::spawn(move || {
                    state.1[n].add(7);
                    state.0.post_sgi(n as u32);
                })
            })
            .into();
        let take = || {
            let taken: Vec<_> = state.0.take().sgis().collect();
            taken.iter().for_each(|&n| assert_eq!(state.1[n as usize].get(), 7, "written before it was posted"));
            taken
        };
        let mut taken = take();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        taken.extend(take());
        taken.sort();
        assert_eq!(taken, [0, 1]);
    });
}
