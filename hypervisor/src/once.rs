//! A value that is set once during boot and read-only from then on.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

/// A static that boot initializes. A read costs a load and a test: not for the fast path.
pub struct Once<T> {
    set: AtomicBool,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: written once, by the boot CPU before any reader exists; shared and immutable afterwards.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// An unset value.
    pub const fn new() -> Once<T> {
        Once { set: AtomicBool::new(false), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Sets the value.
    ///
    /// # Panics
    /// If it is already set.
    pub fn set(&self, value: T) {
        assert!(!self.set.load(Ordering::Relaxed), "set twice");
        // SAFETY: the flag shows that no reference exists yet, and only the boot CPU runs.
        unsafe { (*self.value.get()).write(value) };
        self.set.store(true, Ordering::Release);
    }

    /// The value.
    ///
    /// # Panics
    /// If it is not set.
    #[inline]
    pub fn get(&self) -> &T {
        self.try_get().expect("read before boot set it")
    }

    /// Returns the value without a test.
    ///
    /// # Safety
    /// The value is set, and the write happens before this call.
    #[inline(always)]
    pub unsafe fn assume_set(&self) -> &T {
        // SAFETY: the caller guarantees that the value is set; nothing writes it again.
        unsafe { (*self.value.get()).assume_init_ref() }
    }

    /// Returns the value if it is set.
    #[inline]
    pub fn try_get(&self) -> Option<&T> {
        // SAFETY: the flag is set after the value was written, and nothing writes it again.
        self.set.load(Ordering::Acquire).then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }
}
