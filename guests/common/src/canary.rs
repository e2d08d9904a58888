//! Memory of the guest's own that nothing may change behind its back.

use crate::fail::Outcome;
use crate::random::mix;

/// Watches over memory for so many rounds: fills it, does what is `between`, which is given the round, and finds out if it is as it was.
/// Each round and its sum are told to `tell`.
///
/// # Errors
/// `between`'s, and which round found other contents.
pub fn watch(words: &mut [u64], rounds: u64, between: impl Fn(u64) -> Outcome, tell: impl Fn(u64, u64)) -> Outcome {
    for round in 1..=rounds {
        fill(words, round);
        let before = sum(words);
        between(round)?;
        let after = sum(words);
        crate::check_eq!(after, before, "round {round}: checksum of memory");
        check(words, round)?;
        tell(round, after);
    }
    Ok(())
}

/// Fills it. Each round has other contents.
pub fn fill(words: &mut [u64], round: u64) {
    for (index, word) in words.iter_mut().enumerate() {
        *word = mix(round << 32 | index as u64);
    }
}

/// Compares it with what [`fill`] wrote.
pub fn check(words: &[u64], round: u64) -> Outcome {
    for (index, word) in words.iter().enumerate() {
        crate::check_eq!(*word, mix(round << 32 | index as u64), "round {round}: word {index} of the guest's memory");
    }
    Ok(())
}

/// A sum that depends on the words' order.
pub fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum: u64, word| sum.rotate_left(5) ^ word.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}
