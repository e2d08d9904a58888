//! Changes of VMs' states that Stile has not answered yet. A line may lose them or their answers, so they are repeated.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use stile_wire::{Action, Command};

use crate::control::server::ClientId;

/// Maximum number of pending requests: those without an answer must not accumulate.
const MAX_PENDING: usize = 256;

/// Time without an answer after which a request is repeated, and between requests for a VM's state.
const INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of repetitions: a client has given up by then.
const ATTEMPTS: u8 = 30;

/// A request without an answer.
#[derive(Debug)]
struct Pending {
    /// Client that waits for the answer, if any.
    client: Option<ClientId>,
    /// Name of the VM.
    vm: String,
    command: Command,
    repeat_at: Instant,
    /// Number of repetitions.
    attempts: u8,
}

/// Pending requests by the index of their line and their tag. Answers without a matching request are ignored: a nested
/// Stile is untrusted.
#[derive(Debug)]
pub struct Waiting {
    next: u32,
    requests: BTreeMap<(usize, u32), Pending>,
    /// Time of the last request for a VM's state, by the index of its line and its number.
    states: BTreeMap<(usize, u8), Instant>,
}

impl Default for Waiting {
    /// No requests. The first tag is random, because Stile may still answer requests of an ended process.
    fn default() -> Waiting {
        Waiting { next: RandomState::new().build_hasher().finish() as u32, requests: BTreeMap::new(), states: BTreeMap::new() }
    }
}

impl Waiting {
    /// A tag that no other request has.
    pub fn tag(&mut self) -> u32 {
        let tag = self.next;
        self.next = tag.wrapping_add(1);
        tag
    }

    /// Adds a change of the state of a VM, given by its line, its number there and its name. Returns its tag, and the command to send. `None`
    /// if too many have no answer yet.
    pub fn add(
        &mut self,
        client: Option<ClientId>,
        (line, vm): (usize, u8),
        name: &str,
        action: Action,
        now: Instant,
    ) -> Option<(u32, Command)> {
        if self.requests.len() >= MAX_PENDING {
            return None;
        }
        let tag = self.tag();
        let command = Command::Control { tag, vm, action };
        let pending = Pending { client, vm: name.to_owned(), command, repeat_at: now + INTERVAL, attempts: 0 };
        self.requests.insert((line, tag), pending);
        Some((tag, command))
    }

    /// Removes the request that was answered on a line. Returns its client, if that still waits, and the name of its VM.
    pub fn take(&mut self, line: usize, tag: u32) -> Option<(Option<ClientId>, String)> {
        self.requests.remove(&(line, tag)).map(|pending| (pending.client, pending.vm))
    }

    /// Detaches the requests of a disconnected client. They are still repeated, because Stile may not have received them.
    pub fn forget(&mut self, client: ClientId) {
        for pending in self.requests.values_mut().filter(|pending| pending.client == Some(client)) {
            pending.client = None;
        }
    }

    /// Time at which [`Waiting::repeat`] is due.
    pub fn repeat_at(&self) -> Option<Instant> {
        self.requests.values().map(|pending| pending.repeat_at).min()
    }

    /// Commands whose answers are late, by line. Requests that were repeated too often are dropped.
    pub fn repeat(&mut self, now: Instant) -> Vec<(usize, Command)> {
        self.requests.retain(|_, pending| now < pending.repeat_at || pending.attempts < ATTEMPTS);
        let late = self.requests.iter_mut().filter(|(_, pending)| now >= pending.repeat_at);
        late.map(|(&(line, _), pending)| {
            pending.attempts += 1;
            pending.repeat_at = now + INTERVAL;
            (line, pending.command)
        })
        .collect()
    }

    /// The command that asks for the state of a VM, if it is time to ask.
    pub fn ask_state(&mut self, line: usize, vm: u8, now: Instant) -> Option<Command> {
        let last = self.states.get(&(line, vm));
        if last.is_some_and(|&last| now < last + INTERVAL) {
            return None;
        }
        self.states.insert((line, vm), now);
        Some(Command::State { vm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(waiting: &mut Waiting, client: ClientId, line: usize, now: Instant) -> Option<u32> {
        waiting.add(Some(client), (line, 3), "a", Action::Pause, now).map(|(tag, _)| tag)
    }

    #[test]
    fn an_answer_reaches_its_client_once_and_from_its_line_only() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let (first, second) = (add(&mut waiting, 7, 0, now).unwrap(), add(&mut waiting, 8, 1, now).unwrap());
        assert_eq!(waiting.take(1, first), None);
        assert_eq!(waiting.take(1, second), Some((Some(8), "a".to_owned())));
        assert_eq!(waiting.take(1, second), None);
        waiting.forget(7);
        assert_eq!(waiting.take(0, first), Some((None, "a".to_owned())));
    }

    #[test]
    fn two_processes_have_different_tags() {
        // In pairs, which are equal with a probability of 2^-64.
        let pair = || (Waiting::default().tag(), Waiting::default().tag());
        assert_ne!(pair(), pair());
    }

    #[test]
    fn requests_without_an_answer_do_not_pile_up() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let tags: Vec<u32> = std::iter::from_fn(|| add(&mut waiting, 1, 0, now)).take(10_000).collect();
        assert_eq!(tags.len(), MAX_PENDING);
        waiting.take(0, tags[3]);
        assert!(add(&mut waiting, 1, 0, now).is_some());
    }

    #[test]
    fn a_request_is_repeated_unchanged_until_it_is_answered() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        assert_eq!(waiting.repeat_at(), None);
        let (tag, command) = waiting.add(Some(1), (2, 3), "a", Action::Reset, start).unwrap();
        assert_eq!(command, Command::Control { tag, vm: 3, action: Action::Reset });
        assert!(waiting.repeat(start).is_empty());
        let later = waiting.repeat_at().unwrap();
        assert_eq!((waiting.repeat(later), waiting.repeat(later)), (vec![(2, command)], vec![]));
        waiting.take(2, tag).unwrap();
        assert_eq!((waiting.repeat(later + INTERVAL), waiting.repeat_at()), (vec![], None));
    }

    #[test]
    fn a_request_that_is_never_answered_is_dropped() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        add(&mut waiting, 1, 0, start).unwrap();
        let repeated = (0..1000).flat_map(|second| waiting.repeat(start + second * INTERVAL)).count();
        assert_eq!((repeated, waiting.repeat_at()), (usize::from(ATTEMPTS), None));
    }

    #[test]
    fn states_are_asked_for_once_in_a_while() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        let mut asked = |line, vm, now| waiting.ask_state(line, vm, now).is_some();
        assert_eq!([asked(0, 1, start), asked(0, 1, start), asked(1, 1, start), asked(0, 2, start)], [true, false, true, true]);
        assert!(asked(0, 1, start + INTERVAL));
    }
}
