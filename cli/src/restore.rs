//! `stile restore`: a saved VM continues in a machine that runs.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::RestoreArgs;
use crate::config::Arch;
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::protocol::{Clock, Reply, Request, State};
use crate::exit;
use crate::operate::{self, Target};
use crate::progress::Task;
use crate::snapshot::{Summary, verify};

/// How long Stile may take for the next piece.
const PATIENCE: Duration = Duration::from_secs(120);

/// Restores the VM of a file in a machine.
///
/// # Errors
/// The machine does not exist, the file is no whole snapshot, or the machine can't have the VM.
pub fn run(args: &RestoreArgs) -> Result<u8> {
    let path = std::path::absolute(&args.file).with_context(|| args.file.display().to_string())?;
    let mut connection = Connection::open(&Directory::open()?, &args.machine)?;
    let summary = check(&mut connection, &path)?;
    let target = restore(connection, &summary, &path, args.clock)?;
    target.report(args.json, State::Running, "runs", None)
}

/// Reads a whole snapshot, and checks that a machine may have its VM.
///
/// # Errors
/// It is none, or the machine can't have it.
pub(crate) fn check(connection: &mut Connection, path: &Path) -> Result<Summary> {
    let file = File::open(path).map_err(|error| exit::usage(format!("{} can't be read: {error}", path.display())))?;
    let summary = verify(BufReader::new(file)).map_err(|error| exit::usage(format!("{}: {error}", path.display())))?;
    may_have(connection, &summary.guest.name, summary.arch)?;
    Ok(summary)
}

/// Checks that a machine may have a VM of this name.
///
/// # Errors
/// It is of another architecture, or has one.
pub(crate) fn may_have(connection: &mut Connection, name: &str, arch: Arch) -> Result<()> {
    let status = connection.status()?;
    if status.arch != arch {
        return Err(exit::usage(format!(
            "{} is an {} machine: it can't have a VM on {}",
            connection.name,
            status.arch.name(),
            arch.name()
        )));
    }
    if status.vms.iter().any(|vm| vm.name == name) {
        return Err(exit::usage(format!(
            "{} has a VM called {name} already: destroy it, or restore into another machine",
            connection.name
        )));
    }
    Ok(())
}

/// Restores a snapshot, and lets the VM continue. After a failure nothing of it is left.
///
/// # Errors
/// The machine can't have the VM.
pub(crate) fn restore(mut connection: Connection, summary: &Summary, path: &Path, clock: Clock) -> Result<Target> {
    let vm = summary.guest.name.clone();
    let what = format!("{}/{vm}", connection.name);
    let task = Task::start(format!("restoring {what}"));
    connection.set_patience(Some(PATIENCE))?;
    connection.send(&Request::Restore { file: path.to_owned(), clock, sections: None })?;
    let size = std::fs::metadata(path).map_or(0, |file| file.len()).max(summary.pages * 4096);
    let refused = loop {
        match connection.receive()? {
            Reply::Progress { done, .. } => task.percent(done as f64 * 100.0 / size.max(1) as f64),
            Reply::Done => break None,
            Reply::Refused { message } => break Some(message),
            other => bail!("{what}: unexpected answer: {other:?}"),
        }
    };
    drop(task);
    let mut target = Target { connection, vm };
    let Some(message) = refused else { return Ok(target) };
    if target.state().is_ok() {
        operate::remove(&mut target).with_context(|| format!("{what} can't be restored: {message}; removing what there is of it"))?;
    }
    bail!("{what} can't be restored: {message}")
}
