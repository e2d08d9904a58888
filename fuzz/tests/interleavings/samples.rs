//! The operator's request for a ledger: answered once, and known to CPUs that take reschedule requests while there is one (`sample.rs`).

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::model;

mod cpu {
    use loom::sync::atomic::AtomicUsize;

    loom::lazy_static! {
        /// Number of reasons to look for work at a reschedule request.
        pub static ref AT_RESCHED: AtomicUsize = AtomicUsize::new(0);
    }
}

const NONE: u32 = u32::MAX;

loom::lazy_static! {
    static ref WANTED: AtomicU32 = AtomicU32::new(NONE);
}

include!(concat!(env!("OUT_DIR"), "/sample.rs"));

/// As `answer`. Returns whether it ended a request.
fn answer() -> bool {
    let wanted = WANTED.load(Ordering::Acquire);
    if wanted == NONE {
        return false;
    }
    assert_ne!(cpu::AT_RESCHED.load(Ordering::Relaxed), usize::MAX, "counted down before up");
    end(wanted)
}

#[test]
fn a_request_for_a_sample_is_answered_once() {
    model(2, || {
        let answers = [(); 2].map(|()| thread::spawn(answer));
        want(1, 0, 1);
        // Replaces the first, unless that has been answered.
        want(2, 0, 2);
        let answered = answers.map(|thread| thread.join().unwrap()).into_iter().filter(|answered| *answered).count();
        assert_eq!(cpu::AT_RESCHED.load(Ordering::Relaxed), usize::from(WANTED.load(Ordering::Relaxed) != NONE));
        let answered = answered + usize::from(answer());
        assert!((1..=2).contains(&answered), "{answered} answers to two requests");
        assert_eq!(cpu::AT_RESCHED.load(Ordering::Relaxed), 0);
    });
}
