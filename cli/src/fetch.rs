//! `stile fetch`: brings Debian's packages in the cache up to date.

use anyhow::Result;

use crate::{debian, exit};

/// Fetches what is missing or has become newer, and lists what is there.
///
/// # Errors
/// No mirror is known or reached, or the cache can't be written.
pub fn fetch() -> Result<u8> {
    for line in debian::refresh()? {
        println!("{line}");
    }
    Ok(exit::OK)
}
