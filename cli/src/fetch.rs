//! `stile fetch`: updates Debian's packages in the cache.

use anyhow::Result;

use crate::args::FetchArgs;
use crate::{debian, exit, out};

/// Fetches missing and newer items, and lists the cache.
///
/// # Errors
/// No mirror is known or reachable, or the cache can't be written.
pub fn fetch(args: &FetchArgs) -> Result<u8> {
    let kept = debian::refresh(args.arch)?;
    if args.json {
        out::json(&kept)?;
    } else {
        kept.iter().try_for_each(out::line)?;
    }
    Ok(exit::OK)
}
