//! A fair spin lock, and state that is divided into shards with a lock each.
#![no_std]

#[cfg(test)]
extern crate std;

mod shards;

pub use shards::{Held, Initial, Items, Mark, Shards};

use core::cell::UnsafeCell;
use core::fmt;
use core::hint::spin_loop;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

/// A FIFO spin lock.
///
/// Each CPU draws a ticket and waits until it is served, so no CPU starves; with a plain test-and-set lock,
/// the CPU that reaches the cache line fastest could win every time. Without contention, locking is one
/// atomic addition and one load, and unlocking one store.
///
/// Interrupts are the caller's concern: they must be masked while the lock is held if a handler takes it,
/// too. Not re-entrant.
pub struct TicketLock<T: ?Sized> {
    /// The next ticket to be drawn.
    next: AtomicU32,
    /// The ticket being served. Differs from `next` while the lock is held or waited for.
    serving: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and only one guard exists at a time. So the lock merely
// moves the value between CPUs, which `T: Send` allows.
unsafe impl<T: ?Sized + Send> Sync for TicketLock<T> {}

/// A held [`TicketLock`]; dropping it unlocks.
#[must_use = "dropping the guard unlocks"]
pub struct TicketGuard<'lock, T: ?Sized> {
    lock: &'lock TicketLock<T>,
    // `Sync` and `Send` exactly when a mutable reference to the value is.
    value: PhantomData<&'lock mut T>,
}

impl<T> TicketLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self { next: AtomicU32::new(0), serving: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> TicketLock<T> {
    /// Waits for the lock. Deadlocks if the calling CPU already holds it.
    #[inline]
    pub fn lock(&self) -> TicketGuard<'_, T> {
        self.acquire();
        TicketGuard { lock: self, value: PhantomData }
    }

    /// Takes the lock if it is free and not waited for.
    #[inline]
    pub fn try_lock(&self) -> Option<TicketGuard<'_, T>> {
        // Not `then_some`, which would make a guard, and drop it, in any case.
        self.try_acquire().then(|| TicketGuard { lock: self, value: PhantomData })
    }

    /// Waits for the lock, without a guard.
    #[inline]
    fn acquire(&self) {
        // Ordering comes from `serving`; drawing a ticket needs none.
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        while self.serving.load(Ordering::Acquire) != ticket {
            relax();
        }
    }

    /// Takes the lock if it is free and not waited for, without a guard.
    #[inline]
    fn try_acquire(&self) -> bool {
        // Acquire: if this ticket is also the next one to be drawn, the lock is acquired immediately, and the
        // previous holder's writes must be visible.
        let ticket = self.serving.load(Ordering::Acquire);
        self.next.compare_exchange(ticket, ticket.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Unlocks. Called by the holder only.
    #[inline]
    fn release(&self) {
        // Only the holder writes `serving`: no atomic addition is needed.
        let ticket = self.serving.load(Ordering::Relaxed);
        self.serving.store(ticket.wrapping_add(1), Ordering::Release);
    }

    /// Whether the lock is held or waited for; only a hint.
    pub fn is_locked(&self) -> bool {
        self.serving.load(Ordering::Relaxed) != self.next.load(Ordering::Relaxed)
    }

    /// The value without locking: `&mut self` excludes other references.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Spends a moment of waiting for another CPU.
#[inline(always)]
fn relax() {
    // Rust's hint is an ISB on Arm. YIELD is the architecture's hint ("YIELD", Arm Architecture Reference Manual): a hardware thread gives way
    // to another one, and an emulator that runs all CPUs in turn continues with the next one, perhaps the lock's holder.
    #[cfg(all(target_arch = "aarch64", target_os = "none"))]
    // SAFETY: a hint changes no register and no memory.
    unsafe {
        core::arch::asm!("yield", options(nomem, nostack, preserves_flags));
    }
    spin_loop();
}

impl<T: ?Sized> Deref for TicketGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the ticket being served, and no other guard has the same one. So only this
        // guard, which is borrowed here, reaches the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for TicketGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and it is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for TicketGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release();
    }
}

impl<T: Default> Default for TicketLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized> fmt::Debug for TicketLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the value: a panic report must not wait for a lock.
        f.debug_struct("TicketLock").field("locked", &self.is_locked()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;
    use std::vec::Vec;

    use super::TicketLock;

    /// Rounds per thread; fewer under Miri.
    const ROUNDS: u32 = if cfg!(miri) { 50 } else { 5_000 };
    const THREADS: u32 = 3;

    #[test]
    fn no_update_is_lost() {
        let lock = TicketLock::new((0u32, 0u32));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut pair = lock.lock();
                        // Two plain writes: a second holder between them would be detected.
                        pair.0 += 1;
                        assert_eq!(pair.0, pair.1 + 1);
                        pair.1 += 1;
                        drop(pair);
                        // The host may have fewer CPUs than threads, and the next holder may not be running.
                        thread::yield_now();
                    }
                });
            }
        });
        assert!(!lock.is_locked());
        assert_eq!(lock.into_inner(), (THREADS * ROUNDS, THREADS * ROUNDS));
    }

    #[test]
    fn try_lock_excludes_like_lock() {
        let lock = TicketLock::new(0u32);
        let start = Barrier::new(THREADS as usize);
        let taken: u32 = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        let mut taken = 0;
                        for _ in 0..ROUNDS {
                            if let Some(mut value) = lock.try_lock() {
                                *value += 1;
                                taken += 1;
                            }
                        }
                        taken
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
        });
        assert!(taken > 0);
        assert_eq!(lock.into_inner(), taken);
    }

    #[test]
    fn try_lock_fails_while_the_lock_is_held() {
        let mut lock = TicketLock::new(1);
        let guard = lock.lock();
        assert!(lock.is_locked());
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(lock.try_lock().map(|guard| *guard), Some(1));
        *lock.get_mut() = 2;
        assert_eq!(*lock.lock(), 2);
    }

    #[test]
    fn tickets_wrap() {
        let lock = TicketLock::new(());
        lock.next.store(u32::MAX, core::sync::atomic::Ordering::Relaxed);
        lock.serving.store(u32::MAX, core::sync::atomic::Ordering::Relaxed);
        for _ in 0..3 {
            drop(lock.lock());
            assert!(lock.try_lock().is_some());
        }
    }

    #[test]
    fn waiters_are_served_in_order() {
        let lock = TicketLock::new(Vec::new());
        let guard = lock.lock();
        thread::scope(|scope| {
            for waiter in 1..=THREADS {
                scope.spawn(|| {
                    let ticket = lock.next.load(core::sync::atomic::Ordering::Relaxed);
                    lock.lock().push(ticket);
                });
                // The next waiter draws its ticket only after this one has.
                while lock.next.load(core::sync::atomic::Ordering::Relaxed) != waiter + 1 {
                    thread::yield_now();
                }
            }
            drop(guard);
        });
        let order = lock.into_inner();
        assert!(order.is_sorted(), "{order:?}");
    }

    /// The bound on a wait (docs/ledger.md, "Waits for locks"): one hold by each other CPU, however often they take the lock.
    #[test]
    fn a_waiter_waits_for_one_hold_by_each_other_cpu() {
        use core::sync::atomic::Ordering::Relaxed;
        let lock = TicketLock::new(());
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let guard = lock.lock();
                        let serving = lock.serving.load(Relaxed);
                        // The tickets that a CPU that draws one now finds before its own.
                        let before = lock.next.load(Relaxed).wrapping_sub(serving);
                        assert!((1..=THREADS).contains(&before), "{before}");
                        drop(guard);
                        thread::yield_now();
                    }
                });
            }
        });
    }
}
