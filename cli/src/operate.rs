//! `stile stop`, `start`, `restart`, `pause`, `resume` and `destroy`: changes of the state of a VM that another process runs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use stile_wire::Action;

use crate::args::{DestroyArgs, StopArgs, VmArgs};
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::name;
use crate::control::protocol::{Reply, Request, State};
use crate::{exit, out};

/// Interval at which a VM's state is polled while it changes.
const INTERVAL: Duration = Duration::from_millis(50);

/// Time-out for an accepted change: one exit of each vCPU, and the reset of the VM's memory.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The result, as `--json` shows it.
#[derive(Debug, Serialize)]
struct Done<'a> {
    machine: &'a str,
    vm: &'a str,
    /// The new state.
    state: State,
    /// After `stop`: whether Stile, not the guest, turned the power off.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced: Option<bool>,
}

/// A VM of a machine that runs.
pub(crate) struct Target {
    /// The machine.
    pub(crate) connection: Connection,
    /// The VM's name.
    pub(crate) vm: String,
}

impl Target {
    /// Connects to the machine of a VM, given as `NAME/VM`, or `NAME` if it has only one.
    pub(crate) fn open(target: &str) -> Result<Self> {
        let (machine, vm) = name::split(target);
        let mut connection = Connection::open(&Directory::open()?, machine)?;
        let vm = match vm {
            Some(vm) => vm.to_owned(),
            None => {
                let names: Vec<String> = connection.status()?.vms.into_iter().map(|vm| vm.name).collect();
                match names.as_slice() {
                    [only] => only.clone(),
                    _ => return Err(exit::usage(format!("{machine}: name one of its VMs, as {machine}/VM: {}", names.join(", ")))),
                }
            }
        };
        Ok(Self { connection, vm })
    }

    /// The VM's state. Off, too, once its machine has ended.
    pub(crate) fn state(&mut self) -> Result<State> {
        self.ask_state(&Request::State { vm: self.vm.clone() })
    }

    /// Makes the pause of [`hold`] last also if this command ends. Returns the VM's state.
    pub(crate) fn keep(&mut self) -> Result<State> {
        self.ask_state(&Request::Keep { vm: self.vm.clone() })
    }

    fn ask_state(&mut self, request: &Request) -> Result<State> {
        if self.connection.send(request).is_err() {
            return Ok(State::Off);
        }
        match self.connection.receive_or_end()? {
            Some(Reply::State { state, .. }) => Ok(state),
            Some(Reply::Refused { message }) => Err(exit::usage(message)),
            None => Ok(State::Off),
            Some(other) => bail!("{}: unexpected answer: {other:?}", self.connection.name),
        }
    }

    /// Whether the VM is unknown.
    fn is_gone(&mut self) -> Result<bool> {
        if self.connection.send(&Request::State { vm: self.vm.clone() }).is_err() {
            return Ok(true);
        }
        Ok(matches!(self.connection.receive_or_end()?, Some(Reply::Refused { .. }) | None))
    }

    /// Waits until the VM is unknown. Returns false once the time is up.
    ///
    /// # Errors
    /// The machine does not answer.
    pub(crate) fn goes(&mut self, limit: Duration) -> Result<bool> {
        let end = Instant::now() + limit;
        while !self.is_gone()? {
            if Instant::now() >= end {
                return Ok(false);
            }
            thread::sleep(INTERVAL);
        }
        Ok(true)
    }

    /// Requests a change. The error is the reason of a refusal.
    pub(crate) fn ask(&mut self, action: Action) -> Result<Result<(), String>> {
        self.request(&Request::Control { vm: self.vm.clone(), action })
    }

    /// Sends a request that is answered by [`Reply::Done`]. The error is the reason of a refusal.
    fn request(&mut self, request: &Request) -> Result<Result<(), String>> {
        self.connection.send(request)?;
        match self.connection.receive_or_end()? {
            // The machine ends with its last VM.
            Some(Reply::Done) | None => Ok(Ok(())),
            Some(Reply::Refused { message }) => Ok(Err(message)),
            Some(other) => bail!("{}: unexpected answer: {other:?}", self.connection.name),
        }
    }

    /// Waits until the VM is in a wanted state, which is returned; `None` once the time is up.
    pub(crate) fn wait(&mut self, limit: Duration, is_wanted: impl Fn(State) -> bool) -> Result<Option<State>> {
        let end = Instant::now() + limit;
        loop {
            let state = self.state()?;
            if is_wanted(state) {
                return Ok(Some(state));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            thread::sleep(INTERVAL);
        }
    }

    /// Asks for a change that Stile carries out before it answers.
    pub(crate) fn change(&mut self, action: Action) -> Result<()> {
        // Before the request, which is refused for an unknown VM without saying that this is a mistake of the user's.
        self.state()?;
        self.ask(action)?.map_err(anyhow::Error::msg).with_context(|| format!("{} can't be {}", self.name(), participle(action)))
    }

    /// The name of the VM, qualified by that of its machine.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.connection.name, self.vm)
    }

    /// Reports the end of a command.
    pub(crate) fn report(&self, json: bool, state: State, what: &str, forced: Option<bool>) -> Result<u8> {
        if json {
            let done = Done { machine: &self.connection.name, vm: &self.vm, state, forced };
            out::json(&done)?;
        } else {
            out::note(format_args!("stile: {} {what}", self.name()));
        }
        Ok(exit::OK)
    }
}

/// The participle of a change, for messages.
const fn participle(action: Action) -> &'static str {
    match action {
        Action::PowerButton | Action::Off => "stopped",
        Action::Start => "started",
        Action::Reset => "restarted",
        Action::Pause => "paused",
        Action::Resume => "resumed",
        Action::Destroy => "destroyed",
    }
}

/// Whether a state is the wanted one: a VM that crashed is off.
fn is(state: State, wanted: State) -> bool {
    state == wanted || (state, wanted) == (State::Crashed, State::Off)
}

/// Stops a VM: presses its power button, and turns the power off if the guest is not off after a time.
///
/// # Errors
/// The machine or VM does not exist, or the VM is off.
pub fn stop(args: &StopArgs) -> Result<u8> {
    let mut target = Target::open(&args.target.vm)?;
    let is_off = |state: State| is(state, State::Off);
    if is_off(target.state()?) {
        bail!("{} is off already", target.name());
    }
    if !args.force {
        match target.ask(Action::PowerButton)? {
            Ok(()) => {
                if target.wait(Duration::from_secs(args.grace.into()), is_off)?.is_some() {
                    return target.report(args.target.json, State::Off, "is off", Some(false));
                }
                out::note(format_args!("stile: {} is not off after {} s: turning the power off", target.name(), args.grace));
            }
            Err(why) => out::note(format_args!("stile: {why}: turning the power off")),
        }
    }
    // The guest may have turned itself off in this moment.
    if let Err(why) = target.ask(Action::Off)?
        && !is_off(target.state()?)
    {
        bail!("{} can't be stopped: {why}", target.name());
    }
    if target.wait(LIMIT, is_off)?.is_none() {
        bail!("{} is not off within {} s", target.name(), LIMIT.as_secs());
    }
    target.report(args.target.json, State::Off, "is off", Some(true))
}

/// Starts a VM that is off.
///
/// # Errors
/// The machine or VM does not exist, or the VM is on.
pub fn start(args: &VmArgs) -> Result<u8> {
    run(args, Action::Start)
}

/// Resets a VM, or starts one that is off.
///
/// # Errors
/// The machine or VM does not exist.
pub fn restart(args: &VmArgs) -> Result<u8> {
    let mut target = Target::open(&args.vm)?;
    let action = if is(target.state()?, State::Off) { Action::Start } else { Action::Reset };
    target.change(action)?;
    target.report(args.json, State::Running, "restarts", None)
}

/// Destroys a VM that is off; with `--force` turns it off before.
///
/// # Errors
/// The machine or VM does not exist, the VM is on, or it can't be destroyed.
pub fn destroy(args: &DestroyArgs) -> Result<u8> {
    let mut target = Target::open(&args.target.vm)?;
    let state = target.state()?;
    if !is(state, State::Off) && !args.force {
        bail!("{} is {}: stop it before, or use --force", target.name(), state.name());
    }
    remove(&mut target)?;
    target.report(args.target.json, State::Destroyed, "is destroyed", None)
}

/// Turns a VM off and destroys it.
///
/// # Errors
/// It can't be destroyed.
pub(crate) fn remove(target: &mut Target) -> Result<()> {
    let state = target.state()?;
    if !is(state, State::Off) {
        // It may have turned itself off in this moment.
        let _ = target.ask(Action::Off)?;
        if target.wait(LIMIT, |state| is(state, State::Off))?.is_none() {
            bail!("{} is not off within {} s", target.name(), LIMIT.as_secs());
        }
    }
    target.ask(Action::Destroy)?.map_err(anyhow::Error::msg).with_context(|| format!("{} can't be destroyed", target.name()))?;
    if !target.goes(LIMIT)? {
        bail!("{} is not gone within {} s: its memory is still being cleared", target.name(), LIMIT.as_secs());
    }
    Ok(())
}

/// Pauses a VM for as long as this command lives, and does not resume it. Returns its state then: it may have turned
/// itself off before.
///
/// # Errors
/// It does not run.
pub(crate) fn hold(target: &mut Target) -> Result<State> {
    let request = Request::Hold { vm: target.vm.clone() };
    target.state()?;
    target.request(&request)?.map_err(anyhow::Error::msg).with_context(|| format!("{} can't be paused", target.name()))?;
    paused(target)
}

/// Waits until a VM is paused. Returns its state then.
fn paused(target: &mut Target) -> Result<State> {
    // Each vCPU stops at its next exit.
    match target.wait(LIMIT, |state| state != State::Running)? {
        Some(state) => Ok(state),
        None => bail!("{} is not paused within {} s", target.name(), LIMIT.as_secs()),
    }
}

/// Pauses a VM.
///
/// # Errors
/// The machine or VM does not exist, or the VM does not run.
pub fn pause(args: &VmArgs) -> Result<u8> {
    let mut target = Target::open(&args.vm)?;
    target.change(Action::Pause)?;
    let state = paused(&mut target)?;
    target.report(args.json, state, &format!("is {}", state.name()), None)
}

/// Ends a VM's pause.
///
/// # Errors
/// The machine or VM does not exist, or the VM is not paused.
pub fn resume(args: &VmArgs) -> Result<u8> {
    run(args, Action::Resume)
}

fn run(args: &VmArgs, action: Action) -> Result<u8> {
    let mut target = Target::open(&args.vm)?;
    target.change(action)?;
    target.report(args.json, State::Running, "runs", None)
}
