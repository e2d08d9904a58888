//! Canary memory: guest memory that must not change while the guest does other things.

use crate::fail::Outcome;
use crate::random::mix;

/// Fills the memory, runs `between` with the round's number, and checks the memory, for a number of rounds.
/// Reports each round and its checksum to `tell`.
///
/// # Errors
/// `between`'s, and the round in which the memory changed.
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

/// Fills the memory with contents specific to the round.
pub fn fill(words: &mut [u64], round: u64) {
    for (index, word) in words.iter_mut().enumerate() {
        *word = mix(round << 32 | index as u64);
    }
}

/// Compares the memory with the contents written by [`fill`].
pub fn check(words: &[u64], round: u64) -> Outcome {
    for (index, word) in words.iter().enumerate() {
        crate::check_eq!(*word, mix(round << 32 | index as u64), "round {round}: word {index} of the guest's memory");
    }
    Ok(())
}

/// An order-dependent checksum.
pub fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum: u64, word| sum.rotate_left(5) ^ word.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}
