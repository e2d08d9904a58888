//! A virtio file system device (Virtio 1.2, section 5.11), whose requests are FUSE's.

use std::io::{Read, Write};

use virtio_queue::{DescriptorChain, Error, Queue};
use vm_memory::GuestMemoryMmap;

use crate::relay::QUEUE_SIZE;
use crate::server::{Backend, Progress, use_buffers};
use crate::vhost_user::Kind;

/// A folder that a back end serves.
pub const FOLDER: Kind = Kind { features: 0, configuration: TAG as u32 + 4 };

/// Size of the tag in configuration space, in bytes; the number of request queues follows.
const TAG: usize = 36;

/// Queues: of requests that overtake others, and of others.
pub const FOLDER_QUEUES: usize = 2;

/// Size of a request's header, and the place of its number in it; size of an answer's header (Linux's `fuse.h`).
const REQUEST: usize = 40;
const NUMBER: usize = 8;
const ANSWER: u32 = 16;

/// A folder that can't be served: all requests fail with EIO.
pub struct FailedFolder {
    /// Name by which the client mounts it.
    pub tag: String,
}

/// Answers a request; one that has no room for an answer expects none.
fn refuse(memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>) -> u32 {
    let (Ok(mut reader), Ok(mut writer)) = (chain.clone().reader(memory), chain.writer(memory)) else { return 0 };
    let mut header = [0; REQUEST];
    if reader.read_exact(&mut header).is_err() || writer.available_bytes() < ANSWER as usize {
        return 0;
    }
    let number = &header[NUMBER..NUMBER + 8];
    let answer = [&ANSWER.to_le_bytes()[..], &(-libc::EIO).to_le_bytes(), number].concat();
    if writer.write_all(&answer).is_ok() { ANSWER } else { 0 }
}

impl Backend for FailedFolder {
    const QUEUE_SIZES: &'static [u16] = &[QUEUE_SIZE; FOLDER_QUEUES];

    fn features(&self) -> u64 {
        0
    }

    fn configuration(&self) -> Vec<(u64, u32)> {
        let tag = self.tag.bytes().chain(std::iter::repeat(0)).take(TAG).collect::<Vec<_>>();
        let words = tag.chunks_exact(4).map(|word| word.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)));
        (0..).step_by(4).zip(words.chain([FOLDER_QUEUES as u32 - 1])).collect()
    }

    fn start(&mut self, _: &GuestMemoryMmap, _: u64, _: &[Queue]) -> Result<(), Error> {
        Ok(())
    }

    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error> {
        let mut all = Progress::default();
        for (number, queue) in queues.iter_mut().enumerate() {
            let Progress { interrupt, more } = use_buffers(memory, queue, |chain| refuse(memory, chain))?;
            all = Progress { interrupt: all.interrupt | interrupt << number, more: all.more || more };
        }
        Ok(all)
    }
}
