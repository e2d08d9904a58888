//! Marks: named places that a target passes, which show the tests that a corpus reaches the code under test.

use std::cell::RefCell;
use std::collections::BTreeSet;

thread_local! {
    static REACHED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// Notes that the running target reached a place.
pub fn reach(mark: &'static str) {
    REACHED.with_borrow_mut(|reached| reached.insert(mark));
}

/// The marks that this thread's runs reached since the last call.
pub fn take() -> BTreeSet<&'static str> {
    REACHED.take()
}
