//! A value that is set once, while the machine boots, and only read from then on.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

/// A static that boot fills. Reading costs a load and a test; it is not for the fast path.
pub struct Once<T> {
    set: AtomicBool,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: written once, by one CPU, before any other CPU or reader is there; shared afterwards.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// Not yet set.
    pub const fn new() -> Once<T> {
        Once { set: AtomicBool::new(false), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Sets the value.
    ///
    /// # Panics
    /// If it was set before.
    pub fn set(&self, value: T) {
        assert!(!self.set.load(Ordering::Relaxed), "set twice");
        // SAFETY: the flag says that nothing has a reference yet, and only the booting CPU is here.
        unsafe { (*self.value.get()).write(value) };
        self.set.store(true, Ordering::Release);
    }

    /// The value.
    ///
    /// # Panics
    /// If it was not set.
    #[inline]
    pub fn get(&self) -> &T {
        self.try_get().expect("read before boot set it")
    }

    /// The value, without a test.
    ///
    /// # Safety
    /// It was set, and how the caller came to know it orders that before this.
    #[inline(always)]
    pub unsafe fn assume_set(&self) -> &T {
        // SAFETY: the caller's promise; nothing writes it again.
        unsafe { (*self.value.get()).assume_init_ref() }
    }

    /// The value, if it is set already.
    #[inline]
    pub fn try_get(&self) -> Option<&T> {
        // SAFETY: the flag is set after the value was written, and nothing writes it again.
        self.set.load(Ordering::Acquire).then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }
}
