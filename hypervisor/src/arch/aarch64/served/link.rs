//! A link: a served device, whose two sides signal each other by SPIs; the client's are messages of its function.

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

/// Links by server and slot; null for unused slots. Written when a client is created.
static LINKS: [[AtomicPtr<Link>; MAX_SERVED]; MAX_VMS] = [const { [const { AtomicPtr::new(ptr::null_mut()) }; MAX_SERVED] }; MAX_VMS];

fn link_at(place: &AtomicPtr<Link>) -> Option<&'static Link> {
    // SAFETY: the pointer is null, or of a complete link, which is never freed: VMs with links are never destroyed.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// The link of a server's slot, if there is one.
pub fn of_slot(server: usize, slot: usize) -> Option<&'static Link> {
    LINKS.get(server)?.get(slot).and_then(link_at)
}

/// The links of a server.
pub fn of_server(server: usize) -> impl Iterator<Item = &'static Link> {
    LINKS.get(server).into_iter().flatten().filter_map(link_at)
}

/// Makes a link known to its server. Returns `None` if the server has no such slot.
pub fn publish(link: &'static mut Link) -> Option<&'static Link> {
    let place = LINKS.get(link.server)?.get(link.slot as usize)?;
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
                send(self.server, intid::SERVER + self.slot);
            }
            Effect::SignalClient(causes) => {
                let vectors = transport.vectors(causes);
                drop(transport);
                self.function.signal(vectors, |spi| self.send_to_client(spi));
            }
        }
    }

    /// Sends an SPI to the client.
    #[inline]
    pub fn send_to_client(&self, spi: u32) {
        send(self.client, spi);
    }
}

/// Sends an SPI to VM `number`.
#[inline]
fn send(number: usize, spi: u32) {
    if let Some(vm) = vm::get(number) {
        delivery::send_spi(vm, spi);
    }
}
