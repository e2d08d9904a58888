//! Marks: named places that a target passes, by which the tests see that a corpus reaches what the target is for.

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
