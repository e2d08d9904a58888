//! Pauses that last as long as a client is connected: a pause for a snapshot must not outlive the command.

use std::time::Instant;

use stile_wire::{Action, Answer};

use super::hold::Hold;
use super::outcome::Fate;
use super::{Session, line};
use crate::control::server::ClientId;

impl Session<'_> {
    /// Pauses a VM until the client resumes it or disconnects.
    pub(super) fn begin_hold(&mut self, id: ClientId, name: &str) {
        let Some((line, vm)) = line::find(&self.lines, &self.names, name) else {
            return self.refuse(id, self.no_vm(name));
        };
        if let Some(tag) = self.pass_on_control(id, name, (line, vm), Action::Pause) {
            self.holds.push(Hold { client: Some(id), vm: name.to_owned(), request: Some((line, tag)), has_begun: false });
        }
    }

    /// Stile has answered a request, which may be the one to pause.
    pub(super) fn answered_hold(&mut self, line: usize, tag: u32, answer: Answer) {
        self.holds.retain(|hold| answer == Answer::Done || hold.request != Some((line, tag)));
        for hold in self.holds.iter_mut().filter(|hold| hold.request == Some((line, tag))) {
            hold.request = None;
        }
    }

    /// A client disconnected: its VMs continue.
    pub(super) fn forget_holds(&mut self, id: ClientId) {
        for hold in self.holds.iter_mut().filter(|hold| hold.client == Some(id)) {
            hold.client = None;
        }
        self.resume_held();
    }

    /// Makes a client's pause of a VM outlast the client.
    pub(super) fn keep_hold(&mut self, id: ClientId, name: &str) {
        self.holds.retain(|hold| hold.client != Some(id) || hold.vm != name);
    }

    /// Notes that a VM's state has changed: a pause that had begun ends when the VM is no longer paused.
    /// `restarted`: the VM was reset.
    pub(super) fn held_changed(&mut self, name: &str, fate: Fate, restarted: bool) {
        if fate == Fate::Paused {
            self.holds.iter_mut().filter(|hold| hold.vm == name).for_each(|hold| hold.has_begun = true);
            self.resume_held();
        } else {
            let is_ahead = |hold: &Hold| hold.request.is_some() || restarted && !hold.has_begun;
            self.holds.retain(|hold| hold.vm != name || is_ahead(hold) && !fate.is_over());
        }
    }

    /// Resumes the paused VMs whose client is gone.
    fn resume_held(&mut self) {
        for hold in std::mem::take(&mut self.holds) {
            match line::find(&self.lines, &self.names, &hold.vm) {
                Some((line, vm)) if hold.client.is_none() && self.lines[line].story.fates[usize::from(vm)] == Fate::Paused => {
                    self.send_unasked(line, vm, Action::Resume);
                }
                // Its pause is not complete, or its client is connected.
                Some(_) => self.holds.push(hold),
                None => {}
            }
        }
    }

    /// Sends a change that no client waits for.
    pub(super) fn send_unasked(&mut self, line: usize, vm: u8, action: Action) {
        let now = Instant::now();
        if let Some((_, command)) = self.control.as_mut().and_then(|control| control.waiting().add(None, (line, vm), "", action, now)) {
            self.command_to(line, &command);
        }
    }
}
