//! A queue between a client and a vhost-user back end.
//!
//! The back end has rings of its own, and the client's descriptor table. So the client's rings are used by this process only, which gives
//! requests back in their order, whatever order they are answered in: the client's used ring alone says which requests another process must
//! repeat, and a back end can answer no request that it has not got.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;

use virtio_queue::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Maximum number of descriptors of a queue.
pub const QUEUE_SIZE: u16 = 256;

/// Address of the rings for the back end, which is no client's RAM, and the distance of two rings.
const RINGS: u64 = 1 << 60;
const RING: u64 = 0x1000;

/// Offsets of the index and of the first entry in each ring, and sizes of entries (Virtio 1.2, sections 2.7.6 and 2.7.8).
const INDEX: u64 = 2;
const ENTRIES: u64 = 4;
const AVAILABLE_ENTRY: u64 = 2;
const USED_ENTRY: u64 = 8;

/// Memory for the rings of some queues: its address and size.
pub const fn rings(queues: usize) -> (GuestAddress, usize) {
    (GuestAddress(RINGS), queues * 2 * RING as usize)
}

/// A request of the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    None,
    /// The back end has it.
    Offered,
    /// The number of bytes that the back end has written.
    Answered(u32),
}

/// A queue of the client, and its rings for the back end.
pub struct Relay {
    memory: GuestMemoryMmap,
    /// The available ring. The used ring follows.
    available: u64,
    size: u16,
    /// The rings' indexes, modulo 2^16.
    offered: u16,
    answered: u16,
    /// Head descriptors of the requests that the client has not got back, in their order.
    order: VecDeque<u16>,
    /// The request of each head descriptor.
    requests: Vec<Request>,
}

impl Relay {
    /// The `number`th queue, whose rings are in the memory of [`rings`].
    pub fn new(memory: GuestMemoryMmap, number: usize) -> Self {
        let available = RINGS + number as u64 * 2 * RING;
        // Before they are in the sandbox: memory for as many requests as there may be.
        let order = VecDeque::with_capacity(QUEUE_SIZE.into());
        Self { memory, available, size: 0, offered: 0, answered: 0, order, requests: Vec::with_capacity(QUEUE_SIZE.into()) }
    }

    /// Begins with empty rings of `size` descriptors.
    ///
    /// # Errors
    /// The size is not one of a queue.
    pub fn start(&mut self, size: u16) -> Result<(), Error> {
        if size > QUEUE_SIZE {
            return Err(Error::InvalidSize);
        }
        let [available, used] = self.addresses();
        for ring in [available, used] {
            self.memory.write_slice(&[0; RING as usize], ring).map_err(Error::GuestMemory)?;
        }
        (self.size, self.offered, self.answered) = (size, 0, 0);
        self.order.clear();
        self.requests.clear();
        self.requests.resize(size.into(), Request::None);
        Ok(())
    }

    /// Addresses of the available ring and of the used ring.
    pub fn addresses(&self) -> [GuestAddress; 2] {
        [self.available, self.available + RING].map(GuestAddress)
    }

    /// Number of descriptors.
    pub const fn size(&self) -> u16 {
        self.size
    }

    /// Gives the back end a request, which [`Self::publish`] shows it.
    ///
    /// # Errors
    /// No request of an honest driver begins with this descriptor.
    pub fn offer(&mut self, head: u16) -> Result<(), Error> {
        self.take(head, Request::Offered)?;
        let slot = self.available + ENTRIES + AVAILABLE_ENTRY * u64::from(self.offered % self.size);
        self.memory.write_obj(head.to_le(), GuestAddress(slot)).map_err(Error::GuestMemory)?;
        self.offered = self.offered.wrapping_add(1);
        Ok(())
    }

    /// Answers a request in the place of the back end, which does not get it.
    ///
    /// # Errors
    /// Those of [`Self::offer`].
    pub fn answer(&mut self, head: u16, written: u32) -> Result<(), Error> {
        self.take(head, Request::Answered(written))
    }

    fn take(&mut self, head: u16, becomes: Request) -> Result<(), Error> {
        match self.requests.get_mut(usize::from(head)) {
            Some(request @ Request::None) => *request = becomes,
            _ => return Err(Error::InvalidDescriptorIndex),
        }
        self.order.push_back(head);
        Ok(())
    }

    /// Shows the back end the requests that it was given.
    ///
    /// # Errors
    /// None: the ring is this process's memory.
    pub fn publish(&self) -> Result<(), Error> {
        // Entries come before the index.
        self.memory.store(self.offered.to_le(), GuestAddress(self.available + INDEX), Ordering::Release).map_err(Error::GuestMemory)
    }

    /// Takes the back end's answers. Returns whether there was one.
    ///
    /// # Errors
    /// The back end answers what it was not asked.
    pub fn collect(&mut self) -> io::Result<bool> {
        let used = self.available + RING;
        let index: u16 = self.memory.load(GuestAddress(used + INDEX), Ordering::Acquire).map_err(io::Error::other)?;
        let has_answers = self.answered != u16::from_le(index);
        while self.answered != u16::from_le(index) {
            let slot = GuestAddress(used + ENTRIES + USED_ENTRY * u64::from(self.answered % self.size));
            let [head, written]: [u32; 2] = self.memory.read_obj(slot).map_err(io::Error::other)?;
            match self.requests.get_mut(u32::from_le(head) as usize) {
                Some(request @ Request::Offered) => *request = Request::Answered(u32::from_le(written)),
                _ => return Err(io::Error::other("the back end answers what it was not asked")),
            }
            self.answered = self.answered.wrapping_add(1);
        }
        Ok(has_answers)
    }

    /// The next request that the client gets back: its head descriptor, and the number of bytes that were written. `None` if the back end
    /// has not answered it.
    pub fn next_answer(&mut self) -> Option<(u16, u32)> {
        let head = *self.order.front()?;
        let request = &mut self.requests[usize::from(head)];
        let Request::Answered(written) = *request else { return None };
        *request = Request::None;
        self.order.pop_front();
        Some((head, written))
    }

    /// Whether the back end has answered all requests, and so has none of the client's buffers.
    pub fn is_idle(&self) -> bool {
        !self.requests.contains(&Request::Offered)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u16 = 8;

    fn relay() -> Relay {
        let memory = GuestMemoryMmap::from_ranges(&[rings(1)]).unwrap();
        let mut relay = Relay::new(memory, 0);
        relay.start(SIZE).unwrap();
        relay
    }

    /// Answers requests as a back end: those of these heads, from entry `from` of its used ring on.
    fn answer(relay: &Relay, from: u16, heads: &[(u32, u32)]) {
        let used = relay.addresses()[1].0;
        for (number, (head, written)) in (from..).zip(heads) {
            let slot = GuestAddress(used + ENTRIES + USED_ENTRY * u64::from(number % SIZE));
            relay.memory.write_obj([head.to_le(), written.to_le()], slot).unwrap();
        }
        let index = from.wrapping_add(heads.len() as u16).to_le();
        relay.memory.store(index, GuestAddress(used + INDEX), Ordering::Release).unwrap();
    }

    #[test]
    fn requests_come_back_in_their_order() {
        let mut relay = relay();
        [5, 0, 7].into_iter().for_each(|head| relay.offer(head).unwrap());
        assert!(!relay.is_idle());
        answer(&relay, 0, &[(7, 70), (5, 50)]);
        relay.collect().unwrap();
        assert_eq!([relay.next_answer(), relay.next_answer()], [Some((5, 50)), None]);
        answer(&relay, 2, &[(0, 10)]);
        relay.collect().unwrap();
        assert!(relay.is_idle());
        assert_eq!([relay.next_answer(), relay.next_answer(), relay.next_answer()], [Some((0, 10)), Some((7, 70)), None]);
        relay.offer(5).unwrap();
    }

    #[test]
    fn answers_in_the_place_of_the_back_end_keep_the_order() {
        let mut relay = relay();
        relay.offer(5).unwrap();
        relay.answer(0, 16).unwrap();
        assert!(relay.answer(0, 16).is_err() && relay.offer(0).is_err());
        assert_eq!(relay.next_answer(), None);
        answer(&relay, 0, &[(5, 50)]);
        relay.collect().unwrap();
        assert!(relay.is_idle());
        assert_eq!([relay.next_answer(), relay.next_answer(), relay.next_answer()], [Some((5, 50)), Some((0, 16)), None]);
    }

    #[test]
    fn a_descriptor_begins_one_request() {
        let mut relay = relay();
        relay.offer(3).unwrap();
        for head in [3, SIZE, u16::MAX] {
            assert!(matches!(relay.offer(head), Err(Error::InvalidDescriptorIndex)), "{head}");
        }
        answer(&relay, 0, &[(3, 0)]);
        relay.collect().unwrap();
        assert!(relay.offer(3).is_err(), "the client has not got it back");
        relay.next_answer().unwrap();
        relay.offer(3).unwrap();
    }

    #[test]
    fn queues_have_a_maximum_size() {
        assert!(matches!(relay().start(QUEUE_SIZE + 1), Err(Error::InvalidSize)));
    }

    proptest! {
        /// With any used ring, each answer is for one request, and none is for another.
        #[test]
        fn a_hostile_back_end_answers_what_it_was_asked(
            heads in prop::sample::subsequence((0..SIZE).collect::<Vec<_>>(), 0..=8).prop_shuffle(),
            entries in prop::collection::vec((0..SIZE as u32 + 2, any::<u32>()), 8),
            index in any::<u16>(),
        ) {
            let mut relay = relay();
            heads.iter().for_each(|head| relay.offer(*head).unwrap());
            answer(&relay, 0, &entries);
            relay.memory.store(index.to_le(), GuestAddress(relay.addresses()[1].0 + INDEX), Ordering::Release).unwrap();
            let result = relay.collect();
            let back: Vec<u16> = std::iter::from_fn(|| relay.next_answer()).map(|(head, _)| head).collect();
            prop_assert_eq!(&heads[..back.len()], &back);
            // It stops at the first answer to nothing.
            prop_assert!(result.is_err() || usize::from(index) <= heads.len());
        }
    }
}
