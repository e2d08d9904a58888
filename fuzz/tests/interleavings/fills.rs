//! L2's fault on one CPU and L1's maintenance on another, in all orders of their memory accesses.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

mod sequence {
    include!(concat!(env!("OUT_DIR"), "/sequence.rs"));
}

use sequence::Invalidations;

/// The page that L1 maps at first, and its replacement.
const OLD: u64 = 1;
const NEW: u64 = 2;

fn race(compares: bool) {
    loom::model(move || {
        let shared = Arc::new((Invalidations::new(), AtomicU64::new(OLD), Mutex::new(None)));
        let other = Arc::clone(&shared);
        let l1 = thread::spawn(move || {
            let (invalidations, table, shadow) = &*other;
            table.store(NEW, Relaxed);
            fence(SeqCst);
            let mut shadow = shadow.lock().unwrap();
            invalidations.record();
            *shadow = None;
        });
        let (invalidations, table, shadow) = &*shared;
        let observed = invalidations.observe();
        let walked = table.load(Relaxed);
        let mut guard = shadow.lock().unwrap();
        if !compares || invalidations.is_current(observed) {
            *guard = Some(walked);
        }
        drop(guard);
        l1.join().unwrap();
        assert_ne!(*shadow.lock().unwrap(), Some(OLD));
    });
}

#[test]
fn no_order_leaves_a_stale_mapping() {
    race(true);
}

#[test]
#[should_panic]
fn without_the_comparison_one_does() {
    race(false);
}
