//! Memory of the guest's own that nothing may change.

use payload::prelude::*;
use payload::random::mix;

const WORDS: usize = 0x1_0000;

fn words() -> &'static mut [u64] {
    let free = machine::free_ram();
    let count = WORDS.min((free.end.saturating_sub(free.start) / 8) as usize);
    // SAFETY: free RAM behind the image; used here only, by one CPU at a time.
    unsafe { core::slice::from_raw_parts_mut(free.start as *mut u64, count) }
}

/// Fills it.
pub fn fill() {
    for (index, word) in words().iter_mut().enumerate() {
        *word = mix(index as u64);
    }
}

/// Compares it.
pub fn check() -> Outcome {
    for (index, word) in words().iter().enumerate() {
        check_eq!(*word, mix(index as u64), "word {index} of the guest's memory");
    }
    Ok(())
}
