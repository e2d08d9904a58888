//! `stile fetch`: brings Debian's packages in the cache up to date.

use anyhow::Result;

use crate::args::FetchArgs;
use crate::{debian, exit, out};

/// Fetches what is missing or has become newer, and lists what is there.
///
/// # Errors
/// No mirror is known or reached, or the cache can't be written.
pub fn fetch(args: &FetchArgs) -> Result<u8> {
    for line in debian::refresh(args.arch)? {
        out::line(line)?;
    }
    Ok(exit::OK)
}
