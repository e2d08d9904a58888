//! Changed pages against a plain model, and all interleavings of writes with collections and copies.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;
use stile_paging::PAGE_SIZE;
use stile_paging::changes::{Changes, Pages};
use stile_paging::first_touch::BLOCK_SIZE;

const PAGES: u64 = BLOCK_SIZE / PAGE_SIZE;

#[derive(Debug, Clone)]
enum Operation {
    Begin,
    Write(u64),
    Collect(usize),
    Take(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    // Few different pages, at both ends of words, so that they meet.
    let page = prop_oneof![0..PAGES, 62..67u64, Just(0), Just(PAGES - 1)];
    prop_oneof![
        1 => Just(Operation::Begin),
        9 => page.clone().prop_map(Operation::Write),
        3 => (1..80usize).prop_map(Operation::Collect),
        4 => page.prop_map(Operation::Take),
    ]
}

/// All pages of a set, as the copy finds them.
fn pages(changes: &Changes, of: Pages) -> BTreeSet<u64> {
    let mut at = 0;
    std::iter::from_fn(|| {
        let offset = changes.next(at, of)?;
        at = offset + PAGE_SIZE;
        Some(offset / PAGE_SIZE)
    })
    .collect()
}

proptest! {
    #[test]
    fn a_block_changes_as_plain_sets_do(operations in prop::collection::vec(operation(), 0..200)) {
        let changes = Changes::new();
        let (mut dirty, mut pending) = (BTreeSet::new(), BTreeSet::new());
        for operation in operations {
            match operation {
                Operation::Begin => {
                    changes.begin();
                    (dirty, pending) = (BTreeSet::new(), (0..PAGES).collect());
                }
                Operation::Write(page) => {
                    // Of a guest's addresses, also within a page.
                    changes.set_dirty(0x4000_0000 + page * PAGE_SIZE + 8);
                    dirty.insert(page);
                }
                Operation::Collect(most) => {
                    let moved: Vec<u64> = dirty.iter().copied().take(most).collect();
                    let mut protected = Vec::new();
                    let count = changes.collect(most, |run| {
                        assert!(run.end - run.start < BLOCK_SIZE);
                        protected.extend(run.step_by(PAGE_SIZE as usize).map(|offset| offset / PAGE_SIZE));
                    });
                    prop_assert_eq!((count, &protected), (moved.len(), &moved));
                    moved.iter().for_each(|page| _ = (dirty.remove(page), pending.insert(*page)));
                }
                Operation::Take(page) => {
                    changes.take(0x4000_0000 + page * PAGE_SIZE);
                    pending.remove(&page);
                }
            }
            prop_assert_eq!(&pages(&changes, Pages::Pending), &pending);
            prop_assert_eq!(pages(&changes, Pages::Rest), &pending | &dirty);
            prop_assert_eq!(pages(&changes, Pages::All).len() as u64, PAGES);
        }
    }
}

/// A way to do it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Right,
    /// Translations stay when pages become read-only.
    NoInvalidation,
    /// The VM runs on during a collection.
    NoPause,
}

const VCPUS: usize = 2;
/// Writes of each vCPU.
const WRITES: u8 = 2;
/// Rounds before the last pause.
const ROUNDS: u8 = 2;

/// Next step of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Vcpu {
    /// In the guest.
    Runs,
    /// Its write has faulted.
    Faulted,
    /// The page is dirty.
    Noted,
}

/// Next step of the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Copy {
    Pause,
    Collect,
    Invalidate,
    Take,
    ReadFirst,
    ReadSecond,
    Done,
}

/// One page, and who has to do with it. The contents are the number of writes; a copy reads both halves one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Machine {
    contents: u8,
    copied: [u8; 2],
    is_dirty: bool,
    is_pending: bool,
    is_writable: bool,
    /// Each vCPU has the page cached as writable.
    cached: [bool; VCPUS],
    vcpus: [Vcpu; VCPUS],
    left: [u8; VCPUS],
    is_paused: bool,
    copy: Copy,
    rounds: u8,
}

impl Machine {
    /// The block was collected as a whole.
    fn new() -> Machine {
        Machine {
            contents: 0,
            copied: [u8::MAX; 2],
            is_dirty: false,
            is_pending: true,
            is_writable: false,
            cached: [false; VCPUS],
            vcpus: [Vcpu::Runs; VCPUS],
            left: [WRITES; VCPUS],
            is_paused: false,
            copy: Copy::Take,
            rounds: 0,
        }
    }

    /// Does something with the real sets, of which this machine has a copy.
    fn with<T>(&mut self, act: impl FnOnce(&Changes) -> T) -> T {
        let changes = Changes::new();
        if self.is_pending {
            changes.set_dirty(0);
            changes.collect(1, |_| ());
        }
        if self.is_dirty {
            changes.set_dirty(0);
        }
        let done = act(&changes);
        self.is_pending = changes.next(0, Pages::Pending).is_some();
        self.is_dirty = changes.collect(1, |_| ()) != 0;
        done
    }

    /// A vCPU's step, if it has one.
    fn run(&self, vcpu: usize) -> Option<Machine> {
        let mut next = self.clone();
        match self.vcpus[vcpu] {
            Vcpu::Runs if self.is_paused || self.left[vcpu] == 0 => return None,
            Vcpu::Runs if self.cached[vcpu] => {
                next.contents += 1;
                next.left[vcpu] -= 1;
            }
            Vcpu::Runs if self.is_writable => next.cached[vcpu] = true,
            Vcpu::Runs => next.vcpus[vcpu] = Vcpu::Faulted,
            Vcpu::Faulted => {
                next.with(|changes| changes.set_dirty(0));
                next.vcpus[vcpu] = Vcpu::Noted;
            }
            Vcpu::Noted => {
                next.is_writable = true;
                next.cached[vcpu] = false;
                next.vcpus[vcpu] = Vcpu::Runs;
            }
        }
        Some(next)
    }

    /// A step of the copy, if there is one.
    fn step(&self, how: How) -> Option<Machine> {
        let mut next = self.clone();
        let is_last = self.rounds == ROUNDS;
        next.copy = match self.copy {
            // A handler ends before the VM is paused.
            Copy::Pause if self.vcpus.iter().any(|&vcpu| vcpu != Vcpu::Runs) && (how != How::NoPause || is_last) => return None,
            Copy::Pause => {
                next.is_paused = how != How::NoPause || is_last;
                if is_last { Copy::Take } else { Copy::Collect }
            }
            Copy::Collect => {
                if next.with(|changes| changes.collect(1, |_| ())) != 0 {
                    next.is_writable = false;
                }
                Copy::Invalidate
            }
            Copy::Invalidate => {
                if how != How::NoInvalidation {
                    next.cached = [false; VCPUS];
                }
                next.is_paused = false;
                Copy::Take
            }
            Copy::Take => {
                let of = if is_last { Pages::Rest } else { Pages::Pending };
                let is_found = next.with(|changes| {
                    let found = changes.next(0, of) == Some(0);
                    changes.take(0);
                    found
                });
                match is_found {
                    true => Copy::ReadFirst,
                    false => next.end_round(),
                }
            }
            Copy::ReadFirst => {
                next.copied[0] = self.contents;
                Copy::ReadSecond
            }
            Copy::ReadSecond => {
                next.copied[1] = self.contents;
                next.end_round()
            }
            Copy::Done => return None,
        };
        Some(next)
    }

    fn end_round(&mut self) -> Copy {
        self.rounds += 1;
        if self.rounds > ROUNDS { Copy::Done } else { Copy::Pause }
    }
}

/// Whether a copy lacks a write in any interleaving, and the number of states.
fn loses(how: How) -> (bool, usize) {
    let (mut states, mut left, mut is_lost) = (HashSet::new(), vec![Machine::new()], false);
    while let Some(machine) = left.pop() {
        if !states.insert(machine.clone()) {
            continue;
        }
        is_lost |= machine.copy == Copy::Done && machine.copied != [machine.contents; 2];
        left.extend((0..VCPUS).filter_map(|vcpu| machine.run(vcpu)).chain(machine.step(how)));
    }
    (is_lost, states.len())
}

#[test]
fn no_interleaving_loses_a_write() {
    let (is_lost, states) = loses(How::Right);
    assert!(!is_lost && states > 1_000, "{states} states");
    assert!(loses(How::NoInvalidation).0, "the model finds stale translations");
    assert!(loses(How::NoPause).0, "the model finds handlers that a collection overtakes");
}
