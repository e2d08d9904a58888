//! `stile report`: a trace as a page for a browser.

mod html;
mod input;
mod latency;
mod page;
mod worst;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::ReportArgs;
use crate::trace::Recorder;
use crate::{exit, out};
use input::Input;

/// Default duration of a recording, in seconds.
const SECONDS: f64 = 1.0;

/// Writes the page.
///
/// # Errors
/// The machine, VM or file does not exist; the file is not a trace in JSON lines; the page can't be written.
pub fn report(args: &ReportArgs) -> Result<u8> {
    let source = args.source.display();
    let (input, name) = match file(args)? {
        Some(text) => {
            let input = Input::parse(&text).map_err(|error| exit::usage(format!("{source} is not a trace in JSON lines: {error:#}")))?;
            (input, args.source.file_name().unwrap_or_default().to_string_lossy().into_owned())
        }
        None => {
            let recorder = Recorder::open(&source.to_string(), args.vm.as_deref());
            let mut recorder = recorder.map_err(|error| match exit::status_of(&error) {
                exit::USAGE => exit::usage(format!("{error:#} (nor is there a file called {source})")),
                _ => error,
            })?;
            // Before the recording, which would be lost.
            drop(create(args)?);
            let duration = Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS));
            let text = recorder.json(duration, args.vm.as_deref())?;
            let name = args.vm.as_ref().map_or_else(|| source.to_string(), |vm| format!("{source}/{vm}"));
            (Input::parse(&text)?, name)
        }
    };
    let page = page::page(&input, &format!("Exits in {name}"));
    create(args)?.write_all(page.as_bytes()).with_context(|| format!("writing {}", args.output.display()))?;
    out::line(format_args!("{}: {} exits", args.output.display(), input.exits().count()))?;
    Ok(exit::OK)
}

/// The page of a trace in JSON lines.
///
/// # Errors
/// The text is no such trace.
pub fn page_of(text: &str, title: &str) -> Result<String> {
    Ok(page::page(&Input::parse(text)?, title))
}

/// Reads the given file. Returns `None` if it does not exist, in which case the name may be a machine's.
fn file(args: &ReportArgs) -> Result<Option<String>> {
    let path = &args.source;
    match fs::read(path) {
        Ok(_) if args.seconds.is_some() || args.vm.is_some() => {
            bail!(exit::usage(format!("{} is a file: --seconds and --vm are for running machines", path.display())))
        }
        // A trace in Perfetto's format is binary.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound && path.extension().is_none() && path.components().count() == 1 => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

fn create(args: &ReportArgs) -> Result<File> {
    File::create(&args.output).with_context(|| format!("creating {}", args.output.display()))
}
