//! A link: a served device, whose two sides signal each other by interrupts; the client's are messages of its function.

use core::iter;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use stile_board::{MAX_SERVED, MAX_VMS, map};
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;
use stile_virtio::{Awaited, Effect, EventPage, Owed, Transport, server};

use super::function::Function;
use super::waiting;
use crate::address_space;
use crate::arch;
use crate::arch::Arch;
use crate::arch::contract::{Counter, ServedPart};
use crate::arena::Arena;
use crate::cpu;
use crate::vm;
use crate::vm::balloon::Answer;

/// A served device.
pub struct Link {
    /// The client's number, and its place.
    pub client: usize,
    pub client_place: vm::Place,
    /// The client's side.
    pub function: Function,
    /// The server's number, and its place.
    pub server: usize,
    pub server_place: vm::Place,
    /// Index among the server's devices.
    pub slot: u32,
    /// Number among the client's devices, from 1: that of its PCI function. Its type.
    pub number: usize,
    pub device: u32,
    /// Memory of the client's arena that the server has mapped: see [`Link::event_piece`].
    pub events: &'static EventPage,
    /// Registers of both sides.
    pub transport: TicketLock<Transport>,
    /// vCPUs of the client may sleep until a load has an answer. Set with the transport locked.
    pub awaited: AtomicBool,
    /// Result of the last call of a balloon's server.
    pub balloon: AtomicU32,
    /// Start of the wait of a load, of requests or of a reset of the client, in ticks of the counter.
    pub since: AtomicU64,
    /// It was reported that the client waits.
    pub is_reported: AtomicBool,
    /// Progress of a watched server at the last check: [`Owed::progress`].
    pub progress: AtomicU64,
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

/// Allocates a page of events.
///
/// # Errors
/// No memory is left.
pub fn event_page(arena: &'static Arena) -> Result<&'static EventPage, &'static str> {
    let memory = address_space::physical(arena.allocate_pages(map::EVENTS_STRIDE)?);
    // A server with caches off must not read what memory held before the zeros, which may be another VM's.
    arch::Vm::clean(memory, map::EVENTS_STRIDE);
    // SAFETY: the page is in the direct map, larger than its content and aligned, and belongs to the link, which is never freed. The
    // content consists of words that are read and written atomically, as the server changes them at any time; all values are valid.
    Ok(unsafe { &*memory.cast::<EventPage>() })
}

impl Link {
    /// Accesses the registers, and carries out the effect with the transport unlocked.
    #[inline]
    pub fn change(&self, access: impl FnOnce(&mut Transport) -> Effect) {
        let mut transport = self.transport.lock();
        match access(&mut transport) {
            Effect::Nothing => {}
            Effect::Event(event) => {
                let interrupts = transport.publish(self.events, event);
                let is_watched = transport.is_watched();
                drop(transport);
                if !is_watched {
                    self.watch_events();
                }
                if interrupts {
                    self.signal_server();
                }
            }
            Effect::SignalClient(causes) => {
                let vectors = transport.vectors(causes);
                drop(transport);
                let left = self.function.signal(vectors, |signal| post(self.client_place, signal));
                if left != 0 {
                    self.hold(left);
                }
            }
        }
    }

    /// Starts checks whether the server acknowledges the events of a running driver, and answers its requests.
    #[cold]
    #[inline(never)]
    pub fn watch_events(&self) {
        // Unlock the transport first: the alarm has locks of its own.
        let owed = self.transport.lock().watch(self.events);
        if let Some(owed) = owed {
            self.progress.store(owed.progress(), Ordering::Relaxed);
            self.note_time();
            waiting::begin();
        }
    }

    /// Returns the outstanding work of the server for a running driver, and the start of the time without progress, in ticks of the
    /// counter; `None` if there is no such work. `now`: the time, in the same unit.
    pub fn owed_since(&self, now: u64) -> Option<(Owed, u64)> {
        let client = vm::get(self.client)?;
        let requests = self.transport.lock().requests()?;
        let unanswered = requests.unanswered(|at| client.load(at & !7).map(|word| (word >> (8 * (at & 7))) as u16));
        let owed = self.transport.lock().owed(self.events, &requests, unanswered)?;
        if self.progress.swap(owed.progress(), Ordering::Relaxed) != owed.progress() {
            // Progress: the wait restarts.
            self.since.store(now, Ordering::Relaxed);
            self.is_reported.store(false, Ordering::Relaxed);
            self.change(|transport| transport.set_unanswered(false));
        }
        Some((owed, self.since.load(Ordering::Relaxed)))
    }

    /// Loads for the client. Returns `None` if the load waits: [`Link::answer`] wakes its vCPU.
    pub fn load(&self, offset: u64, bytes: u64) -> Option<u32> {
        let mut transport = self.transport.lock();
        let value = transport.pci_read(offset, bytes);
        if value.is_none() && !self.awaited.swap(true, Ordering::Relaxed) {
            self.note_time();
            drop(transport);
            waiting::begin();
        }
        value
    }

    /// Returns the cause of loads or requests that wait, and since when they do, in ticks of the counter.
    pub fn waits_since(&self) -> Option<(Awaited, u64)> {
        let transport = self.transport.lock();
        let is_awaited = self.awaited.load(Ordering::Relaxed) || transport.requests_wait();
        let cause = transport.must_wait().filter(|_| is_awaited)?;
        Some((cause, self.since.load(Ordering::Relaxed)))
    }

    /// Whether requests of a running driver wait, and no load does.
    pub fn only_requests_wait(&self) -> bool {
        let transport = self.transport.lock();
        transport.requests_wait() && !self.awaited.load(Ordering::Relaxed)
    }

    /// Begins a wait of the requests of a running driver, if its server has gone offline.
    pub fn watch_requests(&self) {
        if self.only_requests_wait() {
            self.note_time();
            waiting::begin();
        }
    }

    /// Notes the time at which a wait begins.
    pub fn note_time(&self) {
        self.since.store(Arch::now(), Ordering::Relaxed);
    }

    /// Excludes a pause of the server from the waits for it. `ticks`: the pause's length; `now`: its end, both in ticks of the counter.
    pub fn exclude_pause(&self, ticks: u64, now: u64) {
        let since = self.since.load(Ordering::Relaxed);
        // A wait may have begun during the pause.
        self.since.store(since.saturating_add(ticks).min(now), Ordering::Relaxed);
        self.is_reported.store(false, Ordering::Relaxed);
    }

    /// Whether the operator has paused the server.
    pub fn server_is_paused(&self) -> bool {
        vm::get(self.server).is_some_and(|server| server.power.is_held())
    }

    /// Handles a start of the client's VM: none of its loads waits.
    pub fn forget_wait(&self) {
        self.awaited.store(false, Ordering::Relaxed);
        self.is_reported.store(false, Ordering::Relaxed);
    }

    /// Wakes the client's vCPUs whose loads wait, after a change of the transport by which they may have an answer. The transport's lock
    /// orders this with [`Link::load`]: either that finds the answer, or this the wait.
    pub fn answer(&self) {
        self.is_reported.store(false, Ordering::Relaxed);
        if self.awaited.swap(false, Ordering::Relaxed) {
            self.note_time();
            self.wake();
        }
    }

    /// Ends the wait of loads of the status. Loads of other registers still wait.
    pub fn end_status_wait(&self) {
        if self.transport.lock().end_status_wait() {
            self.wake();
        }
    }

    /// Wakes the client's vCPUs, which execute their loads again.
    fn wake(&self) {
        if let Some(vm) = vm::get(self.client) {
            // One that is about to sleep does not.
            vm.vcpus.iter().for_each(|vcpu| cpu::wake(vcpu));
        }
    }

    /// Handles a store of a balloon's server: of its client's RAM only.
    pub fn use_balloon(&self, register: u64, page: u32) {
        let gpa = u64::from(page) * PAGE_SIZE;
        let is_allowed = self.device == stile_blob::BALLOON && !self.transport.lock().is_cut_off();
        let client = vm::get(self.client).filter(|_| is_allowed);
        let answer = client.map_or(Answer::Refused, |client| match register {
            server::BALLOON_GIVE => client.give(gpa),
            server::BALLOON_TAKE => client.take_back(gpa),
            _ => {
                client.begin_balloon();
                Answer::Done
            }
        });
        let value = match answer {
            Answer::Done => server::DONE,
            Answer::Again => server::AGAIN,
            Answer::Refused => server::REFUSED,
            Answer::NoMemory => server::NO_MEMORY,
        };
        self.balloon.store(value, Ordering::Relaxed);
    }

    /// The page with the server's events: server-physical and physical address.
    pub fn event_piece(&self) -> Piece {
        let (gpa, size) = (<arch::Vm as ServedPart>::EVENTS + u64::from(self.slot) * map::EVENTS_STRIDE, map::EVENTS_STRIDE);
        Piece { gpa, pa: address_space::to_physical(self.events), size }
    }

    #[inline]
    fn signal_server(&self) {
        let signal = arch::Vm::event(self.slot);
        if !post(self.server_place, signal) {
            send(self.server, iter::once(signal));
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
        // The transport's lock orders this with `hold`: either finds what the other has written, the message or its signal.
        let mut transport = self.transport.lock();
        let (unmasked, signals) = self.function.unmasked();
        let taken = transport.take_pending(unmasked);
        drop(transport);
        if taken != 0 {
            send(self.client, (0..).zip(signals).filter(|&(number, _)| taken >> number & 1 != 0).map(|(_, signal)| signal));
        }
    }
}

/// Posts a signal to a VM. Returns false if it needs [`send`].
#[inline]
fn post(place: vm::Place, signal: u32) -> bool {
    place.get().is_some_and(|vm| arch::Vm::post(vm, signal))
}

/// Sends signals to VM `number`.
fn send(number: usize, signals: impl Iterator<Item = u32>) {
    if let Some(vm) = vm::get(number) {
        arch::Vm::send(vm, signals);
    }
}
