//! Results of operations: the vCPUs that must sync.

use core::ops::{BitOr, BitOrAssign};

/// A set of vCPUs that must sync: bit `n` is vCPU `n`.
///
/// Each vCPU in the set must run [`Redistributor::sync`](crate::Redistributor::sync) (or `sync_saved` if it
/// is not loaded) before it enters its guest again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a kicked vCPU that does not sync loses interrupts"]
pub struct Kick(pub u64);

impl Kick {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// vCPU `n` alone.
    pub const fn one(n: usize) -> Self {
        Self(if n < u64::BITS as usize { 1 << n } else { 0 })
    }

    /// vCPUs 0 to `n` - 1 (at most 64).
    pub const fn below(n: usize) -> Self {
        Self(if n < u64::BITS as usize { (1 << n) - 1 } else { u64::MAX })
    }

    /// The vCPU with the lowest number.
    #[inline]
    pub const fn first(self) -> Option<usize> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as usize) }
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains vCPU `n`.
    pub const fn contains(self, n: usize) -> bool {
        self.0 & Self::one(n).0 != 0
    }

    /// The set without vCPU `n`.
    pub const fn without(self, n: usize) -> Self {
        Self(self.0 & !Self::one(n).0)
    }
}

impl BitOr for Kick {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Kick {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
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
