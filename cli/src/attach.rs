//! `stile attach`: the consoles of a machine that runs, from another terminal.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::args::AttachArgs;
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::name;
use crate::control::protocol::{self, Bytes, Reply, Request, State};
use crate::out::Unwritable;
use crate::session::{Action, KEYS, Keys, Raw, with_returns};
use crate::{exit, out};

/// Shows a console with its scroll-back, and types to it, until the user leaves or the machine ends.
///
/// # Errors
/// The machine or VM does not exist; the terminal can't be set up; output can't be written.
pub fn attach(args: &AttachArgs) -> Result<u8> {
    let (machine, vm) = name::split(&args.target);
    let mut connection = Connection::open(&Directory::open()?, machine)?;
    let vms: Vec<String> = connection.status()?.vms.into_iter().map(|vm| vm.name).collect();
    connection.send(&Request::Attach { vm: vm.map(str::to_owned) })?;
    let (first, scrollback, mut bare) = match connection.receive()? {
        Reply::Attached { vm, scrollback, bare } => (vm, scrollback, bare),
        Reply::Refused { message } => return Err(exit::usage(message)),
        other => bail!("{machine}: unexpected answer: {other:?}"),
    };
    connection.set_patience(None)?;
    let raw = Raw::enter(true)?.map(Restored);
    if raw.is_some() {
        out::note(format_args!("stile: console of {first}; Ctrl-a x leaves, Ctrl-a ? lists the keys\r"));
    }
    let (mut replies, stream) = connection.split();
    let is_terminal = raw.is_some();
    let console = |bytes: &Bytes, bare: bool| if bare && is_terminal { show(&with_returns(&bytes.0)) } else { show(&bytes.0) };
    console(&scrollback, bare)?;
    let left = Arc::new(AtomicBool::new(false));
    let shown = vms.iter().position(|name| *name == first).unwrap_or(0);
    let typist = Typist { stream: stream.try_clone().context("sharing the control socket")?, vms, shown, read_only: args.read_only };
    let leaves = Arc::clone(&left);
    thread::spawn(move || typist.run(is_terminal, &leaves));
    loop {
        match protocol::read(&mut replies) {
            Ok(Some(Reply::Output { bytes })) => console(&bytes, bare)?,
            Ok(Some(Reply::Attached { vm, scrollback, bare: now })) => {
                bare = now;
                show(format!("\x1b[0m\r\n\x1b[7m stile: console of {vm} \x1b[0m\r\n").as_bytes())?;
                console(&scrollback, bare)?;
            }
            Ok(Some(Reply::State { vm, state: state @ (State::Off | State::Crashed | State::Destroyed) })) => {
                let end = if is_terminal { "\r" } else { "" };
                out::note(format_args!("stile: {vm} is {}{end}", state.name()));
            }
            Ok(Some(Reply::Refused { message })) => out::note(format_args!("stile: {message}")),
            Ok(Some(Reply::Ended)) => {
                drop(raw);
                out::note(format_args!("stile: {machine} has ended"));
                return Ok(exit::OK);
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) if left.load(Ordering::Relaxed) => return Ok(exit::OK),
            Ok(None) => bail!("{machine}: the machine is gone"),
            Err(error) => return Err(error).with_context(|| machine.to_owned()),
        }
    }
}

/// A terminal that this command shows a console on: it leaves the guest's colours and hidden cursor with raw mode.
struct Restored(#[expect(dead_code, reason = "dropped")] Raw);

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = show(b"\x1b[0m\x1b[?25h\r\n");
    }
}

fn show(bytes: &[u8]) -> Result<(), Unwritable> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Unwritable)
}

/// The VMs and the keys, for a terminal in raw mode, whose cursor may be within a line.
fn list(vms: &[String], shown: usize) -> String {
    let mark = |vm| if vm == shown { '*' } else { ' ' };
    let vms = vms.iter().enumerate().map(|(vm, name)| format!("{} {} {name}", mark(vm), vm + 1));
    let keys = KEYS.lines().map(str::to_owned);
    vms.chain(keys).map(|line| format!("\r\nstile: {line}")).collect::<String>() + "\r"
}

/// Keyboard input.
struct Typist {
    stream: UnixStream,
    vms: Vec<String>,
    shown: usize,
    read_only: bool,
}

impl Typist {
    /// Passes input on until its end, or until the user leaves.
    fn run(mut self, is_terminal: bool, left: &AtomicBool) {
        let (mut keys, mut buffer) = (Keys::default(), [0; 4096]);
        while let Ok(count @ 1..) = io::stdin().read(&mut buffer) {
            let bytes = &buffer[..count];
            let actions = if is_terminal { keys.feed(bytes) } else { vec![Action::Send(bytes.to_vec())] };
            for action in actions {
                if action == Action::Leave {
                    left.store(true, Ordering::Relaxed);
                    let _ = self.stream.shutdown(std::net::Shutdown::Both);
                    return;
                }
                if self.act(action).is_err() {
                    return;
                }
            }
        }
    }

    fn act(&mut self, action: Action) -> io::Result<()> {
        let count = self.vms.len().max(1);
        self.shown = match action {
            Action::Send(_) if self.read_only => return Ok(()),
            Action::Send(bytes) => return protocol::write(&mut self.stream, &Request::Input { bytes: Bytes(bytes) }),
            Action::Next => (self.shown + 1) % count,
            Action::Previous => (self.shown + count - 1) % count,
            Action::Show(vm) if vm < count => vm,
            Action::List => {
                out::note(list(&self.vms, self.shown));
                return Ok(());
            }
            Action::Show(_) | Action::Leave => return Ok(()),
        };
        protocol::write(&mut self.stream, &Request::Attach { vm: self.vms.get(self.shown).cloned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_marks_the_vm_that_is_shown() {
        let text = list(&["web".into(), "db".into()], 1);
        assert!(text.starts_with("\r\nstile:   1 web\r\nstile: * 2 db\r\nstile: keys: Ctrl-a, then x leave"), "{text:?}");
    }
}
