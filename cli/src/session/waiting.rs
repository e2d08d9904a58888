//! Requests of clients that Stile has not answered yet.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::control::server::ClientId;

/// Maximum number of pending requests: those without an answer must not accumulate.
const MOST: usize = 256;

/// Pending requests by the index of their line and their tag. Answers without a matching request are ignored: a nested
/// Stile is untrusted.
#[derive(Debug)]
pub struct Waiting {
    next: u32,
    requests: BTreeMap<(usize, u32), (ClientId, String)>,
}

impl Default for Waiting {
    /// No requests. The first tag is random, because Stile may still answer requests of an ended process.
    fn default() -> Waiting {
        Waiting { next: RandomState::new().build_hasher().finish() as u32, requests: BTreeMap::new() }
    }
}

impl Waiting {
    /// A tag that no other request has.
    pub fn tag(&mut self) -> u32 {
        let tag = self.next;
        self.next = tag.wrapping_add(1);
        tag
    }

    /// Adds a request of a client that concerns a VM; returns its tag. `None` if too many have no answer yet.
    pub fn add(&mut self, line: usize, client: ClientId, vm: &str) -> Option<u32> {
        if self.requests.len() >= MOST {
            return None;
        }
        let tag = self.tag();
        self.requests.insert((line, tag), (client, vm.to_owned()));
        Some(tag)
    }

    /// Takes the request out that was answered on a line: its client and VM.
    pub fn take(&mut self, line: usize, tag: u32) -> Option<(ClientId, String)> {
        self.requests.remove(&(line, tag))
    }

    /// Removes the requests of a disconnected client.
    pub fn forget(&mut self, client: ClientId) {
        self.requests.retain(|_, (of, _)| *of != client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reaches_its_client_once_and_from_its_line_only() {
        let mut waiting = Waiting::default();
        let (first, second) = (waiting.add(0, 7, "a").unwrap(), waiting.add(1, 8, "b.c").unwrap());
        assert_eq!(waiting.take(1, first), None);
        assert_eq!(waiting.take(1, second), Some((8, "b.c".to_owned())));
        assert_eq!(waiting.take(1, second), None);
        waiting.forget(7);
        assert_eq!(waiting.take(0, first), None);
    }

    #[test]
    fn two_processes_have_different_tags() {
        // Equal with a probability of 2^-32.
        assert_ne!((Waiting::default().tag(), Waiting::default().tag()), (Waiting::default().tag(), Waiting::default().tag()));
    }

    #[test]
    fn requests_without_an_answer_do_not_pile_up() {
        let mut waiting = Waiting::default();
        let tags: Vec<u32> = std::iter::from_fn(|| waiting.add(0, 1, "a")).take(10_000).collect();
        assert_eq!(tags.len(), MOST);
        waiting.take(0, tags[3]);
        assert!(waiting.add(0, 1, "a").is_some());
    }
}
