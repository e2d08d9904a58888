//! `stile migrate`: a VM moves to another machine on this computer.
//!
//! Its RAM is copied while it runs, in rounds: each copies the pages that the VM wrote during the one before. Their number is
//! bounded. Then the VM is paused, the rest is copied, and it continues in the other machine.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::Serialize;

use crate::args::MigrateArgs;
use crate::config::units;
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
    /// Instructions of that work, if both emulators count them.
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
    let mut may_run = false;
    let moved = match transfer(&mut source, &mut target, file.path(), args.clock, &mut may_run) {
        Ok(moved) => moved,
        Err(error) => return Err(undo(&mut source, may_run.then_some(&mut target), operate::LIMIT, error)),
    };
    // A machine without other VMs ends with this one.
    if let Err(error) = operate::remove(&mut source)
        && source.state().is_ok_and(|state| state == State::Paused)
    {
        out::note(format_args!("stile: {} stays paused: {error:#}", source.name()));
    }
    if args.target.json {
        let done = Done { machine: &target.connection.name, vm: &target.vm, state: State::Running, moved };
        out::json(&done)?;
    } else {
        let Moved { rounds, pages, paused_pages, paused_pages_read, .. } = moved;
        out::note(format_args!(
            "stile: {} runs; copied {} in {} while it ran, and {paused_pages} of {paused_pages_read} \
             that it had written since while it was paused, which took {}",
            target.name(),
            units::plural(pages, "page"),
            units::plural(rounds, "round"),
            moved.downtime()
        ));
    }
    Ok(exit::OK)
}

/// Lets a VM continue after a failed migration. If a target is given, it may run the copy: then the VM continues only if
/// the copy goes within the limit. Returns the error to report.
fn undo(source: &mut Target, target: Option<&mut Target>, limit: Duration, error: Error) -> Error {
    if let Some(target) = target {
        let patient = target.connection.set_patience(Some(operate::LIMIT));
        if !patient.and_then(|()| target.goes(limit)).unwrap_or(false) {
            let (source, target) = (source.name(), target.name());
            return error.context(format!("{source} stays paused, because {target} may run: resume it once that is destroyed"));
        }
    }
    let released = source.state().and_then(|state| if state == State::Paused { save::release(source, true) } else { Ok(()) });
    match released {
        Ok(()) => error.context(format!("{} continues where it was", source.name())),
        Err(failure) => failure.context(format!("{error:#}; {} stays paused", source.name())),
    }
}

/// Copies a VM, and lets the copy run. After a failure the VM may be paused. Nothing is left of the copy unless
/// `may_run` is set: then its machine was told to run it.
fn transfer(source: &mut Target, target: &mut Target, file: &Path, clock: Clock, may_run: &mut bool) -> Result<Moved> {
    let task = Task::start(format!("migrating {} to {}", source.name(), target.connection.name));
    source.connection.set_patience(Some(save::PATIENCE))?;
    target.connection.set_patience(Some(save::PATIENCE))?;
    let mut moved = Moved::default();
    let text = format!("migrating {} to {}", source.name(), target.connection.name);
    let tell = |what: &str| task.status(format!("{text}: {what}"));
    let protecting = |_| tell("making its memory read-only");
    collect(source, &Request::Copy { vm: source.vm.clone(), file: file.to_owned() }, protecting)?;
    let mut last = u64::MAX;
    loop {
        let round = moved.rounds + 1;
        let reading = |pages| tell(&format!("round {round}, {} read", units::plural(pages, "page")));
        let Copied { sections, pages, .. } = step(source, &Request::CopyStep { step: CopyStep::Round }, reading)?;
        let whole = file.metadata().map_or(1, |file| file.len().max(1)) as f64;
        let request = match moved.rounds {
            // Its machine has trusted it.
            0 => Request::Restore { file: file.to_owned(), clock, sections, trusted: true },
            _ => Request::RestoreMore { sections },
        };
        restore::load(target, &request, |done| {
            // The copy's file grows by each round.
            let percent = (done as f64 * 100.0 / whole).min(100.0);
            tell(&format!("round {round}, {} copied, {percent:.0} % of all of them restored", units::plural(pages, "page")));
        })?;
        moved.rounds = round;
        moved.pages += pages;
        // The VM may change memory as fast as it is copied.
        if moved.rounds == ROUNDS || moved.rounds > 1 && (pages < FEW || pages >= last) {
            break;
        }
        last = pages;
        collect(source, &Request::CopyStep { step: CopyStep::Collect }, protecting)?;
    }
    save::hold(source, State::Running)?;
    let finishing = |_| tell("the rest, while it is paused");
    let Copied { pages, read, work: saving, .. } = step(source, &Request::CopyStep { step: CopyStep::End }, finishing)?;
    (moved.paused_pages, moved.paused_pages_read) = (pages, read);
    // From here on the copy may run: if this command is killed, one of the two stays paused.
    let state = source.keep()?;
    ensure!(state == State::Paused, "{} is {}", source.name(), state.name());
    *may_run = true;
    let loading = restore::load(target, &Request::RestoreMore { sections: None }, finishing)?;
    moved.paused_nanoseconds = saving.nanoseconds.saturating_add(loading.nanoseconds);
    moved.paused_instructions = saving.instructions.zip(loading.instructions).map(|(saving, loading)| saving.saturating_add(loading));
    Ok(moved)
}

/// Takes a step for which the VM is paused meanwhile.
fn collect(source: &mut Target, request: &Request, progress: impl Fn(u64)) -> Result<()> {
    save::hold(source, State::Running)?;
    let done = step(source, request, progress);
    save::release(source, done.is_ok())?;
    done.map(drop)
}

/// Takes a step of the copy. `progress` gets the number of pages read so far.
fn step(source: &mut Target, request: &Request, progress: impl Fn(u64)) -> Result<Copied> {
    source.connection.send(request)?;
    loop {
        match source.connection.receive()? {
            Reply::Progress { done, .. } => progress(done),
            Reply::Copied(copied) => return Ok(copied),
            Reply::Refused { message } => bail!("{} can't be copied: {message}", source.name()),
            other => bail!("{}: unexpected answer: {other:?}", source.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::net::UnixListener;
    use std::thread::{self, JoinHandle};

    use anyhow::anyhow;

    use super::*;
    use crate::control::protocol::{self, VERSION};

    /// A machine that gives this state for its VM `db`, or does not know it. Returns the requests that it received.
    fn machine(sockets: &Directory, at: &Path, name: &str, state: Option<State>) -> (Target, JoinHandle<Vec<Request>>) {
        let listener = UnixListener::bind(at.join(format!("{name}.sock"))).unwrap();
        let machine = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(stream.try_clone().unwrap());
            let mut asked = Vec::new();
            while let Ok(Some(request)) = protocol::read::<Request>(&mut requests) {
                let reply = match (&request, state) {
                    (Request::Hello { .. }, _) => Reply::Hello { version: VERSION },
                    (Request::State { vm }, Some(state)) => Reply::State { vm: vm.clone(), state },
                    (Request::State { .. }, None) => Reply::Refused { message: "there is no VM called db".into() },
                    _ => Reply::Done,
                };
                asked.push(request);
                protocol::write(&mut stream, &reply).unwrap();
            }
            asked
        });
        (Target { connection: Connection::open(sockets, name).unwrap(), vm: "db".into() }, machine)
    }

    #[test]
    fn a_vm_stays_paused_while_its_copy_may_run() {
        for (copy, resumed) in [(Some(State::Running), false), (None, true)] {
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().join("stile");
            let sockets = Directory::at(at.clone()).unwrap();
            let (mut source, from) = machine(&sockets, &at, "a", Some(State::Paused));
            let (mut target, to) = machine(&sockets, &at, "b", copy);
            let error = undo(&mut source, Some(&mut target), Duration::ZERO, anyhow!("no answer"));
            drop((source, target));
            let asked = from.join().unwrap();
            assert_eq!(asked.iter().any(|request| matches!(request, Request::Control { .. })), resumed, "{asked:?}");
            let said = format!("{error:#}");
            let expected = if resumed { "a/db continues where it was: no answer" } else { "a/db stays paused, because b/db may run" };
            assert!(said.starts_with(expected), "{said}");
            to.join().unwrap();
        }
    }
}
