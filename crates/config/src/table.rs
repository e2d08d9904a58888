//! Tables of the configuration's file, whose values are read with their places.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::draft::Given;
use crate::mistake::similar;
use crate::{Mistake, Place};

/// Maximum number of unknown keys reported per table: more are not typing errors.
const MOST_UNKNOWN: usize = 20;

/// A table of the file, and its name in messages.
pub struct Table<'t> {
    table: &'t DeTable<'t>,
    keys: &'static [&'static str],
}

impl<'t> Table<'t> {
    /// Reports the keys that are not in `keys`.
    pub fn new(name: &str, table: &'t DeTable<'t>, keys: &'static [&'static str], mistakes: &mut Vec<Mistake>) -> Self {
        let mut unknown: Vec<_> = table.keys().filter(|key| !keys.contains(&&key.get_ref()[..])).collect();
        unknown.sort_by_key(|key| key.span().start);
        for (index, key) in unknown.iter().enumerate() {
            let word = key.get_ref();
            if index == MOST_UNKNOWN {
                let what = format!("{} more unknown keys in {name}", unknown.len() - index);
                mistakes.push(Mistake::new(Place::Text(key.span()), what));
                break;
            }
            let what = format!("unknown key \"{word}\" in {name}");
            let unused = keys.iter().copied().filter(|key| !table.contains_key(*key));
            mistakes.push(
                Mistake::new(Place::Text(key.span()), what)
                    .expected(match keys {
                        [only] => (*only).to_owned(),
                        _ => format!("one of {}", keys.join(", ")),
                    })
                    .similar_among(word, unused),
            );
        }
        Self { table, keys }
    }

    /// The value of a key, if the table has it.
    pub fn get(&self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        debug_assert!(self.keys.contains(&key), "{key} is not in the schema");
        self.table.get(key)
    }

    /// Whether there is an unknown key that is probably a misspelt `key`.
    pub fn has_key_like(&self, key: &str) -> bool {
        self.table
            .keys()
            .map(|word| word.get_ref())
            .take(MOST_UNKNOWN)
            .any(|word| !self.keys.contains(&&word[..]) && similar(word, [key]).is_some())
    }

    /// A table in it, and its place.
    pub fn table(&mut self, key: &'static str, header: &str, mistakes: &mut Vec<Mistake>) -> Option<(&'t DeTable<'t>, Range<usize>)> {
        let value = self.get(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some((table, value.span())),
            _ => {
                mistakes.push(wrong_type(key, value, &format!("a table {header}")));
                None
            }
        }
    }

    /// A string; `wanted` describes the expected text.
    pub fn string(&mut self, key: &'static str, wanted: &str, mistakes: &mut Vec<Mistake>) -> Option<Given<String>> {
        let value = self.get(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(Given::new(text.to_string(), Place::Text(value.span()))),
            _ => {
                mistakes.push(wrong_type(key, value, wanted));
                None
            }
        }
    }

    /// A list of strings.
    pub fn strings(&mut self, key: &'static str, wanted: &str, mistakes: &mut Vec<Mistake>) -> Option<Vec<Given<String>>> {
        let value = self.get(key)?;
        let DeValue::Array(array) = value.get_ref() else {
            let mistake = wrong_type(key, value, wanted);
            mistakes.push(match value.get_ref() {
                DeValue::String(text) => mistake.similar(format!("[\"{text}\"]")),
                _ => mistake,
            });
            return None;
        };
        let before = mistakes.len();
        let mut strings = Vec::new();
        for element in array.iter() {
            match element.get_ref() {
                DeValue::String(text) => strings.push(Given::new(text.to_string(), Place::Text(element.span()))),
                _ => mistakes.push(wrong_type(key, element, wanted)),
            }
        }
        (mistakes.len() == before).then_some(strings)
    }

    /// A size is a string; a bare number is a likely slip.
    pub fn size(&mut self, key: &'static str, wanted: &str, mistakes: &mut Vec<Mistake>) -> Option<Given<String>> {
        let value = self.get(key)?;
        if let DeValue::Integer(number) = value.get_ref() {
            mistakes.push(wrong_type(key, value, wanted).similar(format!("{number}M")));
            return None;
        }
        self.string(key, wanted, mistakes)
    }

    /// A whole number of 64 bits.
    pub fn integer(&mut self, key: &'static str, mistakes: &mut Vec<Mistake>) -> Option<Given<i64>> {
        integer(key, self.get(key)?, "a whole number", mistakes)
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, key: &'static str, mistakes: &mut Vec<Mistake>) -> Option<Given<bool>> {
        let value = self.get(key)?;
        match value.get_ref() {
            DeValue::Boolean(boolean) => Some(Given::new(*boolean, Place::Text(value.span()))),
            _ => {
                mistakes.push(wrong_type(key, value, "true or false"));
                None
            }
        }
    }
}

/// A whole number of 64 bits; `key` is its name in messages.
pub fn integer(key: &str, value: &Spanned<DeValue<'_>>, wanted: &str, mistakes: &mut Vec<Mistake>) -> Option<Given<i64>> {
    let DeValue::Integer(number) = value.get_ref() else {
        mistakes.push(wrong_type(key, value, wanted));
        return None;
    };
    match i64::from_str_radix(number.as_str(), number.radix()) {
        Ok(number) => Some(Given::new(number, Place::Text(value.span()))),
        Err(_) => {
            let what = format!("{number} is too large a number for \"{key}\"");
            mistakes.push(Mistake::new(Place::Text(value.span()), what).expected(wanted));
            None
        }
    }
}

/// The mistake of a value that has another type than the key `key` wants.
pub fn wrong_type(key: &str, value: &Spanned<DeValue<'_>>, wanted: &str) -> Mistake {
    let kind = match value.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    };
    Mistake::new(Place::Text(value.span()), format!("\"{key}\" is {kind}")).expected(wanted)
}
