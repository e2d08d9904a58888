//! State divided into shards, each guarded by a lock of its own. Items belong to one shard at a time, and move.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::TicketLock;

/// The value that a part of [`Shards`] has at first.
pub trait Initial {
    /// The value.
    const INITIAL: Self;
}

/// State divided into `SHARDS` shards, and `ITEMS` items that belong to one of them each: the item's home, at first
/// shard 0. Each shard has a lock, which guards the shard's value and its items: two parts, `T` and `U`, of each.
///
/// There is no lock for the whole. A CPU that holds a lock takes others only if they are free ([`Held::also`]), or those of
/// all shards in use, in ascending order, before it holds any ([`Shards::whole`]): so that no CPU waits for one that waits
/// for it.
///
/// The memory of shards and items that are not in use is not accessed, and need not exist: [`Shards::of_locks`],
/// [`Shards::of_shards`] and [`Shards::of_items`] say where it is.
pub struct Shards<G, S, T, U, const SHARDS: usize, const ITEMS: usize> {
    /// Accessible without a lock.
    shared: G,
    locks: [Lock; SHARDS],
    shards: [UnsafeCell<S>; SHARDS],
    items: [UnsafeCell<T>; ITEMS],
    others: [UnsafeCell<U>; ITEMS],
    /// The shard to which each item belongs. Written only by a CPU that holds the locks of the old and the new one.
    homes: [AtomicU16; ITEMS],
    /// Number of shards in use, the first ones; 0: all.
    used: AtomicU16,
}

/// A lock in a cache line of its own.
#[repr(align(64))]
struct Lock(TicketLock<()>);

// SAFETY: shards and items are reached only through `Held`, which has the lock of the shard, or of the item's home, and of which there is
// one for each lock at a time. So the locks merely move values between CPUs, which `Send` allows.
unsafe impl<G: Sync, S: Send, T: Send, U: Send, const SHARDS: usize, const ITEMS: usize> Sync for Shards<G, S, T, U, SHARDS, ITEMS> {}

/// Locks of [`Shards`] that the caller holds, and access to what they guard. Dropping it unlocks.
///
/// Indices of items that are out of range, and those of shards and items whose lock isn't held, panic.
#[must_use = "dropping it unlocks"]
pub struct Held<'s, G, S, T, U, const SHARDS: usize, const ITEMS: usize> {
    of: &'s Shards<G, S, T, U, SHARDS, ITEMS>,
    held: Set,
    // `Sync` and `Send` exactly when a mutable reference to what the locks guard is.
    guarded: PhantomData<&'s mut (S, T, U)>,
}

/// The locks that are held.
// Never in memory for a call: so the compiler sees that the first is still the one that was taken.
#[derive(Clone, Copy)]
struct Set {
    /// The lock that was taken first.
    first: usize,
    others: Others,
}

/// Locks beyond the first: up to four, 16 bits each, the last one lowest, as its number plus 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Others(u64);

impl Others {
    const NONE: Self = Self(0);
    /// All locks are held.
    const ALL: Self = Self(u64::MAX);
    const BITS: u32 = 16;

    #[inline(never)]
    fn has(self, shard: usize) -> bool {
        let mut rest = self;
        self == Self::ALL || core::iter::from_fn(|| rest.pop()).any(|other| other == shard)
    }

    /// Whether no further lock fits.
    fn is_full(self) -> bool {
        self.0 >> (u64::BITS - Self::BITS) != 0
    }

    fn push(&mut self, shard: usize) {
        self.0 = self.0 << Self::BITS | (shard as u64 + 1);
    }

    fn pop(&mut self) -> Option<usize> {
        let last = self.0 as u16;
        self.0 >>= Self::BITS;
        usize::from(last).checked_sub(1)
    }
}

impl Set {
    #[inline]
    fn has(self, shard: usize) -> bool {
        shard == self.first || self.others != Others::NONE && self.others.has(shard)
    }

    #[inline]
    fn check(self, shard: usize) {
        if !self.has(shard) {
            not_held();
        }
    }
}

/// Locks that were held at some time: see [`Held::keep`].
#[derive(Clone, Copy, Debug)]
pub struct Mark(Others);

/// The items of the shards whose locks are held, to change. Borrows [`Held`] without its shards.
pub struct Items<'h, G, S, T, U, const SHARDS: usize, const ITEMS: usize> {
    of: &'h Shards<G, S, T, U, SHARDS, ITEMS>,
    held: Set,
    borrows: PhantomData<&'h mut T>,
}

impl<G, S: Initial, T: Initial, U: Initial, const SHARDS: usize, const ITEMS: usize> Shards<G, S, T, U, SHARDS, ITEMS> {
    /// Unlocked; all items belong to shard 0.
    pub const fn new(shared: G) -> Self {
        const { assert!(SHARDS.is_power_of_two() && SHARDS < u16::MAX as usize, "indices are masked, and kept in 16 bits") }
        Self {
            shared,
            locks: [const { Lock(TicketLock::new(())) }; SHARDS],
            shards: [const { UnsafeCell::new(S::INITIAL) }; SHARDS],
            items: [const { UnsafeCell::new(T::INITIAL) }; ITEMS],
            others: [const { UnsafeCell::new(U::INITIAL) }; ITEMS],
            homes: [const { AtomicU16::new(0) }; ITEMS],
            used: AtomicU16::new(0),
        }
    }
}

impl<G, S, T, U, const SHARDS: usize, const ITEMS: usize> Shards<G, S, T, U, SHARDS, ITEMS> {
    /// State that no lock guards.
    #[inline]
    pub fn shared(&self) -> &G {
        &self.shared
    }

    /// The shard to which an item belongs; without its lock only a hint.
    #[inline]
    pub fn home(&self, item: usize) -> usize {
        // In the order of the locks: whoever holds the lock of the item's home sees that it is, because the CPU that moved the item there
        // held that lock; and no CPU that holds another one takes that for its home, because the CPU that moved it away held that one.
        self.homes[item].load(Ordering::Relaxed).into()
    }

    /// Waits for the lock of a shard. Deadlocks if the calling CPU holds any.
    #[inline]
    pub fn lock(&self, shard: usize) -> Held<'_, G, S, T, U, SHARDS, ITEMS> {
        let shard = shard & (SHARDS - 1);
        self.lock_of(shard).acquire();
        Held { of: self, held: Set { first: shard, others: Others::NONE }, guarded: PhantomData }
    }

    /// Waits for the lock of the shard to which an item belongs. Each further attempt means that the item moved meanwhile.
    #[inline]
    pub fn lock_home(&self, item: usize) -> Held<'_, G, S, T, U, SHARDS, ITEMS> {
        loop {
            let home = self.home(item);
            let held = self.lock(home);
            if self.home(item) == home {
                return held;
            }
        }
    }

    /// Restricts the shards that are used to the first `shards` ones, at least 1, before any is.
    pub fn restrict(&self, shards: usize) {
        self.used.store(shards.clamp(1, SHARDS) as u16, Ordering::Relaxed);
    }

    /// The locks of all shards in use.
    fn used(&self) -> &[Lock] {
        match self.used.load(Ordering::Relaxed).into() {
            0 => &self.locks,
            used => &self.locks[..used],
        }
    }

    /// Memory of the locks of some shards: offsets from the start of this value, in bytes.
    pub const fn of_locks(shards: Range<usize>) -> Range<usize> {
        let start = offset_of!(Self, locks);
        start + shards.start * size_of::<Lock>()..start + shards.end * size_of::<Lock>()
    }

    /// Memory of the values of some shards, as [`Shards::of_locks`].
    pub const fn of_shards(shards: Range<usize>) -> Range<usize> {
        let start = offset_of!(Self, shards);
        start + shards.start * size_of::<S>()..start + shards.end * size_of::<S>()
    }

    /// Memory of some items, as [`Shards::of_locks`]: both parts and their homes.
    pub const fn of_items(items: Range<usize>) -> [Range<usize>; 3] {
        let (start, end) = (items.start, items.end);
        let [one, two, homes] = [offset_of!(Self, items), offset_of!(Self, others), offset_of!(Self, homes)];
        [
            one + start * size_of::<T>()..one + end * size_of::<T>(),
            two + start * size_of::<U>()..two + end * size_of::<U>(),
            homes + start * size_of::<AtomicU16>()..homes + end * size_of::<AtomicU16>(),
        ]
    }

    /// Memory that is used in any case, as [`Shards::of_locks`]: the parts that no lock guards, and those that
    /// [`Shards::restrict`] sets.
    pub const fn of_all() -> [Range<usize>; 2] {
        let (shared, used) = (offset_of!(Self, shared), offset_of!(Self, used));
        [shared..shared + size_of::<G>(), used..used + size_of::<AtomicU16>()]
    }

    /// Waits for the locks of all shards in use.
    #[cold]
    pub fn whole(&self) -> Held<'_, G, S, T, U, SHARDS, ITEMS> {
        self.used().iter().for_each(|lock| lock.0.acquire());
        Held { of: self, held: Set { first: 0, others: Others::ALL }, guarded: PhantomData }
    }

    /// Whether a lock is held or waited for; only a hint.
    pub fn is_locked(&self, shard: usize) -> bool {
        self.lock_of(shard).is_locked()
    }
}

impl<'s, G, S, T, U, const SHARDS: usize, const ITEMS: usize> Held<'s, G, S, T, U, SHARDS, ITEMS> {
    /// State that no lock guards.
    #[inline]
    pub fn shared(&self) -> &'s G {
        &self.of.shared
    }

    /// The shard to which an item belongs; without its lock only a hint.
    #[inline]
    pub fn home(&self, item: usize) -> usize {
        self.of.home(item)
    }

    /// The locks that are held now, to return to with [`keep`](Self::keep).
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark(self.held.others)
    }

    /// Whether the lock of a shard is held.
    #[inline]
    pub fn holds(&self, shard: usize) -> bool {
        self.held.has(shard)
    }

    /// Takes the lock of another shard, if it is free and fewer than four are held beyond the first. Returns whether it is
    /// held now.
    #[inline]
    pub fn also(&mut self, shard: usize) -> bool {
        if self.holds(shard) {
            return true;
        }
        let is_taken = !self.held.others.is_full() && self.of.lock_of(shard).try_acquire();
        if is_taken {
            self.held.others.push(shard & (SHARDS - 1));
        }
        is_taken
    }

    /// Unlocks the shards whose locks were taken since `mark`. Without effect if all are held.
    #[inline]
    pub fn keep(&mut self, mark: Mark) {
        if self.held.others != mark.0 {
            self.of.release(self.held.others, mark.0);
            self.held.others = mark.0;
        }
    }

    /// A shard.
    #[inline]
    pub fn shard(&self, shard: usize) -> &S {
        self.held.check(shard);
        // SAFETY: the lock is held, and only this value, which is borrowed here, gives access for it.
        unsafe { &*self.of.shards[shard & (SHARDS - 1)].get() }
    }

    /// A shard, to change.
    #[inline]
    pub fn shard_mut(&mut self, shard: usize) -> &mut S {
        self.held.check(shard);
        // SAFETY: as in `shard`, with a mutable borrow.
        unsafe { &mut *self.of.shards[shard & (SHARDS - 1)].get() }
    }

    /// A shard, and the items of all, to change.
    #[inline]
    pub fn split(&mut self, shard: usize) -> (&mut S, Items<'_, G, S, T, U, SHARDS, ITEMS>) {
        self.held.check(shard);
        // SAFETY: as in `shard`, with a mutable borrow, which `Items` shares: it gives access to items only.
        let it = unsafe { &mut *self.of.shards[shard & (SHARDS - 1)].get() };
        (it, Items { of: self.of, held: self.held, borrows: PhantomData })
    }

    /// The first part of an item.
    #[inline]
    pub fn item(&self, item: usize) -> &T {
        self.held.check(self.of.home(item));
        // SAFETY: the lock of the item's home is held, so that the item stays there, and only this value, which is borrowed here, gives
        // access for that lock.
        unsafe { &*self.of.items[item].get() }
    }

    /// The first part of an item, to change.
    #[inline]
    pub fn item_mut(&mut self, item: usize) -> &mut T {
        self.held.check(self.of.home(item));
        // SAFETY: as in `item`, with a mutable borrow.
        unsafe { &mut *self.of.items[item].get() }
    }

    /// A shard, two different items of it, to change, and the second part of the second one. `None` if they are not.
    #[inline]
    pub fn two_of(&mut self, shard: usize, one: usize, two: usize) -> Option<(&mut S, [&mut T; 2], &U)> {
        if one == two || self.of.home(one) != shard || self.of.home(two) != shard {
            return None;
        }
        self.held.check(shard);
        let of = self.of;
        // SAFETY: as in `shard_mut`, `item_mut` and `other`; the items are different ones.
        unsafe {
            let items = [&mut *of.items[one].get(), &mut *of.items[two].get()];
            Some((&mut *of.shards[shard & (SHARDS - 1)].get(), items, &*of.others[two].get()))
        }
    }

    /// The second part of an item.
    #[inline]
    pub fn other(&self, item: usize) -> &U {
        self.held.check(self.of.home(item));
        // SAFETY: as in `item`: both parts of an item belong to its home's lock.
        unsafe { &*self.of.others[item].get() }
    }

    /// The second part of an item, to change.
    #[inline]
    pub fn other_mut(&mut self, item: usize) -> &mut U {
        self.held.check(self.of.home(item));
        // SAFETY: as in `item`, with a mutable borrow.
        unsafe { &mut *self.of.others[item].get() }
    }

    /// Moves an item to another shard. Both locks are held.
    #[inline]
    pub fn move_home(&mut self, item: usize, to: usize) {
        self.held.check(self.home(item));
        self.held.check(to);
        self.of.homes[item].store(to as u16, Ordering::Relaxed);
    }
}

impl<G, S, T, U, const SHARDS: usize, const ITEMS: usize> Items<'_, G, S, T, U, SHARDS, ITEMS> {
    /// The first part of an item, to change.
    #[inline]
    pub fn item_mut(&mut self, item: usize) -> &mut T {
        self.held.check(self.of.home(item));
        // SAFETY: as in `Held::item_mut`: this value borrows it mutably.
        unsafe { &mut *self.of.items[item].get() }
    }
}

impl<G, S, T, U, const SHARDS: usize, const ITEMS: usize> Shards<G, S, T, U, SHARDS, ITEMS> {
    #[inline]
    fn lock_of(&self, shard: usize) -> &TicketLock<()> {
        &self.locks[shard & (SHARDS - 1)].0
    }

    /// Unlocks those of `held` that were taken after `keep`.
    #[cold]
    #[inline(never)]
    fn release(&self, mut held: Others, keep: Others) {
        if held == Others::ALL {
            return self.used().iter().skip(1).for_each(|lock| lock.0.release());
        }
        while held != keep
            && let Some(shard) = held.pop()
        {
            self.lock_of(shard).release();
        }
    }
}

impl<G, S, T, U, const SHARDS: usize, const ITEMS: usize> Drop for Held<'_, G, S, T, U, SHARDS, ITEMS> {
    #[inline]
    fn drop(&mut self) {
        self.keep(Mark(Others::NONE));
        self.of.lock_of(self.held.first).release();
    }
}

#[cold]
#[inline(never)]
fn not_held() -> ! {
    panic!("the lock of a shard is not held");
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::{Initial, Shards};

    impl Initial for u64 {
        const INITIAL: Self = 0;
    }

    type Four = Shards<(), u64, u64, u64, 4, 4>;

    #[test]
    fn only_what_is_locked_is_accessible() {
        let shards = Box::new(Four::new(()));
        let mut held = shards.lock(1);
        *held.shard_mut(1) += 1;
        assert!(held.holds(1) && !held.holds(0));
        let denied = |access: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(access)).is_err();
        assert!(denied(&mut || assert_eq!(*held.shard(0), 0)));
        assert!(denied(&mut || assert_eq!(*held.item(0), 0)), "its home is shard 0");
        assert!(denied(&mut || held.move_home(0, 1)));
        assert!(held.two_of(1, 0, 1).is_none());
        let mark = held.mark();
        assert!(held.also(0));
        assert!(held.two_of(0, 0, 1).is_some() && held.two_of(0, 1, 1).is_none());
        held.move_home(0, 1);
        held.keep(mark);
        assert!(!shards.is_locked(0) && shards.is_locked(1));
        *held.item_mut(0) = 5;
        *held.other_mut(0) = 6;
        drop(held);
        assert_eq!(shards.home(0), 1);
        let whole = shards.whole();
        assert_eq!((*whole.shard(1), *whole.item(0), *whole.other(0)), (1, 5, 6));
        assert!((0..4).all(|shard| shards.is_locked(shard)));
        drop(whole);
        assert!((0..4).all(|shard| !shards.is_locked(shard)));
    }

    #[test]
    fn a_lock_that_is_held_is_not_waited_for() {
        let shards = Box::new(Four::new(()));
        let one = shards.lock(2);
        let mut two = shards.lock(0);
        assert!(!two.also(2) && !two.holds(2) && two.also(0) && two.also(1));
        assert!(two.holds(0) && two.holds(1));
        drop(two);
        drop(one);
        assert!(!shards.is_locked(2));
    }

    /// The memory of each part is where the value itself says that it is, and that of unused shards is not touched.
    #[test]
    fn only_memory_in_use_is_needed() {
        let shards = Box::new(Four::new(()));
        let at = |place: *const u8| place as usize - (&raw const *shards) as usize;
        let (locks, values) = (Four::of_locks(0..2), Four::of_shards(1..2));
        assert_eq!(locks, at((&raw const shards.locks).cast())..at((&raw const shards.locks[2]).cast()));
        assert_eq!(values, at((&raw const shards.shards[1]).cast())..at((&raw const shards.shards[2]).cast()));
        let [one, two, homes] = Four::of_items(1..3);
        assert_eq!(one, at((&raw const shards.items[1]).cast())..at((&raw const shards.items[3]).cast()));
        assert_eq!(two, at((&raw const shards.others[1]).cast())..at((&raw const shards.others[3]).cast()));
        assert_eq!(homes, at((&raw const shards.homes[1]).cast())..at((&raw const shards.homes[3]).cast()));
        shards.restrict(2);
        let whole = shards.whole();
        assert_eq!([0, 1, 2, 3].map(|shard| shards.is_locked(shard)), [true, true, false, false]);
        drop(whole);
        assert!((0..4).all(|shard| !shards.is_locked(shard)));
        drop(shards.lock(1));
    }

    /// Items move between shards while all change them: no change is lost.
    #[test]
    fn an_item_has_one_owner_wherever_it_is() {
        const ROUNDS: u64 = if cfg!(miri) { 50 } else { 300 };
        let shards = Box::new(Four::new(()));
        thread::scope(|scope| {
            for thread in 0..3usize {
                let shards = &*shards;
                scope.spawn(move || {
                    for round in 0..ROUNDS as usize {
                        let mut held = shards.lock_home(round % 4);
                        let home = held.home(round % 4);
                        *held.split(home).1.item_mut(round % 4) += 1;
                        let to = (round + thread) % 4;
                        if held.also(to) {
                            held.move_home(round % 4, to);
                        }
                        drop(held);
                        thread::yield_now();
                    }
                });
            }
        });
        let whole = shards.whole();
        assert_eq!((0..4).map(|item| *whole.item(item)).sum::<u64>(), 3 * ROUNDS);
    }
}
