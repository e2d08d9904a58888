//! A link: a served device, whose two sides signal each other by SPIs; the client's are messages of its function.

use core::iter;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use stile_board::{MAX_SERVED, MAX_VMS, intid};
use stile_lock::TicketLock;
use stile_virtio::{Effect, Transport};

use super::function::Function;
use crate::arch::aarch64::interrupts::delivery;
use crate::vm;

/// A served device.
pub struct Link {
    /// The client's number.
    pub client: usize,
    /// The client's side.
    pub function: Function,
    /// The server's number.
    pub server: usize,
    /// Index among the server's devices.
    pub slot: u32,
    /// Registers of both sides.
    pub transport: TicketLock<Transport>,
}

/// The links of a server by slot; null for unused slots. Written when a client is created.
pub struct Slots([AtomicPtr<Link>; MAX_SERVED]);

static SLOTS: [Slots; MAX_VMS] = [const { Slots([const { AtomicPtr::new(ptr::null_mut()) }; MAX_SERVED]) }; MAX_VMS];

fn link_at(place: &AtomicPtr<Link>) -> Option<&'static Link> {
    // SAFETY: the pointer is null, or of a complete link, which is never freed: VMs with links are never destroyed.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

impl Slots {
    /// The link of a slot, if there is one.
    #[inline]
    pub fn get(&self, slot: usize) -> Option<&'static Link> {
        self.0.get(slot).and_then(link_at)
    }

    /// All links.
    pub fn iter(&self) -> impl Iterator<Item = &'static Link> {
        self.0.iter().filter_map(link_at)
    }
}

/// The slots of server number `server`; `None` if there can be no such VM.
pub fn of_server(server: usize) -> Option<&'static Slots> {
    SLOTS.get(server)
}

/// Makes a link known to its server. Returns `None` if the server has no such slot.
pub fn publish(link: &'static mut Link) -> Option<&'static Link> {
    let place = SLOTS.get(link.server)?.0.get(link.slot as usize)?;
    place.store(link, Ordering::Release);
    link_at(place)
}

impl Link {
    /// Accesses the registers, and carries out the effect with the transport unlocked.
    #[inline]
    pub fn change(&self, access: impl FnOnce(&mut Transport) -> Effect) {
        let mut transport = self.transport.lock();
        match access(&mut transport) {
            Effect::Nothing => {}
            Effect::SignalServer => {
                drop(transport);
                self.signal_server();
            }
            Effect::SignalClient(causes) => {
                let vectors = transport.vectors(causes);
                drop(transport);
                let left = self.function.signal(vectors, |spi| post(self.client, spi));
                if left != 0 {
                    self.hold(left);
                }
            }
        }
    }

    #[inline]
    fn signal_server(&self) {
        let spi = intid::SERVER + self.slot;
        if !post(self.server, spi) {
            send(self.server, iter::once(spi));
        }
    }

    /// Sends messages that could not be posted, or become pending, by their vectors.
    #[cold]
    #[inline(never)]
    fn hold(&self, vectors: u32) {
        self.transport.lock().hold(vectors);
        self.send_pending();
    }

    /// Sends the pending messages whose vectors are not masked.
    pub fn send_pending(&self) {
        // The transport's lock orders this with `hold`: either finds what the other has written, the message or its SPI.
        let mut transport = self.transport.lock();
        let (unmasked, spis) = self.function.unmasked();
        let taken = transport.take_pending(unmasked);
        drop(transport);
        if taken != 0 {
            send(self.client, (0..).zip(spis).filter(|&(number, _)| taken >> number & 1 != 0).map(|(_, spi)| spi));
        }
    }
}

/// Posts an SPI to VM `number`. Returns false if it needs [`send`].
#[inline]
fn post(number: usize, spi: u32) -> bool {
    vm::get(number).is_some_and(|vm| delivery::post_spi(vm, spi))
}

/// Sends SPIs to VM `number` by its distributor.
fn send(number: usize, spis: impl Iterator<Item = u32>) {
    if let Some(vm) = vm::get(number) {
        delivery::send_spis(vm, spis);
    }
}
