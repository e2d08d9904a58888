//! Traces for clients of the control socket.

use std::time::Instant;

use stile_wire::Event;

use super::Session;
use super::tracer::Steps;
use crate::control::protocol::Reply;
use crate::control::server::ClientId;

impl Session<'_> {
    /// A client wants a trace.
    pub(super) fn trace(&mut self, id: ClientId) {
        let Some(control) = &mut self.control else { return };
        let tag = control.waiting().tag();
        match self.tracer.start(id, tag, Instant::now()) {
            Some(steps) => self.traced(steps),
            None => self.refuse(id, "the machine is being traced already"),
        }
    }

    /// Ends a client's trace.
    pub(super) fn stop_trace(&mut self, id: ClientId) {
        match self.tracer.stop(id, Instant::now()) {
            Some(steps) => self.traced(steps),
            None => self.refuse(id, "begin a trace first"),
        }
    }

    /// Handles a disconnected client.
    pub(super) fn forget_trace(&mut self, id: ClientId) {
        let steps = self.tracer.forget(id, Instant::now());
        self.traced(steps);
    }

    /// Gives the commands that are due.
    pub(super) fn look_at_trace(&mut self) {
        let steps = self.tracer.look(Instant::now());
        self.traced(steps);
    }

    /// Handles a message of Stile; most are unrelated.
    pub(super) fn take_for_trace(&mut self, event: &Event) {
        let steps = self.tracer.take(event, &self.lines[0].exits, Instant::now());
        self.traced(steps);
    }

    fn traced(&mut self, steps: Steps) {
        steps.commands.iter().for_each(|command| self.command_to(0, command));
        for (id, mut reply) in steps.replies {
            if let Reply::TraceStarted { vms, .. } = &mut reply {
                *vms = self.vm_names(0);
            }
            if let Some(control) = &mut self.control {
                control.reply(id, reply);
            }
        }
    }
}
