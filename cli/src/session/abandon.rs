//! Removal of abandoned uploads. Requests for other transfers are postponed until it is complete.

use std::time::Instant;

use stile_wire::Action;

use super::Session;
use super::abandonment::Abandonment;
use crate::control::protocol::Request;
use crate::control::server::ClientId;

/// Maximum number of requests that wait for the end of an abandoned upload or transfer; others are refused.
const POSTPONED: usize = 16;

impl Session<'_> {
    /// A client disconnected: its upload ends, and its requests are void.
    pub(super) fn forget_upload(&mut self, id: ClientId) {
        self.postponed.retain(|(client, _)| *client != id);
        let Some(upload) = self.upload.take_if(|upload| upload.client == id) else { return };
        let Ok(tag) = self.new_tag() else { return };
        self.begin_abandonment(Abandonment::of_upload(tag, upload, Instant::now()));
    }

    /// Drops what Stile has of the package of a VM that is not restored after all.
    pub(super) fn abandon_package(&mut self, upload: u32) {
        if let Ok(tag) = self.new_tag() {
            self.begin_abandonment(Abandonment::new(tag, upload, Instant::now()));
        }
    }

    fn begin_abandonment(&mut self, abandonment: Abandonment) {
        self.command_to(0, &abandonment.command());
        self.abandonment = Some(abandonment);
    }

    /// Sends the command again if it may be lost.
    pub(super) fn abandon_again(&mut self) {
        if let Some(command) = self.abandonment.as_mut().and_then(|abandonment| abandonment.retry(Instant::now())) {
            self.command_to(0, &command);
        }
    }

    /// Handles Stile's answer to the command, or the VM's creation before the command arrived. Returns false for other messages.
    pub(super) fn abandoned(&mut self, line: usize, tag: u32) -> bool {
        let Some(abandonment) = self.abandonment.as_mut().filter(|_| line == 0) else { return false };
        if abandonment.tag == tag {
            self.abandonment = None;
            self.take_postponed();
            return true;
        }
        let Some((client, guest, vm, package)) = abandonment.vm.take_if(|_| abandonment.upload == tag) else { return false };
        self.unwanted.push((client, guest.name.clone()));
        self.add_vm(guest, vm, package);
        self.send_unasked(0, vm, Action::Off);
        true
    }

    /// Postpones a request for a transfer while a previous one's remains are removed. Returns the request to handle now.
    pub(super) fn postpone(&mut self, id: ClientId, request: Request) -> Option<Request> {
        let is_transfer = matches!(request, Request::Create { .. } | Request::Save { .. } | Request::Copy { .. } | Request::Restore { .. });
        let is_leaving = self.abandonment.is_some() || self.transfer.as_ref().is_some_and(|transfer| transfer.abandoned);
        if !is_transfer || !is_leaving || self.postponed.len() >= POSTPONED {
            return Some(request);
        }
        self.postponed.push((id, request));
        None
    }

    /// Handles the requests that were postponed.
    pub(super) fn take_postponed(&mut self) {
        for (id, request) in std::mem::take(&mut self.postponed) {
            self.request(id, request);
        }
    }
}
