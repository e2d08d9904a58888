//! Memory for the heap of the instruction decoder, which builds its tables at boot (crate `stile-x86-decode`).

use core::cell::UnsafeCell;

use stile_x86_decode::DECODER_HEAP;

use crate::heap;

#[repr(C, align(64))]
struct Memory(UnsafeCell<[u8; DECODER_HEAP]>);

// SAFETY: only the heap uses it, which hands out each byte once.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; DECODER_HEAP]));

/// Gives it to the heap, before the first allocation.
pub fn setup() {
    let start = MEMORY.0.get() as usize;
    // SAFETY: nothing else uses the memory, which is aligned; the boot CPU calls this before it starts others.
    unsafe { heap::give(start..start + DECODER_HEAP) };
}
