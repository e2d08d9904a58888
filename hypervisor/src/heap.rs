//! The heap of the boot, which two crates need: the x86 instruction decoder for tables with the machine's lifetime, and the
//! parser of the boot medium's configuration file for the time that it runs. Nothing else allocates, and after the boot
//! nothing does.
//!
//! Memory is handed out in ascending order and never taken back, but for the whole of [`with`]'s region. An allocation that does not fit
//! fails: `try_reserve` reports that, and other functions of `alloc` panic.

use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of the heap's regions.
pub const ALIGN: usize = 16;

/// The region in use. Only the boot CPU allocates, before it starts VMs, so that the words need not change together.
struct Heap {
    next: AtomicUsize,
    end: AtomicUsize,
}

#[cfg_attr(target_os = "none", global_allocator)]
static HEAP: Heap = Heap { next: AtomicUsize::new(0), end: AtomicUsize::new(0) };

impl Heap {
    /// Sets the region in use. Returns the rest of the one before.
    fn set(&self, region: Range<usize>) -> Range<usize> {
        self.next.swap(region.start, Ordering::Relaxed)..self.end.swap(region.end, Ordering::Relaxed)
    }
}

/// Adds memory with the machine's lifetime.
///
/// # Safety
/// The region is memory that nothing else uses, aligned to [`ALIGN`]. No other CPU runs yet.
#[allow(dead_code, reason = "not every architecture needs a lasting heap")]
pub unsafe fn give(region: Range<usize>) {
    HEAP.set(region);
}

/// Runs `work`, whose allocations are from `region`. May be nested.
///
/// # Panics
/// They do not fit, and `work` does not allocate by `try_reserve`.
///
/// # Safety
/// As for [`give`], while this function runs; and as long as anything is used that `work` allocates.
pub unsafe fn with(region: Range<usize>, work: impl FnOnce()) {
    let before = HEAP.set(region);
    work();
    HEAP.set(before);
}

// SAFETY: allocations lie in the region in use, are aligned and do not overlap.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let at = self.next.load(Ordering::Relaxed).next_multiple_of(layout.align().max(ALIGN));
        match at.checked_add(layout.size()).filter(|&end| end <= self.end.load(Ordering::Relaxed)) {
            Some(end) => {
                self.next.store(end, Ordering::Relaxed);
                at as *mut u8
            }
            None => core::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _memory: *mut u8, _layout: Layout) {}

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let at = memory as usize;
        let end = at.saturating_add(size);
        // The last allocation grows in place; none needs to move to shrink.
        if size <= layout.size() {
            return memory;
        }
        if at + layout.size() == self.next.load(Ordering::Relaxed) && end <= self.end.load(Ordering::Relaxed) {
            self.next.store(end, Ordering::Relaxed);
            return memory;
        }
        // SAFETY: the caller's size is valid for the alignment.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both have at least as many bytes as the old allocation, and do not overlap.
            unsafe { new.copy_from_nonoverlapping(memory, layout.size()) };
        }
        new
    }
}
