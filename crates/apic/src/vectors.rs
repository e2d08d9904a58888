//! Sets of vectors.

/// A set of interrupt vectors, 0 to 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vectors([u64; 4]);

impl Vectors {
    /// The empty set.
    pub const NONE: Self = Self([0; 4]);

    /// The set with these bits, 64 vectors per word.
    #[inline]
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }

    /// The set's bits, 64 vectors per word.
    #[inline]
    pub const fn words(&self) -> [u64; 4] {
        self.0
    }

    /// Whether the set is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        let [a, b, c, d] = self.0;
        a | b | c | d == 0
    }

    /// Adds the vectors of another set.
    #[inline]
    pub fn extend(&mut self, other: Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    /// Whether the set contains `vector`.
    #[inline]
    pub const fn contains(&self, vector: u8) -> bool {
        self.0[(vector >> 6) as usize] >> (vector & 63) & 1 != 0
    }

    /// The 32 vectors from 32 * `index` on, `index` modulo 8.
    #[inline]
    pub const fn word(&self, index: u32) -> u32 {
        (self.0[(index >> 1 & 3) as usize] >> (index % 2 * 32)) as u32
    }
}
