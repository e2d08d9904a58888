//! A virtio entropy device (Virtio 1.2, section 5.4): random bytes of this system's kernel.

use std::fs::File;
use std::io::{self, Read, Write};

use virtio_queue::{DescriptorChain, Error, Queue};
use vm_memory::GuestMemoryMmap;

use crate::server::{Backend, Progress, use_buffers};

/// Bytes of a buffer that are filled, at most: the kernel gives as many without an interruption (random(4)), and a client's buffer may be of
/// any size.
const LONGEST: usize = 256;

/// A source of random bytes.
pub struct Entropy(File);

impl Entropy {
    /// Opens the kernel's source.
    ///
    /// # Errors
    /// There is no `/dev/urandom`.
    pub fn open() -> io::Result<Self> {
        File::open("/dev/urandom").map(Self)
    }

    /// Fills a buffer's begin, and returns the number of bytes.
    fn fill(&self, memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>) -> u32 {
        let Ok(mut writer) = chain.writer(memory) else { return 0 };
        let mut bytes = [0; LONGEST];
        let random = &mut bytes[..writer.available_bytes().min(LONGEST)];
        let is_filled = (&self.0).read_exact(random).and_then(|()| writer.write_all(random)).is_ok();
        if is_filled { random.len() as u32 } else { 0 }
    }
}

impl Backend for Entropy {
    const QUEUE_SIZES: &'static [u16] = &[16];

    fn features(&self) -> u64 {
        0
    }

    fn configuration(&self) -> Vec<(u64, u32)> {
        Vec::new()
    }

    fn start(&mut self, _: &GuestMemoryMmap, _: u64, _: &[Queue]) -> Result<(), Error> {
        Ok(())
    }

    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error> {
        let [queue] = queues else { return Err(Error::QueueNotReady) };
        use_buffers(memory, queue, |chain| self.fill(memory, chain))
    }
}
