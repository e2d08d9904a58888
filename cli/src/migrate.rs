//! `stile migrate`: a VM moves to another machine on this computer.
//!
//! Its RAM is copied while it runs, in rounds: each copies what the VM accessed during the one before. Their number is
//! bounded. Then the VM is paused, the rest is copied, and it continues in the other machine.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::args::MigrateArgs;
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::protocol::{Clock, Copied, CopyStep, Reply, Request, State};
use crate::operate::{self, Target};
use crate::progress::Task;
use crate::{exit, out, restore, save};

/// Most rounds while the VM runs.
const ROUNDS: u32 = 5;

/// A round with fewer pages than this is the last one.
const FEW: u64 = 64;

/// Numbers of rounds and pages of a migration.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Moved {
    /// Rounds while the VM ran.
    rounds: u32,
    /// Pages copied while it ran.
    pages: u64,
    /// Pages copied while it was paused in the end.
    paused_pages: u64,
    /// Pages read while it was paused, to find those that had changed.
    paused_pages_read: u64,
    /// Work of both machines' Stile while it was paused, by their counters.
    paused_nanoseconds: u64,
    /// That work in instructions, if both emulators count them.
    paused_instructions: Option<u64>,
}

impl Moved {
    /// Stile's work while the VM was paused, in instructions if they are counted.
    fn downtime(&self) -> String {
        match self.paused_instructions {
            Some(instructions) => format!("{instructions} instructions of Stile"),
            None => format!("Stile {} \u{b5}s of the machines' time", self.paused_nanoseconds.div_ceil(1000)),
        }
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct Done<'a> {
    machine: &'a str,
    vm: &'a str,
    state: State,
    #[serde(flatten)]
    moved: Moved,
}

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
    let mut target = Target { connection: to, vm: source.vm.clone() };
    let moved = match transfer(&mut source, &mut target, file.path(), args.clock) {
        Ok(moved) => moved,
        Err(error) => {
            if source.state()? == State::Paused {
                save::release(&mut source, true).with_context(|| format!("{error:#}; {} stays paused", source.name()))?;
            }
            return Err(error.context(format!("{} continues where it was", source.name())));
        }
    };
    // A machine without other VMs ends with this one.
    if let Err(error) = operate::remove(&mut source)
        && source.state().is_ok_and(|state| state == State::Paused)
    {
        out::note(format_args!("stile: {} stays paused: {error:#}", source.name()));
    }
    if args.target.json {
        let done = Done { machine: &target.connection.name, vm: &target.vm, state: State::Running, moved };
        out::line(serde_json::to_string(&done).context("writing JSON")?)?;
    } else {
        let Moved { rounds, pages, paused_pages, paused_pages_read, .. } = moved;
        out::note(format_args!(
            "stile: {} runs; {pages} pages were copied in {rounds} rounds while it ran, and {paused_pages} of {paused_pages_read} \
             that it had accessed since while it was paused, which took {}",
            target.name(),
            moved.downtime()
        ));
    }
    Ok(exit::OK)
}

/// Copies a VM, and lets the copy run. After a failure nothing is left of the copy, and the VM may be paused.
fn transfer(source: &mut Target, target: &mut Target, file: &Path, clock: Clock) -> Result<Moved> {
    let task = Task::start(format!("migrating {} to {}", source.name(), target.connection.name));
    source.connection.set_patience(Some(save::PATIENCE))?;
    target.connection.set_patience(Some(save::PATIENCE))?;
    let mut moved = Moved::default();
    collect(source, &Request::Copy { vm: source.vm.clone(), file: file.to_owned() })?;
    let mut last = u64::MAX;
    loop {
        let Copied { sections, pages, .. } = step(source, &Request::CopyStep { step: CopyStep::Round })?;
        let request = match moved.rounds {
            // Its machine has trusted it.
            0 => Request::Restore { file: file.to_owned(), clock, sections, trusted: true },
            _ => Request::RestoreMore { sections },
        };
        restore::load(target, &request, |_| ())?;
        moved.rounds += 1;
        moved.pages += pages;
        task.message(format!("migrating {}: round {}, {pages} pages", source.name(), moved.rounds));
        // The VM may change memory as fast as it is copied.
        if moved.rounds == ROUNDS || moved.rounds > 1 && (pages < FEW || pages >= last) {
            break;
        }
        last = pages;
        collect(source, &Request::CopyStep { step: CopyStep::Collect })?;
    }
    save::hold(source, State::Running)?;
    let Copied { pages, read, work: saving, .. } = step(source, &Request::CopyStep { step: CopyStep::End })?;
    (moved.paused_pages, moved.paused_pages_read) = (pages, read);
    // From here on the copy may run: if this command is killed, one of the two stays paused.
    let state = source.keep()?;
    ensure!(state == State::Paused, "{} is {}", source.name(), state.name());
    let loading = restore::load(target, &Request::RestoreMore { sections: None }, |_| ())?;
    moved.paused_nanoseconds = saving.nanoseconds.saturating_add(loading.nanoseconds);
    moved.paused_instructions = saving.instructions.zip(loading.instructions).map(|(saving, loading)| saving.saturating_add(loading));
    Ok(moved)
}

/// Takes a step for which the VM is paused meanwhile.
fn collect(source: &mut Target, request: &Request) -> Result<()> {
    save::hold(source, State::Running)?;
    let done = step(source, request);
    save::release(source, done.is_ok())?;
    done.map(drop)
}

/// Takes a step of the copy.
fn step(source: &mut Target, request: &Request) -> Result<Copied> {
    source.connection.send(request)?;
    loop {
        match source.connection.receive()? {
            Reply::Progress { .. } => {}
            Reply::Copied(copied) => return Ok(copied),
            Reply::Refused { message } => bail!("{} can't be copied: {message}", source.name()),
            other => bail!("{}: unexpected answer: {other:?}", source.name()),
        }
    }
}
