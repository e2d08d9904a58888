//! A client of a machine's control socket that disconnects in the middle of its request, like a command that is killed.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::slowdown::stretched;
use anyhow::{Result, bail, ensure};
use stile::budget::Budget;
use stile::control::client::Connection;
use stile::control::directory::Directory;
use stile::control::protocol::{Clock, Copied, CopyStep, Reply, Request, State};
use stile::session::Guest;
use stile_wire::Action;

/// Name of the machine that an operator's steps are about.
pub const MACHINE: &str = "m";

/// Time-out of the whole.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes by which the progress of a restoration grows with each piece of state or RAM; less with the VM's files.
const PIECE: u64 = 1 << 16;

/// A request whose client disconnects.
#[derive(Debug, Clone, Copy)]
pub enum Broken {
    /// The pause for a snapshot of this VM: disconnects once it is paused. The VM must run again.
    Hold(&'static str),
    /// The restoration of a file with this VM: disconnects once its RAM is being restored. The VM must be gone.
    Restore(&'static str, &'static str),
    /// The migration of this VM to this machine: disconnects once the first round was copied. The VM must run where it was, and nothing of it
    /// be left there.
    Migrate(&'static str, &'static str),
    /// The creation of a VM with this name: disconnects once part of its files, which are nonsense, has arrived. The VM must not be there.
    Create(&'static str),
}

/// Bytes of files for [`Broken::Create`]: more than Stile gets before the client disconnects.
const FILES: usize = 1 << 20;

impl Broken {
    /// Makes the request of the machine whose control socket is under `runtime`. The error is a report for people.
    pub fn run(self, runtime: &Path) -> Result<String, String> {
        self.try_run(runtime).map(|()| String::new()).map_err(|error| format!("{self:?}: {error:#}"))
    }

    fn try_run(self, runtime: &Path) -> Result<()> {
        let limit = stretched(LIMIT);
        let end = Instant::now() + limit;
        let connect = |machine: &str| -> Result<Connection> {
            let connection = Connection::open(&Directory::at(runtime.join("stile"))?, machine)?;
            connection.set_patience(Some(limit))?;
            Ok(connection)
        };
        let mut client = connect(MACHINE)?;
        let (vm, wanted) = match self {
            Self::Hold(vm) => {
                hold(&mut client, vm, end)?;
                (vm, Some(State::Running))
            }
            Self::Migrate(vm, other) => {
                let mut target = connect(other)?;
                hold(&mut client, vm, end)?;
                let file = runtime.join("migrate.snap");
                File::create(&file)?;
                copied(&mut client, &Request::Copy { vm: vm.to_owned(), file: file.clone() })?;
                client.send(&Request::Control { vm: vm.to_owned(), action: Action::Resume })?;
                client.receive()?;
                let Copied { sections, .. } = copied(&mut client, &Request::CopyStep { step: CopyStep::Round })?;
                ensure!(sections.is_some(), "the copy is complete after one round");
                target.send(&Request::Restore { file, clock: Clock::Real, sections, trusted: false })?;
                while matches!(target.receive()?, Reply::Progress { .. }) {}
                drop(target);
                wait(&mut connect(other)?, vm, None, end)?;
                (vm, Some(State::Running))
            }
            Self::Restore(file, vm) => {
                client.send(&Request::Restore { file: runtime.join(file), clock: Clock::Real, sections: None, trusted: false })?;
                let mut before = u64::MAX;
                loop {
                    match client.receive()? {
                        Reply::Progress { done, .. } if before.saturating_add(PIECE) > done => before = done,
                        Reply::Progress { .. } => break,
                        other => bail!("{other:?}"),
                    }
                }
                (vm, None)
            }
            Self::Create(vm) => {
                let package = runtime.join("nonsense.vm");
                fs::write(&package, vec![0x5a; FILES])?;
                let guest = Guest { name: vm.to_owned(), system: None, budget: Budget::default(), inner: Vec::new() };
                client.send(&Request::Create { guest: Box::new(guest), package, memory: 16 << 20 })?;
                loop {
                    match client.receive()? {
                        Reply::Progress { done: 0, .. } => {}
                        Reply::Progress { done, all } if done < all => break,
                        other => bail!("{other:?}"),
                    }
                }
                (vm, None)
            }
        };
        drop(client);
        wait(&mut connect(MACHINE)?, vm, wanted, end)
    }
}

/// Pauses a VM until the client disconnects.
fn hold(client: &mut Connection, vm: &str, end: Instant) -> Result<()> {
    client.send(&Request::Hold { vm: vm.to_owned() })?;
    client.receive()?;
    wait(client, vm, Some(State::Paused), end)
}

/// Makes a request for a step of a copy.
fn copied(client: &mut Connection, request: &Request) -> Result<Copied> {
    client.send(request)?;
    loop {
        match client.receive()? {
            Reply::Progress { .. } => {}
            Reply::Copied(copied) => return Ok(copied),
            other => bail!("{other:?}"),
        }
    }
}

/// Waits until a VM is in this state, or gone if there is none.
fn wait(client: &mut Connection, vm: &str, wanted: Option<State>, end: Instant) -> Result<()> {
    loop {
        client.send(&Request::State { vm: vm.to_owned() })?;
        let state = match client.receive()? {
            Reply::State { state, .. } => Some(state),
            _ => None,
        };
        if state == wanted {
            return Ok(());
        }
        ensure!(Instant::now() <= end, "{vm} is {state:?}, not {wanted:?}");
        thread::sleep(Duration::from_millis(20));
    }
}
