//! Clients of the control socket and their subscriptions.

use std::collections::BTreeMap;
use std::time::Instant;

use super::outcome::Fate;
use super::waiting::Waiting;
use crate::config::Arch;
use crate::control::directory::Claim;
use crate::control::protocol::{Bytes, Reply, State};
use crate::control::server::{Client, ClientId};

/// A machine's clients.
#[derive(Debug)]
pub struct Control {
    claim: Claim,
    arch: Arch,
    start: Instant,
    clients: BTreeMap<ClientId, Attached>,
    /// Requests that Stile has not answered yet.
    waiting: Waiting,
}

/// A client and its subscriptions.
#[derive(Debug)]
pub struct Attached {
    client: Client,
    /// The console that it is attached to.
    pub console: Option<usize>,
}

impl Control {
    /// The control of a machine that starts.
    pub fn new(claim: Claim, arch: Arch) -> Self {
        Self { claim, arch, start: Instant::now(), clients: BTreeMap::new(), waiting: Waiting::default() }
    }

    /// A client connected.
    pub fn add(&mut self, id: ClientId, client: Client) {
        self.clients.insert(id, Attached { client, console: None });
    }

    /// Removes a disconnected client.
    pub fn remove(&mut self, id: ClientId) {
        self.clients.remove(&id);
        self.waiting.forget(id);
    }

    /// Requests that Stile has not answered yet.
    pub fn waiting(&mut self) -> &mut Waiting {
        &mut self.waiting
    }

    /// A client.
    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut Attached> {
        self.clients.get_mut(&id)
    }

    /// The machine's architecture.
    pub const fn arch(&self) -> Arch {
        self.arch
    }

    /// Seconds since the machine was started.
    pub fn seconds(&self) -> u64 {
        self.start.elapsed().as_secs()
    }

    /// The machine's name.
    pub fn name(&self) -> &str {
        &self.claim.name
    }

    /// Output of a console.
    pub fn output(&mut self, console: usize, bytes: &[u8]) {
        let reply = Reply::Output { bytes: Bytes(bytes.to_vec()) };
        self.clients.retain(|_, client| client.console != Some(console) || client.client.send(reply.clone()));
    }

    /// A console is gone: what its clients type goes nowhere.
    pub fn detach(&mut self, console: usize) {
        self.clients.values_mut().filter(|client| client.console == Some(console)).for_each(|client| client.console = None);
    }

    /// The state of a VM.
    pub fn state(&mut self, vm: &str, state: State) {
        let reply = Reply::State { vm: vm.to_owned(), state };
        self.clients.retain(|_, client| client.console.is_none() || client.client.send(reply.clone()));
    }

    /// The machine has ended.
    pub fn end(&mut self) {
        for client in std::mem::take(&mut self.clients).into_values() {
            client.client.finish(Reply::Ended);
        }
    }

    /// Replies to a client.
    pub fn reply(&mut self, id: ClientId, reply: Reply) {
        if self.clients.get(&id).is_some_and(|client| !client.client.send(reply)) {
            self.clients.remove(&id);
        }
    }

    /// Refuses a client's request.
    pub fn refuse(&mut self, id: ClientId, message: impl Into<String>) {
        self.reply(id, Reply::Refused { message: message.into() });
    }
}

/// A VM's state in words, with the reason if it has one.
pub fn describe(fate: Fate) -> String {
    let state = state_of(fate).name();
    match fate {
        Fate::Exited(status) => format!("{state}: its guest ended with status {status}"),
        Fate::Reset => format!("{state}: its guest reset it"),
        _ => state.to_owned(),
    }
}

/// The state reported to clients.
pub const fn state_of(fate: Fate) -> State {
    match fate {
        Fate::Waiting => State::Waiting,
        Fate::Running => State::Running,
        Fate::Paused => State::Paused,
        Fate::Off | Fate::Exited(_) | Fate::Reset => State::Off,
        Fate::Crashed(_) => State::Crashed,
        Fate::Destroyed => State::Destroyed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_is_off_says_why() {
        assert_eq!(describe(Fate::Exited(1)), "off: its guest ended with status 1");
        assert_eq!(describe(Fate::Reset), "off: its guest reset it");
        assert_eq!([Fate::Off, Fate::Paused].map(describe), ["off", "paused"]);
    }
}
