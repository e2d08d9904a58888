//! A virtio file system device (Virtio 1.2, section 5.11), whose requests are FUSE's.

use virtio_queue::{Error, Queue};
use vm_memory::GuestMemoryMmap;

use crate::relay::QUEUE_SIZE;
use crate::server::{Backend, Progress, use_buffers};
use crate::session::refuse;
use crate::vhost_user::Kind;

/// A folder that a back end serves.
pub const FOLDER: Kind = Kind { features: 0, configuration: TAG as u32 + 4, has_sessions: true };

/// Size of the tag in configuration space, in bytes; the number of request queues follows.
const TAG: usize = 36;

/// Queues: of requests that overtake others, and of others.
pub const FOLDER_QUEUES: usize = 2;

/// A folder that can't be served: all requests fail with EIO.
pub struct FailedFolder {
    /// Name by which the client mounts it.
    pub tag: String,
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
