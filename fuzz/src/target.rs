//! The type of a fuzz target.

/// Longest input in bytes.
pub const LONGEST: usize = 8192;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and of its corpus: `corpus/NAME.hex`.
    pub name: &'static str,
    /// Takes any bytes; panics on a fault.
    pub run: fn(&[u8]),
    /// Inputs in addition to the corpus, in the current formats.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Mutated inputs that the tests run.
    pub mutations: u32,
    /// Places that the corpus must reach: see [`crate::marks`].
    pub marks: &'static [&'static str],
}

/// No seeds.
pub fn none() -> Vec<Vec<u8>> {
    Vec::new()
}
