//! `stile report`: a trace as a page for a browser.

mod html;
mod input;
mod latency;
mod page;
mod worst;

use std::fs;

use anyhow::{Context, Result};

use crate::args::ReportArgs;
use crate::{exit, out};
use input::Input;

/// Writes the page.
///
/// # Errors
/// A file can't be read or written, or is no trace in JSON lines.
pub fn report(args: &ReportArgs) -> Result<u8> {
    // A trace in Perfetto's format is no text.
    let bytes = fs::read(&args.trace).with_context(|| format!("reading {}", args.trace.display()))?;
    let input =
        Input::parse(&String::from_utf8_lossy(&bytes)).with_context(|| format!("{} is no trace in JSON lines", args.trace.display()))?;
    let title = format!("Exits in {}", args.trace.file_name().unwrap_or_default().to_string_lossy());
    fs::write(&args.output, page::page(&input, &title)).with_context(|| format!("writing {}", args.output.display()))?;
    out::line(format_args!("{}: {} exits", args.output.display(), input.exits().count()))?;
    Ok(exit::OK)
}
