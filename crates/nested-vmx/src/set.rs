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
