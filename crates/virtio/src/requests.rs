//! Requests of a running driver that its server has not answered.
//!
//! They are known from the rings in the client's memory only. The caller loads the rings' indexes, which the client can change at any
//! time: a client can make its own requests seem unanswered, but no other client's.

use crate::events::EventPage;
use crate::transport::Transport;
use crate::{QUEUES, status};

/// Feature VIRTIO_F_RING_PACKED (Virtio 1.2, section 6): packed queues, whose rings have no indexes.
const RING_PACKED: u64 = 1 << 34;

/// Offset of the index in both rings (Virtio 1.2, sections 2.7.6 and 2.7.8).
const INDEX: u64 = 2;

/// Returns the mask of the queues whose buffers are requests, which the server alone answers, by the type of the device (Virtio 1.2,
/// section 5). Buffers of other queues wait for input, for free memory (balloon), or for other buffers of the client (vsock).
const fn request_queues(device: u32) -> u32 {
    match device {
        // net and console: the transmit queue of each pair.
        1 | 3 => 0xaa,
        // block, rng and fs.
        2 | 4 | 26 => 0xff,
        _ => 0,
    }
}

/// Addresses of the indexes of a queue's rings, from the client and not validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Indexes {
    available: u64,
    used: u64,
}

/// The queues with requests of a running driver, and the last event at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    event: u32,
    queues: [Option<Indexes>; QUEUES],
}

impl Requests {
    /// Returns the sum of the used indexes of queues with unanswered requests, which changes when one is answered; `None` if there are
    /// none. `load` returns the 16-bit word at an address in the client, or `None` if it can't be loaded.
    pub fn unanswered(&self, load: impl Fn(u64) -> Option<u16>) -> Option<u32> {
        let used = self.queues.iter().flatten().filter_map(|queue| {
            let (available, used) = load(queue.available).zip(load(queue.used))?;
            (available != used).then_some(u32::from(used))
        });
        used.reduce(|sum, used| sum + used)
    }
}

/// Outstanding work of a server for a running driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    /// Acknowledgments of events. Holds the number of the last event that the server has acknowledged.
    Acknowledgments(u32),
    /// Answers to requests whose events are acknowledged. Holds the sum of [`Requests::unanswered`].
    Answers(u32),
}

impl Owed {
    /// Returns a number that changes when the server makes progress.
    pub const fn progress(self) -> u64 {
        match self {
            Self::Acknowledgments(seen) => seen as u64,
            Self::Answers(used) => 1 << 32 | used as u64,
        }
    }
}

impl Transport {
    /// Begins to watch whether the server acknowledges the events of a running driver, and answers its requests. Returns its outstanding
    /// work; `None`, without effect, if the server is watched already, or offline, or no driver runs.
    pub fn watch(&mut self, page: &EventPage) -> Option<Owed> {
        if self.watched || !self.is_served() {
            return None;
        }
        self.watched = true;
        Some(Owed::Acknowledgments(page.seen()))
    }

    /// Whether the server is watched.
    #[inline]
    pub const fn is_watched(&self) -> bool {
        self.watched
    }

    /// Returns the queues with requests of a driver whose server is watched; `None` if it is not watched. Once the server has set
    /// DEVICE_NEEDS_RESET, no queue has requests: the server answers none until the reset.
    pub fn requests(&self) -> Option<Requests> {
        let has_rings = self.status & status::NEEDS_RESET == 0 && self.features.accepted & RING_PACKED == 0;
        let kinds = if has_rings { request_queues(self.device) } else { 0 };
        let queue = |number: usize| {
            let queue = self.queues.get(number).filter(|queue| kinds >> number & 1 != 0 && queue.ready)?;
            Some(Indexes { available: queue.driver.checked_add(INDEX)?, used: queue.device.checked_add(INDEX)? })
        };
        self.watched.then(|| Requests { event: self.events, queues: core::array::from_fn(queue) })
    }

    /// Returns the outstanding work of the server; ends the watch if there is none. `unanswered` is the result of
    /// [`Requests::unanswered`] for `requests`.
    pub fn owed(&mut self, page: &EventPage, requests: &Requests, unanswered: Option<u32>) -> Option<Owed> {
        let seen = page.seen();
        let owed = match unanswered {
            // The rings were loaded before the last event, and may lack its requests.
            _ if seen != self.events || requests.event != self.events => Some(Owed::Acknowledgments(seen)),
            unanswered => unanswered.map(Owed::Answers),
        };
        self.watched &= self.is_served() && owed.is_some();
        self.unanswered &= self.watched;
        owed.filter(|_| self.watched)
    }
}
