//! Delivery of figures that firmware keeps.

use super::MOST_PARTS;

/// Maximum number of a file: the folder has `1.JSON` and so on.
pub const MOST_FILES: u32 = 999;

/// Removes all parts, the first one first: without it, the others are no document. `is_there` says whether firmware has a part, and
/// `delete` deletes one, by the attributes that Stile sets; by none if it is still there, as firmware may refuse a change of attributes.
/// Returns whether no part is left.
pub fn remove(is_there: impl Fn(usize) -> bool, mut delete: impl FnMut(usize, bool)) -> bool {
    let mut is_left = false;
    for part in 0..MOST_PARTS {
        for by_attributes in [true, false] {
            if is_there(part) {
                delete(part, by_attributes);
            }
        }
        is_left |= is_there(part);
    }
    !is_left
}

/// Returns the number of the first file that does not exist. `exists` says whether one does; `None`: that is not known, and neither then is a
/// number.
pub fn free_number(mut exists: impl FnMut(u32) -> Option<bool>) -> Option<u32> {
    for number in 1..=MOST_FILES {
        if !exists(number)? {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::vec;

    use super::*;

    /// Removes these parts from firmware that refuses some deletions. Returns the result, the parts that are left, and the number of calls.
    fn removed(parts: &[usize], refused: impl Fn(usize, bool) -> bool) -> (bool, vec::Vec<usize>, usize) {
        let (left, mut calls) = (RefCell::new(parts.to_vec()), 0);
        let result = remove(
            |part| left.borrow().contains(&part),
            |part, by_attributes| {
                calls += 1;
                left.borrow_mut().retain(|&other| other != part || refused(part, by_attributes));
            },
        );
        (result, left.into_inner(), calls)
    }

    #[test]
    fn firmware_may_refuse_to_remove_parts() {
        assert_eq!(removed(&[], |_, _| true), (true, vec![], 0), "nothing is deleted that is not there");
        assert_eq!(removed(&[0, 1, 7, MOST_PARTS - 1], |_, _| false), (true, vec![], 4));
        assert_eq!(removed(&[0, 1], |_, by_attributes| by_attributes), (true, vec![], 4), "other attributes");
        assert_eq!(removed(&[0, 1], |part, _| part == 0), (false, vec![0], 3));
        assert_eq!(removed(&[0, 1], |_, _| true), (false, vec![0, 1], 4));
    }

    #[test]
    fn a_file_may_exist_that_can_not_be_opened() {
        assert_eq!(free_number(|_| Some(false)), Some(1));
        assert_eq!(free_number(|number| Some(number < 7)), Some(7));
        assert_eq!(free_number(|number| (number != 3).then_some(number < 7)), None);
        assert_eq!(free_number(|number| Some(number < MOST_FILES)), Some(MOST_FILES));
        assert_eq!(free_number(|_| Some(true)), None);
    }
}
