//! The distance between two words.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// The least number of insertions, deletions and replacements of a character, and exchanges of two neighbours, that make
/// one word of the other (Damerau and Levenshtein, without restriction of further changes between exchanged characters).
pub fn distance(one: &str, other: &str) -> usize {
    let [one, other]: [Vec<char>; 2] = [one.chars().collect(), other.chars().collect()];
    let width = other.len() + 2;
    let most = one.len() + other.len();
    // Rows and columns are those of the words, after one that no path takes and one for the empty word.
    let mut cells = vec![most; (one.len() + 2) * width];
    let cell = |row: usize, column: usize| row * width + column;
    (0..=one.len()).for_each(|row| cells[cell(row + 1, 1)] = row);
    (0..=other.len()).for_each(|column| cells[cell(1, column + 1)] = column);
    // The last row in which each character was found.
    let mut rows = BTreeMap::new();
    for (row, from) in (1..).zip(&one) {
        let mut matched = 0;
        for (column, to) in (1..).zip(&other) {
            let before = rows.get(to).copied().unwrap_or(0);
            let exchanged = cells[cell(before, matched)] + (row - before - 1) + 1 + (column - matched - 1);
            let replaced = cells[cell(row, column)] + usize::from(from != to);
            let inserted = cells[cell(row + 1, column)].min(cells[cell(row, column + 1)]) + 1;
            cells[cell(row + 1, column + 1)] = exchanged.min(replaced).min(inserted);
            if from == to {
                matched = column;
            }
        }
        rows.insert(from, row);
    }
    cells[cell(one.len() + 1, other.len() + 1)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn changes_are_counted() {
        assert_eq!((distance("", ""), distance("", "abc"), distance("slice", "slcie"), distance("ca", "abc")), (0, 3, 1, 2));
    }

    proptest! {
        #[test]
        fn distances_equal_strsims(one in "[a-dü]{0,9}", other in "[a-dü]{0,9}") {
            prop_assert_eq!(distance(&one, &other), strsim::damerau_levenshtein(&one, &other));
        }
    }
}
