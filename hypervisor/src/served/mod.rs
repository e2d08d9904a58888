//! Virtio devices that one VM, the server, serves others, its clients; docs/served-devices.md describes them.
//!
//! A [`Link`] is such a device: registers of both sides (crate `stile-virtio`), whose signals become interrupts. The server
//! finds a client's RAM in a [`Window`] of its second stage, block by block at its first touch. Links live as long as
//! the machine: VMs with served devices are never destroyed.

mod function;
mod late;
mod link;
pub mod patience;
mod registers;
mod waiting;
mod window;

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use heapless::Vec;
use stile_blob::Slot;
use stile_board::{MAX_SERVED, MAX_VMS};
use stile_lock::TicketLock;
use stile_paging::frames::Piece;
use stile_virtio::Transport;

use crate::arch::Arch;
use crate::arch::contract::{Counter, ServedPart};
use crate::arena::Arena;
use crate::image;
use crate::vm::{Vm, get, place};
use function::Function;
use link::{Link, Slots};
#[allow(unused_imports, reason = "not every back end has a fast path")]
pub use registers::ring;
pub use registers::{is_completion, is_kick};
use window::Window;

/// The devices that a VM serves, or is served.
pub enum Served {
    /// Devices that other VMs serve it.
    Client(Vec<&'static Link, MAX_SERVED>),
    /// Its side of the devices that it serves.
    Server {
        /// The devices.
        slots: &'static Slots,
        /// Windows on the RAM of the VMs that it serves.
        windows: &'static Vec<Window, MAX_SERVED>,
    },
}

/// The parts of VMs, by number; null for VMs that neither serve nor are served. Written when a VM is created.
static PARTS: [AtomicPtr<Served>; MAX_VMS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_VMS];

/// The devices that a VM serves, or is served, if there are any.
pub fn of(vm: &Vm) -> Option<&'static Served> {
    let part = PARTS.get(vm.number)?.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or of a complete part, which is never freed: VMs with served devices are never destroyed.
    unsafe { part.as_ref() }
}

/// Makes the part of VM `number` known.
fn publish(number: usize, part: &'static mut Served) -> &'static Served {
    let part: *mut Served = part;
    if let Some(place) = PARTS.get(number) {
        place.store(part, Ordering::Release);
    }
    // SAFETY: the part is complete, is never freed, and is only read from here on.
    unsafe { &*part }
}

impl Served {
    /// Creates the part of VM `number`, whose RAM is `pieces`; `None` if it neither serves nor is served. `reserve` reserves
    /// tables of its second stage for a part of a window. Not inlined, because the caller's frame would have room for all
    /// of it.
    ///
    /// # Errors
    /// No memory is left, or those of `reserve`.
    #[inline(never)]
    pub fn new(
        number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        arena: &'static Arena,
        reserve: impl FnMut(&Piece) -> Result<(), &'static str>,
    ) -> Result<Option<&'static Served>, &'static str> {
        const UNKNOWN: &str = "devices can be served only to VMs of the machine's configuration";
        let slots = |server: usize| image::vms().served_by(server).ok_or(UNKNOWN);
        if config.serves != 0 {
            let windows = arena.allocate()?.write(window::create(&slots(number)?, reserve)?);
            let slots = link::of_server(number).ok_or(UNKNOWN)?;
            return Ok(Some(publish(number, arena.allocate()?.write(Served::Server { slots, windows }))));
        }
        let mut links = Vec::new();
        for (index, served) in config.served.iter().enumerate() {
            let server = usize::from(served.server);
            let slots = slots(server)?;
            let is_own = |slot: &Slot| usize::from(slot.client) == number && usize::from(slot.index) == index;
            let at = slots.iter().position(is_own).ok_or(UNKNOWN)?;
            let is_first = config.served[..index].iter().all(|other| other.server != served.server);
            if let Some((server, window)) = window_on(server, number).filter(|_| is_first) {
                window.reserve(server, pieces)?;
            }
            let transport = TicketLock::new(Transport::new(served.device, slots[at].window, slots[at].size, slots[at].base));
            let function = Function::new(served.device)?;
            let events = link::event_page(arena)?;
            let (client_place, server_place) = (place(number).ok_or(UNKNOWN)?, place(server).ok_or(UNKNOWN)?);
            let link = Link {
                client: number,
                client_place,
                function,
                server,
                server_place,
                slot: at as u32,
                number: index + 1,
                device: served.device,
                events,
                transport,
                awaited: AtomicBool::new(false),
                balloon: AtomicU32::new(0),
                since: AtomicU64::new(0),
                is_reported: AtomicBool::new(false),
                progress: AtomicU64::new(0),
            };
            let link = link::publish(arena.allocate()?.write(link)).ok_or(UNKNOWN)?;
            if let Some(server) = get(server) {
                server.arch.map_events(&link.event_piece());
            }
            links.push(link).map_err(|_| UNKNOWN)?;
        }
        Ok(if links.is_empty() { None } else { Some(publish(number, arena.allocate()?.write(Served::Client(links)))) })
    }

    /// A client's devices.
    pub fn links(&self) -> &[&'static Link] {
        match self {
            Served::Client(links) => links,
            Served::Server { .. } => &[],
        }
    }

    /// The link of a device that a server serves.
    #[inline]
    fn slot(&self, slot: u64) -> Option<&'static Link> {
        match self {
            Served::Client(_) => None,
            Served::Server { slots, .. } => slots.get(slot as usize),
        }
    }

    /// The pages with events of the devices that a server serves, of those clients that exist.
    pub fn event_pieces(&self) -> impl Iterator<Item = Piece> {
        let slots = match self {
            Served::Client(_) => None,
            Served::Server { slots, .. } => Some(slots),
        };
        slots.into_iter().flat_map(|slots| slots.iter()).map(Link::event_piece)
    }

    /// Resets a client's devices. Its vCPUs are off.
    pub fn reset(&self) {
        for link in self.links() {
            link.change(Transport::client_starts);
            link.function.reset();
            link.forget_wait();
            link.note_time();
        }
    }

    /// Tells a client's servers that it is off.
    pub fn client_ended(&self) {
        for link in self.links() {
            link.change(Transport::client_ended);
        }
    }

    /// Whether no server accesses the memory of a client, which is being reset, any more: each has acknowledged the last reset, or is cut
    /// off. A server that takes too long is reported, and then cut off, in bounded parts.
    pub fn is_quiet(&self) -> bool {
        let late = self.links().iter().find(|link| !link.transport.lock().is_quiet());
        let Some(link) = late else { return true };
        if late::ends(link)
            && let Some((server, window)) = window_on(link.server, link.client)
            && window.close(server, pair(link))
        {
            late::report_cut_off(link);
        }
        // Also right after a cut-off: an access to the server's registers that gives or takes RAM may be under way.
        false
    }

    /// The servers of a client, each once.
    #[allow(dead_code, reason = "not every back end invalidates the translations of each")]
    pub fn servers(&self) -> impl Iterator<Item = &'static Vm> {
        let links = self.links();
        let is_first = move |&index: &usize| links[..index].iter().all(|other| other.server != links[index].server);
        (0..links.len()).filter(is_first).filter_map(move |index| get(links[index].server))
    }

    /// Unmaps a part of a client's RAM from its servers' second stages. The caller invalidates its translations.
    pub fn unmap_ram(&self, gpa: u64, size: u64) {
        for link in self.links() {
            if let Some((server, window)) = window_on(link.server, link.client) {
                window.unmap(server, gpa, size);
            }
        }
    }
}

/// The windows of a VM.
fn windows_of(vm: &Vm) -> &'static [Window] {
    match of(vm) {
        Some(Served::Server { windows, .. }) => windows,
        _ => &[],
    }
}

/// A server and its window on a client, if both exist.
fn window_on(server: usize, client: usize) -> Option<(&'static Vm, &'static Window)> {
    let server = get(server)?;
    Some((server, windows_of(server).iter().find(|window| window.client == client)?))
}

/// All devices that the server of `link` serves to its client, `link` included.
fn pair(link: &'static Link) -> impl Iterator<Item = &'static Link> + Clone {
    let links = get(link.client).and_then(of).map_or(&[][..], Served::links);
    links.iter().copied().filter(|other| other.server == link.server)
}

/// Gives a server that was cut off access to its client again, if it has acknowledged all resets.
#[cold]
fn reconnect(link: &'static Link) {
    if window_on(link.server, link.client).is_some_and(|(_, window)| window.open(pair(link))) {
        pair(link).for_each(Link::answer);
    }
}

/// Ends a driver's wait for a reset that its server does not acknowledge: the server loses its access to the client, in bounded parts, one
/// for each load of the status. Without effect while the server answers others of the client's devices, which would fail, too.
#[cold]
#[inline(never)]
fn end_reset(link: &'static Link) {
    let is_overdue = link.transport.lock().reset_is_overdue();
    let serves_others = || pair(link).any(|other| other.transport.lock().is_answering());
    if is_overdue
        && late::ends(link)
        && let Some((server, window)) = window_on(link.server, link.client)
        // A device that is started while the window is being closed has no access either: it fails with the others.
        && (window.is_closed() || !serves_others())
        && window.close(server, pair(link))
    {
        late::report_failure(link);
        for other in pair(link) {
            other.transport.lock().give_up();
            other.answer();
        }
    }
}

/// Handles a VM's access to an address that is not mapped. Returns false if it is in no window; otherwise the guest
/// retries the access.
pub fn touch(vm: &Vm, ipa: u64) -> bool {
    let found = windows_of(vm).iter().find_map(|window| Some((window, window.client_address(ipa)?)));
    found.is_some_and(|(window, gpa)| window.touch(vm, gpa))
}

/// VM `number`, whose vCPUs are off, serves no device any more until it does so again.
pub fn server_ended(number: usize) {
    let links = || link::of_server(number).into_iter().flat_map(Slots::iter);
    for link in links() {
        link.transport.lock().server_ended();
        link.watch_requests();
    }
    links().for_each(reconnect);
}

/// Handles the end of a pause of VM `number`, which may be a server. `ticks`: the pause's length, in ticks of the counter.
pub fn server_resumed(number: usize, ticks: u64) {
    let now = Arch::now();
    link::of_server(number).into_iter().flat_map(Slots::iter).for_each(|link| link.exclude_pause(ticks, now));
}
