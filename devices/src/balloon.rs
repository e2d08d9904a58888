//! A traditional memory balloon (Virtio 1.2, section 5.5): pages that the client puts into it go back to Stile.

use std::io::Read;
use std::thread::sleep;
use std::time::Duration;

use libc::c_long;
use stile_virtio::server;
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::GuestMemoryMmap;

use crate::server::{BATCH, Backend, Progress, Registers};

/// Size of a page of the balloon, in bytes, on all machines.
pub const PAGE: u64 = 4096;

const MIB: u64 = 1 << 20;

/// VIRTIO_BALLOON_F_MUST_TELL_HOST: a page is used again only once the deflation is answered. Without it a client that is short of memory
/// would find its page missing. VIRTIO_BALLOON_F_DEFLATE_ON_OOM.
const MUST_TELL_HOST: u64 = 1;
const DEFLATE_ON_OOM: u64 = 1 << 2;

/// Pages of a buffer that count: drivers name 256.
const LONGEST: usize = 1024;

/// Stores that are repeated while Stile asks for it, which is for a millisecond. A page that is given up on stays the client's.
const ATTEMPTS: u32 = 20_000;

/// Pause before memory is asked for again that Stile does not have.
const PAUSE: Duration = Duration::from_millis(100);

/// The inflate queue and the deflate queue.
const QUEUES: usize = 2;

/// A balloon.
pub struct Balloon<R> {
    /// The device's registers.
    registers: R,
    /// Number of pages that the client is asked for.
    target: u32,
    /// Number of pages that the balloon has, and whether it was reported to have all.
    pages: u32,
    is_full: bool,
    /// A refusal was reported.
    is_refused: bool,
}

impl<R: Registers> Balloon<R> {
    /// A balloon that asks the client for `bytes` of its RAM.
    pub fn new(registers: R, bytes: u64) -> Self {
        Self { registers, target: u32::try_from(bytes / PAGE).unwrap_or(u32::MAX), pages: 0, is_full: false, is_refused: false }
    }

    /// A call of Stile's for a page. Returns its result.
    fn call(&self, kind: u64, page: u32) -> u32 {
        for _ in 0..ATTEMPTS {
            self.registers.write(kind, page);
            let answer = self.registers.read(server::BALLOON_ANSWER);
            if answer != server::AGAIN {
                return answer;
            }
        }
        server::AGAIN
    }

    /// Makes calls for the pages of a buffer. Returns false if Stile has no memory for one.
    fn use_pages(&mut self, memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>, kind: u64) -> bool {
        let Ok(mut reader) = chain.reader(memory) else { return true };
        let mut page = [0; 4];
        for _ in 0..LONGEST {
            if reader.read_exact(&mut page).is_err() {
                break;
            }
            match self.call(kind, u32::from_le_bytes(page)) {
                server::NO_MEMORY => return false,
                server::REFUSED if !std::mem::replace(&mut self.is_refused, true) => {
                    eprintln!("stile-devices: the client's balloon has pages that it can't give back, or it owns PCI functions");
                }
                server::DONE if kind == server::BALLOON_GIVE => self.pages = self.pages.saturating_add(1),
                server::DONE => self.pages = self.pages.saturating_sub(1),
                _ => {}
            }
        }
        true
    }

    /// Reports once that the balloon has all pages that it asks for.
    fn report(&mut self) {
        if self.pages >= self.target && self.target != 0 && !std::mem::replace(&mut self.is_full, true) {
            let (all, back) = (u64::from(self.pages) * PAGE / MIB, self.registers.read(server::BALLOON_BLOCKS) * 2);
            eprintln!("stile-devices: the client's balloon has {all} MiB, of which Stile has {back} MiB back");
        }
    }
}

impl<R: Registers> Backend for Balloon<R> {
    const QUEUE_SIZES: &'static [u16] = &[128; QUEUES];
    const SYSTEM_CALLS: &'static [c_long] = &[libc::SYS_clock_nanosleep];

    fn features(&self) -> u64 {
        MUST_TELL_HOST | DEFLATE_ON_OOM
    }

    fn configuration(&self) -> Vec<(u64, u32)> {
        vec![(0, self.target)]
    }

    /// Pages of an earlier driver are this one's; blocks without memory come back when it touches them.
    fn start(&mut self, _: &GuestMemoryMmap, features: u64, _: &[Queue]) -> Result<(), Error> {
        if features & MUST_TELL_HOST == 0 {
            eprintln!("stile-devices: the client's driver does not say when it takes pages back (VIRTIO_BALLOON_F_MUST_TELL_HOST)");
            return Err(Error::QueueNotReady);
        }
        self.registers.write(server::BALLOON_BEGIN, 1);
        self.pages = 0;
        Ok(())
    }

    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error> {
        let mut all = Progress::default();
        for (number, (queue, kind)) in queues.iter_mut().zip([server::BALLOON_GIVE, server::BALLOON_TAKE]).enumerate() {
            queue.disable_notification(memory)?;
            let (mut used, mut waits) = (0, false);
            while used < BATCH {
                let Some(chain) = queue.iter(memory)?.next() else { break };
                let head = chain.head_index();
                if !self.use_pages(memory, chain, kind) {
                    // Not answered: the client must not use its pages yet.
                    queue.go_to_previous_position();
                    waits = true;
                    break;
                }
                queue.add_used(memory, head, 0)?;
                used += 1;
            }
            all.interrupt |= u32::from(used != 0 && queue.needs_notification(memory)?) << number;
            all.more |= waits || used == BATCH || queue.enable_notification(memory)?;
            if waits {
                sleep(PAUSE);
            }
        }
        self.report();
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use stile_virtio::EventPage;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    const RAM: u64 = 0x4000_0000;
    const PAGES: u64 = RAM + 0x2000;

    /// Calls, and their results; those that are left out are done.
    #[derive(Default)]
    struct Stile {
        calls: RefCell<Vec<(u64, u32)>>,
        results: RefCell<Vec<u32>>,
    }

    impl Registers for &Stile {
        fn read(&self, offset: u64) -> u32 {
            if offset == server::BALLOON_ANSWER { self.results.borrow_mut().pop().unwrap_or(server::DONE) } else { 0 }
        }

        fn write(&self, offset: u64, value: u32) {
            self.calls.borrow_mut().push((offset, value));
        }

        fn events(&self) -> &EventPage {
            unreachable!("the server's")
        }
    }

    /// Memory and queues, in which one buffer of `pages` is offered in queue `queue`.
    fn offer(queue: usize, pages: &[u32]) -> (GuestMemoryMmap, Vec<Queue>) {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(RAM), 0x4000)]).unwrap();
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        memory.write_slice(&bytes, GuestAddress(PAGES)).unwrap();
        let queues = (0..QUEUES).map(|number| {
            let start = RAM + 0x1000 * number as u64;
            memory.write_obj([PAGES, bytes.len() as u64], GuestAddress(start)).unwrap();
            memory.write_obj(u16::from(number == queue), GuestAddress(start + 0x402)).unwrap();
            let mut queue = Queue::new(8).unwrap();
            queue.set_desc_table_address(Some(start as u32), None);
            queue.set_avail_ring_address(Some(start as u32 + 0x400), None);
            queue.set_used_ring_address(Some(start as u32 + 0x800), None);
            queue.set_ready(true);
            queue
        });
        let queues = queues.collect();
        (memory, queues)
    }

    fn used(memory: &GuestMemoryMmap, queue: u64) -> u16 {
        memory.read_obj(GuestAddress(RAM + 0x1000 * queue + 0x802)).unwrap()
    }

    #[test]
    fn pages_are_given_and_taken() {
        let stile = Stile::default();
        let mut balloon = Balloon::new(&stile, 4 << 20);
        assert_eq!(balloon.configuration(), [(0, 1024)]);
        for (queue, kind) in [(0, server::BALLOON_GIVE), (1, server::BALLOON_TAKE)] {
            let (memory, mut queues) = offer(queue, &[7, u32::MAX]);
            *stile.results.borrow_mut() = vec![server::REFUSED, server::DONE, server::AGAIN];
            let progress = balloon.serve(&memory, &mut queues).unwrap();
            assert_eq!((progress.interrupt, used(&memory, queue as u64)), (1 << queue, 1));
            assert_eq!(stile.calls.take(), [(kind, 7), (kind, 7), (kind, u32::MAX)]);
        }
    }

    #[test]
    fn a_client_waits_for_memory() {
        let stile = Stile::default();
        let mut balloon = Balloon::new(&stile, 4 << 20);
        let (memory, mut queues) = offer(1, &[7]);
        stile.results.borrow_mut().push(server::NO_MEMORY);
        assert_eq!(balloon.serve(&memory, &mut queues).unwrap(), Progress { interrupt: 0, more: true });
        assert_eq!(used(&memory, 1), 0, "it must not use the page");
        assert_eq!(balloon.serve(&memory, &mut queues).unwrap().interrupt, 2);
        assert_eq!(used(&memory, 1), 1);
    }

    #[test]
    fn a_driver_must_say_what_it_takes_back() {
        let stile = Stile::default();
        let (memory, queues) = offer(0, &[]);
        let mut balloon = Balloon::new(&stile, 0);
        assert!(balloon.start(&memory, DEFLATE_ON_OOM, &queues).is_err() && stile.calls.borrow().is_empty());
        balloon.start(&memory, MUST_TELL_HOST, &queues).unwrap();
        assert_eq!(stile.calls.take(), [(server::BALLOON_BEGIN, 1)]);
    }
}
