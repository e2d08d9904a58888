//! The decoder's memory is what the crate says, and is taken once. Alone in its file: it counts all of its program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use stile_decode::{CodeSize, DECODER_HEAP, decode, prepare};

/// Counts the bytes that an allocator would need that frees nothing.
struct Counting(AtomicUsize);

// SAFETY: all is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(layout.size() + layout.align() - 1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting(AtomicUsize::new(0));

/// What `work` allocates. The program has other threads, but none that works now.
fn allocated(work: impl FnOnce()) -> usize {
    let before = HEAP.0.load(Ordering::Relaxed);
    work();
    HEAP.0.load(Ordering::Relaxed) - before
}

#[test]
fn the_decoder_takes_its_memory_once() {
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
