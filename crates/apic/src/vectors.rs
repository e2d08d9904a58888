//! Sets of vectors.

/// A set of interrupt vectors, 0 to 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vectors([u64; 4]);

impl Vectors {
    /// No vector.
    pub const NONE: Self = Self([0; 4]);

    /// Adds a vector.
    #[inline]
    pub fn insert(&mut self, vector: u8) {
        self.0[usize::from(vector >> 6)] |= 1 << (vector & 63);
    }

    /// Takes a vector out.
    #[inline]
    pub fn remove(&mut self, vector: u8) {
        self.0[usize::from(vector >> 6)] &= !(1 << (vector & 63));
    }

    /// Adds or takes out.
    #[inline]
    pub fn set(&mut self, vector: u8, present: bool) {
        if present { self.insert(vector) } else { self.remove(vector) }
    }

    /// Is it in the set?
    #[inline]
    pub const fn contains(&self, vector: u8) -> bool {
        self.0[(vector >> 6) as usize] >> (vector & 63) & 1 != 0
    }

    /// The highest vector.
    #[inline]
    pub fn highest(&self) -> Option<u8> {
        (0..4_u8).rev().find_map(|i| {
            let word = self.0[usize::from(i)];
            (word != 0).then(|| i * 64 + 63 - word.leading_zeros() as u8)
        })
    }

    /// The 32 vectors from 32 * `index` on, `index` modulo 8.
    #[inline]
    pub const fn word(&self, index: u32) -> u32 {
        (self.0[(index >> 1 & 3) as usize] >> (index % 2 * 32)) as u32
    }
}
