//! A file's bytes as text.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec;

use crate::{Mistake, Mistakes, Place};

/// The text of a file called `name`.
///
/// # Errors
/// It is not UTF-8.
pub fn utf8<'b>(name: &str, bytes: &'b [u8]) -> Result<&'b str, Mistakes> {
    core::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mistake = Mistake::new(Place::Text(at..at + 1), "a byte that is not UTF-8").expected("a text file");
        Mistakes::new(Some((name.to_owned(), text)), vec![mistake])
    })
}
