//! A driver's waits for a server: the values that it loads meanwhile, and the ends of waits.

use crate::server;
use crate::transport::{Effect, Transport};

/// Cause of a load that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// No server is online.
    Server,
    /// The server has not acknowledged the client's reset.
    Reset,
}

impl Transport {
    /// Whether the server no longer accesses the client's memory for requests before the last reset: it has acknowledged that reset, or is
    /// cut off.
    pub const fn is_quiet(&self) -> bool {
        !self.resetting || self.cut_off
    }

    /// Whether the server has not acknowledged the client's last reset.
    pub const fn is_resetting(&self) -> bool {
        self.resetting
    }

    /// Whether [`Transport::cut_off`] is in force.
    pub const fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    /// Cuts the server off: the client goes on as without a server. The caller has ended the server's access to the client's memory.
    pub const fn cut_off(&mut self) {
        (self.cut_off, self.watched) = (true, false);
    }

    /// Ends [`Transport::cut_off`], before the server gets access again. The server has acknowledged the resets of all of this client's
    /// devices.
    pub const fn reconnect(&mut self) {
        if self.cut_off {
            (self.cut_off, self.given_up, self.overdue) = (false, false, false);
        }
    }

    /// Ends the wait of loads of the status, until the next reset or an answer of the server: they find DEVICE_NEEDS_RESET. A driver that
    /// polls for the end of a reset continues to poll, and its vCPU is no longer held up by a load. Returns false if no load waits.
    pub const fn end_status_wait(&mut self) -> bool {
        let waits = self.must_wait().is_some();
        self.overdue |= waits;
        waits
    }

    /// Whether a load of the status that has not ended waits for the acknowledgment of a reset.
    pub const fn reset_is_overdue(&self) -> bool {
        self.overdue && self.resetting && !self.cut_off
    }

    /// Whether a driver runs and its server is online.
    pub(crate) const fn is_served(&self) -> bool {
        self.is_running() && self.online && !self.cut_off
    }

    /// Whether a driver runs, and its server is not known to leave requests unanswered.
    pub const fn is_answering(&self) -> bool {
        self.is_served() && !self.unanswered
    }

    /// Notes whether the server has had [outstanding work](crate::Owed) for long without progress: the driver is interrupted, and finds
    /// DEVICE_NEEDS_RESET until the server makes progress. The server does not see that bit.
    pub fn set_unanswered(&mut self, is_unanswered: bool) -> Effect {
        let was_unanswered = core::mem::replace(&mut self.unanswered, is_unanswered);
        if is_unanswered && !was_unanswered { self.interrupt(server::CONFIG_CHANGED) } else { Effect::Nothing }
    }

    /// Whether a driver runs and its server is offline: its requests wait.
    pub fn requests_wait(&self) -> bool {
        self.is_running() && !self.online
    }

    /// The reason why loads that need a server have no answer yet; `None` if they have one.
    pub const fn must_wait(&self) -> Option<Awaited> {
        match (self.online, self.resetting) {
            (true, true) if !self.given_up => Some(Awaited::Reset),
            (true, false) if self.cut_off && !self.given_up => Some(Awaited::Server),
            (false, _) if !self.given_up => Some(Awaited::Server),
            _ => None,
        }
    }

    /// Ends the wait for a server: until one comes online, or the client's VM starts again, loads are answered as those from a device
    /// that can't be used. Returns false, without effect, if loads do not wait for a server: a reset that an online server has not
    /// acknowledged can't be given up before it is cut off, as the server may still access the client's memory.
    pub fn give_up(&mut self) -> bool {
        let waits = self.must_wait().is_some() && (self.cut_off || !self.online);
        self.given_up |= waits;
        waits
    }
}
