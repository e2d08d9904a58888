//! Sessions of FUSE's requests (Linux's `fuse.h`), and the refusal of requests.

use std::io::{Read, Write};

use virtio_queue::DescriptorChain;
use vm_memory::GuestMemoryMmap;

/// Size of a request's header, and the places of its kind and number in it; size of an answer's header (Linux's `fuse.h`).
const REQUEST: usize = 40;
const KIND: usize = 4;
const NUMBER: usize = 8;
const ANSWER: u32 = 16;
/// FUSE_INIT, by which a session begins, and FUSE_DESTROY, by which it ends.
const INIT: u32 = 26;
const DESTROY: u32 = 38;

/// The client's session with a back end, which begins with FUSE_INIT. Another back end's knows other files by the same numbers, or none: the
/// requests of a client that has lost its session fail with EIO until it mounts the folder again.
#[derive(Debug, Default)]
pub struct Session {
    has_begun: bool,
}

impl Session {
    /// Answers a request that is for no session. Returns the number of bytes that were written; `None` for a request that the back end is to
    /// carry out. A client that changes a request meanwhile harms its own files only.
    pub fn refuse(&mut self, memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>) -> Option<u32> {
        let mut header = [0; KIND + 4];
        let is_read = chain.clone().reader(memory).is_ok_and(|mut reader| reader.read_exact(&mut header).is_ok());
        match header.last_chunk().filter(|_| is_read).map(|kind| u32::from_le_bytes(*kind)) {
            Some(INIT) => self.has_begun = true,
            Some(DESTROY) if self.has_begun => {
                self.has_begun = false;
                return None;
            }
            _ => {}
        }
        if self.has_begun { None } else { Some(refuse(memory, chain)) }
    }
}

/// Answers a request with EIO; one that has no room for an answer expects none.
pub fn refuse(memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>) -> u32 {
    let (Ok(mut reader), Ok(mut writer)) = (chain.clone().reader(memory), chain.writer(memory)) else { return 0 };
    let mut header = [0; REQUEST];
    if reader.read_exact(&mut header).is_err() || writer.available_bytes() < ANSWER as usize {
        return 0;
    }
    let number = &header[NUMBER..NUMBER + 8];
    let answer = [&ANSWER.to_le_bytes()[..], &(-libc::EIO).to_le_bytes(), number].concat();
    if writer.write_all(&answer).is_ok() { ANSWER } else { 0 }
}

#[cfg(test)]
mod tests {
    use virtio_queue::{Queue, QueueOwnedT, QueueT};
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    const RAM: u64 = 0x4000_0000;
    const USED: u64 = RAM + 0x800;
    const AVAILABLE: u64 = RAM + 0x400;
    const HEADER: u64 = RAM + 0x1000;
    const PLACE: u64 = RAM + 0x2000;

    /// A client's memory and a queue of requests.
    fn client() -> (GuestMemoryMmap, Queue) {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(RAM), 0x4000)]).unwrap();
        let mut queue = Queue::new(2).unwrap();
        queue.set_desc_table_address(Some(RAM as u32), None);
        queue.set_avail_ring_address(Some(AVAILABLE as u32), None);
        queue.set_used_ring_address(Some(USED as u32), None);
        queue.set_ready(true);
        for (number, (address, length, flags)) in [(HEADER, 40u32, 1u32), (PLACE, 80, 2)].into_iter().enumerate() {
            let descriptor = [&address.to_le_bytes()[..], &length.to_le_bytes(), &(flags | 1 << 16).to_le_bytes()].concat();
            memory.write_slice(&descriptor, GuestAddress(RAM + 16 * number as u64)).unwrap();
        }
        (memory, queue)
    }

    #[test]
    fn requests_fail_outside_of_a_session() {
        const LOOKUP: u32 = 1;
        let (memory, mut queue) = client();
        let mut session = Session::default();
        let mut requests = 0u16;
        let mut send = |kind: u32| {
            memory.write_obj(kind.to_le(), GuestAddress(HEADER + KIND as u64)).unwrap();
            memory.write_obj(7u64.to_le(), GuestAddress(HEADER + NUMBER as u64)).unwrap();
            memory.write_slice(&[0; 16], GuestAddress(PLACE)).unwrap();
            requests += 1;
            memory.write_obj(requests.to_le(), GuestAddress(AVAILABLE + 2)).unwrap();
            let chain = queue.iter(&memory).unwrap().next().unwrap();
            let written = session.refuse(&memory, chain);
            let answer: [u32; 3] = memory.read_obj(GuestAddress(PLACE)).unwrap();
            (written, answer.map(u32::from_le))
        };
        let (refused, passed) = ((Some(ANSWER), [ANSWER, -libc::EIO as u32, 7]), (None, [0; 3]));
        assert_eq!(send(LOOKUP), refused);
        assert_eq!(send(DESTROY), refused);
        assert_eq!([send(INIT), send(LOOKUP), send(DESTROY)], [passed; 3]);
        assert_eq!(send(LOOKUP), refused);
        assert_eq!([send(INIT), send(LOOKUP)], [passed; 2]);
    }
}
