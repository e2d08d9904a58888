//! `stile save`: a VM's memory and state in a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use stile_wire::Action;
use tempfile::NamedTempFile;

use crate::args::SaveArgs;
use crate::cleanup;
use crate::control::protocol::{Reply, Request, State};
use crate::operate::{self, Target};
use crate::progress::Task;
use crate::replaced;

/// Time limit for Stile's next piece.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Saves a VM, which continues afterwards unless it was paused.
///
/// # Errors
/// The machine or VM does not exist, the VM can't be saved, or the file can't be written.
pub fn run(args: &SaveArgs) -> Result<u8> {
    let mut target = Target::open(&args.target.vm)?;
    let path = replaced::target(&args.file)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let making = || format!("{}: making it", path.display());
    // Without a name. A VM is not paused for a file that can't be made.
    tempfile::tempfile_in(folder).with_context(making)?;
    let state = target.state()?;
    hold(&mut target, state)?;
    // Beside the file, so that it replaces the file in one step, and only once it is complete. Not made before the pause, because the
    // machine's process removes it if this command is killed.
    let file = cleanup::removing(|| NamedTempFile::new_in(folder)).with_context(making);
    let saved = file.and_then(|file| save(&mut target, file.0.path()).map(|()| file));
    if state == State::Running {
        release(&mut target, saved.is_ok())?;
    }
    let (file, _cleanup) = saved?;
    file.persist(&path).with_context(|| path.display().to_string())?;
    target.report(args.target.json, state, &format!("is saved, and {}", state.name()), None)
}

/// Pauses a VM in this state, unless it is paused.
///
/// # Errors
/// It is off.
pub(crate) fn hold(target: &mut Target, state: State) -> Result<()> {
    let held = if state == State::Running { operate::hold(target)? } else { state };
    if held != State::Paused {
        bail!("{} can't be saved: it is {}", target.name(), held.name());
    }
    Ok(())
}

/// Lets a VM continue. After a failure another failure is not reported.
///
/// # Errors
/// It can't continue.
pub(crate) fn release(target: &mut Target, report: bool) -> Result<()> {
    match target.change(Action::Resume) {
        Err(error) if report => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Saves a paused VM into a file.
///
/// # Errors
/// It can't be saved.
pub(crate) fn save(target: &mut Target, file: &Path) -> Result<()> {
    let name = target.name();
    let task = Task::start(format!("saving {name}"));
    target.connection.set_patience(Some(PATIENCE))?;
    target.connection.send(&Request::Save { vm: target.vm.clone(), file: PathBuf::from(file) })?;
    loop {
        match target.connection.receive()? {
            Reply::Progress { done, all } => {
                task.percent(done as f64 * 100.0 / all.max(1) as f64);
            }
            Reply::Done => return Ok(()),
            Reply::Refused { message } => bail!("{name} can't be saved: {message}"),
            other => bail!("{name}: unexpected answer: {other:?}"),
        }
    }
}
