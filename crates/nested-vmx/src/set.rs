//! A set of fields.

use crate::fields::COUNT;

const WORDS: usize = COUNT.div_ceil(64);

/// A set of fields, by their slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FieldSet([u64; WORDS]);

impl FieldSet {
    /// No field.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// All fields.
    pub const ALL: Self = {
        let mut all = [u64::MAX; WORDS];
        if !COUNT.is_multiple_of(64) {
            all[WORDS - 1] = (1 << (COUNT % 64)) - 1;
        }
        Self(all)
    };

    /// Adds the field with this slot.
    #[inline(always)]
    pub fn insert(&mut self, slot: usize) {
        if let Some(word) = self.0.get_mut(slot / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Adds the field with this slot, which exists, to a constant.
    pub const fn add(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    /// Whether the field with this slot is in the set.
    #[inline(always)]
    pub fn contains(&self, slot: usize) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }

    /// Whether the set is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Adds another set's fields.
    pub fn extend(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    /// Calls a function for each slot in both sets, in ascending order: a step for each of them, and for each 64 fields.
    #[inline(always)]
    pub fn for_each_common(&self, other: &Self, mut call: impl FnMut(usize)) {
        for (at, (one, other)) in self.0.iter().zip(&other.0).enumerate() {
            let mut word = one & other;
            while word != 0 {
                call(at * 64 + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
    }

    /// The slots in the set, in ascending order: a step for each field in the set and for each 64 fields.
    #[inline(always)]
    pub fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let words = self.0;
        (0..WORDS).flat_map(move |at| {
            let mut word = words[at];
            core::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
                word &= word - 1;
                Some(at * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn set(slots: &[usize]) -> FieldSet {
        let mut set = FieldSet::EMPTY;
        slots.iter().for_each(|&slot| set.insert(slot));
        set
    }

    proptest! {
        #[test]
        fn common_slots_are_visited_in_order(one in prop::collection::vec(0..COUNT, 0..20), other in prop::collection::vec(0..COUNT, 0..90)) {
            let mut visited = Vec::new();
            set(&one).for_each_common(&set(&other), |slot| visited.push(slot));
            let expected: Vec<_> = (0..COUNT).filter(|slot| one.contains(slot) && other.contains(slot)).collect();
            prop_assert_eq!(visited, expected);
        }
    }
}
