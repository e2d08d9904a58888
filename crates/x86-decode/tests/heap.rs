//! The decoder's heap use is bounded and happens once. Alone in its file, because it counts all allocations of its thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use stile_x86_decode::{CodeSize, DECODER_HEAP, decode, prepare};

thread_local! {
    /// Per thread: the test harness allocates on its own thread.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

/// Counts the bytes that an allocator without free would need.
struct Counting;

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + layout.size() + layout.align() - 1);
        // SAFETY: the contract of this method is that of the system's allocator, to which the arguments go unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the contract of this method is that of the system's allocator, to which the arguments go unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// Returns the bytes that `work` allocates.
fn allocated(work: impl FnOnce()) -> usize {
    let before = TAKEN.get();
    work();
    TAKEN.get() - before
}

#[test]
fn decoder_allocates_once() {
    let first = allocated(prepare);
    assert!((1..=DECODER_HEAP).contains(&first), "{first} bytes");
    let later = allocated(|| {
        for size in [CodeSize::Bits16, CodeSize::Bits32, CodeSize::Bits64] {
            for opcode in 0..=u16::MAX {
                let [a, b] = opcode.to_le_bytes();
                let _ = decode(&[a, b, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], size);
            }
        }
    });
    assert_eq!(later, 0);
}
