//! Results of operations: the vCPUs that must sync.

use core::ops::{BitOr, BitOrAssign};

use stile_board::VCPU_WORDS;

/// A set of vCPUs that must sync: bit `n` % 64 of word `n` / 64 is vCPU `n`.
///
/// Each vCPU in the set must run [`Redistributor::sync`](crate::Redistributor::sync) (or `sync_saved` if it
/// is not loaded) before it enters its guest again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a kicked vCPU that does not sync loses interrupts"]
pub struct Kick([u64; VCPU_WORDS]);

impl Kick {
    /// The empty set.
    pub const NONE: Self = Self([0; VCPU_WORDS]);

    /// vCPU `n` alone.
    #[inline]
    pub const fn one(n: usize) -> Self {
        Self::of_word(n / 64, 1 << (n % 64))
    }

    /// The vCPUs of word `word`; none if there is no such word.
    #[inline]
    pub const fn of_word(word: usize, bits: u64) -> Self {
        let mut words = [0; VCPU_WORDS];
        if word < VCPU_WORDS {
            words[word] = bits;
        }
        Self(words)
    }

    /// vCPUs 0 to `n` - 1 (at most [`MAX_VCPUS`](crate::MAX_VCPUS)).
    pub const fn below(n: usize) -> Self {
        let mut words = [0; VCPU_WORDS];
        let mut word = 0;
        while word < VCPU_WORDS {
            let bits = n.saturating_sub(64 * word);
            words[word] = if bits < 64 { (1 << bits) - 1 } else { u64::MAX };
            word += 1;
        }
        Self(words)
    }

    /// The words of the set.
    pub const fn words(self) -> [u64; VCPU_WORDS] {
        self.0
    }

    /// The vCPU with the lowest number.
    #[inline]
    pub fn first(self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some(64 * word + self.0[word].trailing_zeros() as usize)
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Whether the set contains vCPU `n`.
    #[inline]
    pub const fn contains(self, n: usize) -> bool {
        n / 64 < VCPU_WORDS && self.0[n / 64] >> (n % 64) & 1 != 0
    }

    /// The set without vCPU `n`.
    #[inline]
    pub const fn without(mut self, n: usize) -> Self {
        if n / 64 < VCPU_WORDS {
            self.0[n / 64] &= !(1 << (n % 64));
        }
        self
    }

    /// The vCPUs in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }
}

impl BitOr for Kick {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] | other.0[word]))
    }
}

impl BitOrAssign for Kick {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// Iterates over the vCPUs in ascending order.
impl IntoIterator for Kick {
    type Item = usize;
    type IntoIter = Vcpus;

    fn into_iter(self) -> Vcpus {
        Vcpus(self)
    }
}

/// Iterates over a set's vCPUs in ascending order.
#[derive(Clone, Debug)]
pub struct Vcpus(Kick);

impl Iterator for Vcpus {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let first = self.0.first()?;
        self.0 = self.0.without(first);
        Some(first)
    }
}

/// Iterates over the set bits in ascending order.
#[derive(Clone, Debug)]
pub struct Bits(pub(crate) u32);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let n = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(n as usize)
    }
}

/// The result of an operation on a vCPU's own redistributor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an interrupt may still wait for a list register"]
pub enum Delivery {
    /// Complete.
    Done,
    /// List registers have overflowed, or one holds an interrupt that only the distributor can take back:
    /// release the redistributor's lock, take the distributor's, then the redistributor's, and run
    /// [`Redistributor::sync`](crate::Redistributor::sync) (`sync_saved` if not loaded).
    NeedsSync,
}
