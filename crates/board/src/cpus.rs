//! Physical CPUs, and sets of them.

use core::num::NonZeroU16;

use crate::{CPU_WORDS, MAX_CPUS};

// Numbers are kept in range by masking.
const _: () = assert!(MAX_CPUS.is_power_of_two() && MAX_CPUS.is_multiple_of(64) && MAX_CPUS <= CpuId::EXISTS as usize);

/// A physical CPU, by its logical number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CpuId(NonZeroU16);

impl CpuId {
    /// Always set, so that an `Option` needs no more room.
    const EXISTS: u16 = 1 << 15;

    /// The CPU that booted.
    pub const BOOT: Self = Self::wrapping(0);

    /// The CPU with this number, or `None` if it isn't below [`MAX_CPUS`].
    #[inline]
    pub const fn new(number: usize) -> Option<Self> {
        if number < MAX_CPUS { Some(Self::wrapping(number)) } else { None }
    }

    /// The CPU with this number modulo [`MAX_CPUS`]: for a number that is known to be in range.
    #[inline(always)]
    pub const fn wrapping(number: usize) -> Self {
        match NonZeroU16::new((number & (MAX_CPUS - 1)) as u16 | Self::EXISTS) {
            Some(number) => Self(number),
            None => unreachable!(),
        }
    }

    /// All CPUs that there may be.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MAX_CPUS).filter_map(Self::new)
    }

    /// The CPU's number, below [`MAX_CPUS`].
    #[inline]
    pub const fn index(self) -> usize {
        // In range by construction; the mask makes that visible to the compiler.
        self.0.get() as usize & (MAX_CPUS - 1)
    }
}

/// A set of physical CPUs: bit n % 64 of word n / 64 is CPU n.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CpuSet([u64; CPU_WORDS]);

impl CpuSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; CPU_WORDS]);

    /// All CPUs that there may be.
    pub const ALL: Self = Self([u64::MAX; CPU_WORDS]);

    /// The CPUs among the first 64 whose bits are set.
    pub const fn from_bits(bits: u64) -> Self {
        let mut set = Self::EMPTY;
        set.0[0] = bits;
        set
    }

    /// The CPUs whose bits are set.
    pub const fn from_words(words: [u64; CPU_WORDS]) -> Self {
        Self(words)
    }

    /// The set as bits.
    #[inline]
    pub const fn words(&self) -> &[u64; CPU_WORDS] {
        &self.0
    }

    /// The first `count` CPUs, all if there are fewer.
    pub fn first_few(count: usize) -> Self {
        CpuId::all().take(count).collect()
    }

    /// Whether the set is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Word and bit of a CPU.
    #[inline]
    const fn place(cpu: CpuId) -> (usize, u64) {
        (cpu.index() / 64, 1 << (cpu.index() % 64))
    }

    /// Whether the set contains the CPU.
    #[inline]
    pub const fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = Self::place(cpu);
        self.0[word] & bit != 0
    }

    /// The CPU with the lowest number.
    #[inline]
    pub fn first(&self) -> Option<CpuId> {
        let word = self.0.iter().position(|word| *word != 0)?;
        CpuId::new(word * 64 + self.0[word].trailing_zeros() as usize)
    }

    /// The CPU with the highest number.
    pub fn last(&self) -> Option<CpuId> {
        let word = self.0.iter().rposition(|word| *word != 0)?;
        CpuId::new(word * 64 + self.0[word].ilog2() as usize)
    }

    /// The only CPU, if there is exactly one.
    pub fn only(&self) -> Option<CpuId> {
        self.first().filter(|_| self.len() == 1)
    }

    /// The CPUs that are in both sets.
    #[inline]
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// The CPUs that are in either set.
    #[inline]
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// The CPUs of this set that are not in the other one.
    #[inline]
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The CPUs of this set except one.
    #[inline]
    #[must_use]
    pub fn except(&self, cpu: CpuId) -> Self {
        let mut set = *self;
        set.set(cpu, false);
        set
    }

    /// Adds or removes the CPU.
    #[inline]
    pub const fn set(&mut self, cpu: CpuId, member: bool) {
        let (word, bit) = Self::place(cpu);
        if member {
            self.0[word] |= bit;
        } else {
            self.0[word] &= !bit;
        }
    }

    /// The number of lower CPUs in the set, if it contains the CPU.
    pub fn rank(&self, cpu: CpuId) -> Option<usize> {
        let (word, bit) = Self::place(cpu);
        let lower: u32 = self.0[..word].iter().map(|word| word.count_ones()).sum();
        self.contains(cpu).then(|| (lower + (self.0[word] & (bit - 1)).count_ones()) as usize)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + use<> {
        self.0.into_iter().enumerate().flat_map(|(word, mut rest)| {
            core::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(CpuId::wrapping(word * 64 + bit))
            })
        })
    }

    /// The CPUs in ascending order from the first one after `cpu`, wrapping around to `cpu`.
    pub fn iter_after(&self, cpu: CpuId) -> impl Iterator<Item = CpuId> + use<> {
        let mut up_to = Self::EMPTY;
        let (at, bit) = Self::place(cpu);
        up_to.0[..at].fill(u64::MAX);
        up_to.0[at] = bit | (bit - 1);
        self.without(&up_to).iter().chain(self.and(&up_to).iter())
    }
}

impl From<CpuId> for CpuSet {
    fn from(cpu: CpuId) -> Self {
        let mut set = Self::EMPTY;
        set.set(cpu, true);
        set
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::EMPTY;
        cpus.into_iter().for_each(|cpu| set.set(cpu, true));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;

    fn cpu(number: usize) -> CpuId {
        CpuId::new(number).expect("in range")
    }

    fn numbers(cpus: impl Iterator<Item = CpuId>) -> Vec<usize> {
        cpus.map(CpuId::index).collect()
    }

    #[test]
    fn numbers_are_in_range() {
        assert_eq!((CpuId::new(MAX_CPUS), CpuId::wrapping(MAX_CPUS), size_of::<Option<CpuId>>()), (None, CpuId::BOOT, 2));
        assert_eq!(CpuId::all().count(), MAX_CPUS);
        assert_eq!(cpu(MAX_CPUS - 1).index(), MAX_CPUS - 1);
    }

    #[test]
    fn a_set_agrees_with_a_tree() {
        let last = MAX_CPUS - 1;
        let some: CpuSet = [3, 63, 64, 200, last].map(cpu).into_iter().collect();
        let tree: BTreeSet<usize> = numbers(some.iter()).into_iter().collect();
        assert_eq!(numbers(some.iter()), [3, 63, 64, 200, last]);
        assert!((0..MAX_CPUS).all(|number| some.contains(cpu(number)) == tree.contains(&number)));
        assert_eq!((some.len(), some.first(), some.last(), some.only()), (5, Some(cpu(3)), Some(cpu(last)), None));
        assert!(some.iter().enumerate().all(|(rank, cpu)| some.rank(cpu) == Some(rank)));
        assert_eq!(some.rank(cpu(65)), None);
        assert_eq!(numbers(some.iter_after(cpu(64))), [200, last, 3, 63, 64]);
        assert_eq!(numbers(some.iter_after(cpu(last))), [3, 63, 64, 200, last]);
        assert_eq!(numbers(some.iter_after(cpu(63))), [64, 200, last, 3, 63]);
        assert_eq!(numbers(some.except(cpu(64)).iter()), [3, 63, 200, last]);
        let few = CpuSet::first_few(65);
        assert_eq!((few.len(), numbers(some.and(&few).iter())), (65, [3, 63, 64].into()));
        assert_eq!(numbers(some.without(&few).iter()), [200, last]);
        assert_eq!(few.or(&some).len(), 67);
        assert_eq!((CpuSet::ALL.len(), CpuSet::first_few(usize::MAX)), (MAX_CPUS, CpuSet::ALL));
    }

    #[test]
    fn empty_and_single_sets() {
        assert!(CpuSet::EMPTY.is_empty() && CpuSet::EMPTY.iter_after(cpu(70)).next().is_none());
        assert_eq!((CpuSet::EMPTY.first(), CpuSet::EMPTY.last(), CpuSet::EMPTY.only()), (None, None, None));
        let one = CpuSet::from(cpu(130));
        assert!(!one.is_empty() && one.only() == Some(cpu(130)) && one.last() == one.first());
        assert_eq!(CpuSet::from_bits(0b101), [0, 2].map(cpu).into_iter().collect());
    }
}
