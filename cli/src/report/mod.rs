//! `stile report`: a trace as a page for a browser.

mod html;
mod input;
mod latency;
mod page;
mod worst;

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;

use crate::args::ReportArgs;
use crate::config::units;
use crate::control::name;
use crate::trace::Recorder;
use crate::{exit, out, replaced};
use input::Input;

/// Default duration of a recording, in seconds.
const SECONDS: f64 = 1.0;

/// Writes the page.
///
/// # Errors
/// The machine, VM or file does not exist; the file is not a trace in JSON lines; the page can't be written.
pub fn report(args: &ReportArgs) -> Result<u8> {
    let source = args.source.display();
    // Before the recording, which would be lost.
    replaced::check(&args.output)?;
    if let (Ok(source), Ok(output)) = (args.source.canonicalize(), args.output.canonicalize())
        && source == output
    {
        return Err(exit::usage(format!("{} is the trace itself: write to another file, with -o", output.display())));
    }
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
            let duration = Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS));
            let text = recorder.json(duration)?;
            let name = args.vm.as_ref().map_or_else(|| source.to_string(), |vm| format!("{source}/{vm}"));
            (Input::parse(&text)?, name)
        }
    };
    let page = page::page(&input, &format!("Exits in {name}"));
    replaced::write(&args.output, |file| Ok(file.write_all(page.as_bytes())?))?;
    let exits = input.exits().count();
    if args.json {
        out::json(&json!({"output": args.output, "exits": exits, "exits_dropped": input.dropped, "lost": input.lost}))?;
    } else {
        out::line(format_args!("{}: {}", args.output.display(), units::plural(exits, "exit")))?;
    }
    Ok(exit::OK)
}

/// The page of a trace in JSON lines.
///
/// # Errors
/// The text is no such trace.
pub fn page_of(text: &str, title: &str) -> Result<String> {
    Ok(page::page(&Input::parse(text)?, title))
}

/// Reads the given file. Returns `None` if it does not exist, and the name may be a machine's, or a machine's and a VM's.
fn file(args: &ReportArgs) -> Result<Option<String>> {
    let path = &args.source;
    match fs::read(path) {
        Ok(_) if args.seconds.is_some() || args.vm.is_some() => {
            bail!(exit::usage(format!("{} is a file: --seconds and --vm are for running machines", path.display())))
        }
        // A trace in Perfetto's format is binary.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) && names_machine(path) => Ok(None),
        Err(error) => Err(exit::usage(format!("{} can't be read: {error}", path.display()))),
    }
}

/// Whether a path has the form `NAME` or `NAME/VM`.
fn names_machine(path: &Path) -> bool {
    path.to_str().is_some_and(|text| name::check(name::split(text).0).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(source: &Path, output: &Path) -> ReportArgs {
        ReportArgs { source: source.to_owned(), output: output.to_owned(), seconds: None, vm: None, json: true }
    }

    #[test]
    fn a_trace_is_not_replaced_by_its_report() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.jsonl");
        let trace = "{\"event\":\"summary\",\"counter_hz\":1,\"exits_dropped\":0,\"lost\":0}\n";
        fs::write(&file, trace).unwrap();
        let error = report(&args(&file, &dir.path().join("./t.jsonl"))).unwrap_err();
        assert_eq!(exit::status_of(&error), exit::USAGE);
        assert_eq!(fs::read_to_string(&file).unwrap(), trace);
        let page = dir.path().join("t.html");
        fs::write(&page, "earlier").unwrap();
        fs::write(&file, "garbage").unwrap();
        assert!(report(&args(&file, &page)).is_err());
        assert_eq!(fs::read_to_string(&page).unwrap(), "earlier");
    }

    #[test]
    fn machines_and_vms_are_told_from_files() {
        for (text, machine) in
            [("web", true), ("web/db", true), ("web/db.inner", true), ("t.jsonl", false), ("/tmp/t", false), ("../t", false)]
        {
            assert_eq!(names_machine(Path::new(text)), machine, "{text}");
        }
        let missing = report(&args(Path::new("none.jsonl"), Path::new("x.html"))).unwrap_err();
        assert_eq!(exit::status_of(&missing), exit::USAGE, "{missing:#}");
    }
}
