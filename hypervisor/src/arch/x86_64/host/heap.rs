//! Heap of the instruction decoder, which builds its tables at first use (crate `stile-x86-decode`). Nothing else
//! allocates, and nothing is freed.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use stile_x86_decode::DECODER_HEAP;

#[repr(C, align(64))]
struct Heap {
    memory: UnsafeCell<[u8; DECODER_HEAP]>,
    used: AtomicUsize,
}

// SAFETY: an atomic counter hands out each byte once, so that no two allocations overlap.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap { memory: UnsafeCell::new([0; DECODER_HEAP]), used: AtomicUsize::new(0) };

// SAFETY: allocations lie in `memory`, are aligned and do not overlap. The heap is aligned to 16, and no layout of
// the decoder's is stricter.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size().next_multiple_of(16);
        let at = self.used.fetch_add(size, Ordering::Relaxed);
        if layout.align() > 16 || at + size > DECODER_HEAP {
            return core::ptr::null_mut();
        }
        // SAFETY: the range was checked to be in bounds.
        unsafe { self.memory.get().cast::<u8>().add(at) }
    }

    unsafe fn dealloc(&self, _memory: *mut u8, _layout: Layout) {}
}
