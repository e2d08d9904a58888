//! `stile migrate`: a VM moves to another machine on this computer.

use anyhow::{Context, Result, bail};

use crate::args::MigrateArgs;
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::protocol::State;
use crate::operate::{self, Target};
use crate::{out, restore, save};

/// Moves a VM, which must run. It ends in its machine once it runs in the other one; if that fails, it continues
/// where it was.
///
/// # Errors
/// A machine or the VM does not exist, the VM can't be saved, or the other machine can't have it.
pub fn run(args: &MigrateArgs) -> Result<u8> {
    let mut source = Target::open(&args.target.vm)?;
    let mut to = Connection::open(&Directory::open()?, &args.to)?;
    if to.name == source.connection.name {
        bail!("{} is in {} already", source.vm, to.name);
    }
    let arch = source.connection.status()?.arch;
    restore::may_have(&mut to, &source.vm, arch)?;
    let state = source.state()?;
    if state != State::Running {
        bail!("{} can't be migrated: it is {}", source.name(), state.name());
    }
    let file = tempfile::Builder::new().prefix("stile-").suffix(".snapshot").tempfile().context("making a file for the VM")?;
    save::hold(&mut source, state)?;
    let moved = save::save(&mut source, file.path()).and_then(|()| {
        let summary = restore::check(&mut to, file.path())?;
        restore::restore(to, &summary, file.path(), args.clock)
    });
    let target = match moved {
        Ok(target) => target,
        Err(error) => {
            save::release(&mut source, true).with_context(|| format!("{error:#}; {} stays paused", source.name()))?;
            return Err(error.context(format!("{} continues where it was", source.name())));
        }
    };
    // A machine without other VMs ends with this one.
    if let Err(error) = operate::remove(&mut source)
        && source.state().is_ok_and(|state| state == State::Paused)
    {
        out::note(format_args!("stile: {} stays paused: {error:#}", source.name()));
    }
    target.report(args.target.json, State::Running, "runs", None)
}
