//! Creation of VMs by the operator: a package (crate `blob`) is transferred over the serial line in pieces, into
//! memory of the VM that it describes.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use stile_blob::{Checksum, Package};
use stile_board::MAX_VMS;
use stile_lock::TicketLock;
use stile_wire::{Answer, Event, Piece, VmState};

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::vm::{self, Creation, Vm, power, retire};
use crate::{arena, console, image, memory, window};

/// A package in transfer.
struct Upload {
    tag: u32,
    /// Number of the future VM.
    vm: usize,
    /// Physical address of the package.
    at: u64,
    size: u32,
    /// Bytes of memory for it.
    room: u32,
    /// Number of bytes received.
    next: u32,
    checksum: Checksum,
    /// The VM, once the package is complete.
    creation: Option<Creation>,
}

impl Upload {
    /// Frees what was created of the VM, and passes its number to `abandon`, which frees the rest.
    fn undo(&self, abandon: impl FnOnce(usize)) {
        if let Some(creation) = &self.creation {
            creation.abandon();
        }
        abandon(self.vm);
    }
}

/// A transfer that begins once the number of its VM is free.
#[derive(Clone, Copy)]
struct Waiting {
    tag: u32,
    vm: u8,
    size: u32,
    memory: u64,
}

/// The transfer in progress, and one that waits. Both are under one lock: a transfer that waits is never between the two when its client
/// abandons it.
struct Transfers {
    current: Option<Upload>,
    waiting: Option<Waiting>,
}

static TRANSFERS: TicketLock<Transfers> = TicketLock::new(Transfers { current: None, waiting: None });

/// Tag of the last VM that was created.
static CREATED: AtomicU32 = AtomicU32::new(0);

/// Interval of acknowledgements, in bytes: the operator may send twice as many before it waits.
const ACK_INTERVAL: u32 = 4 << 10;

/// Maximum number of bytes taken from the window at once, at some ten instructions for the checksum of each.
const AT_ONCE: usize = 16 << 10;

/// Makes transfers begin that wait for a number.
pub fn setup() {
    retire::FREED_HOOK.set(begin_waiting);
}

/// Begins the transfer that waits for this number, if there is one.
fn begin_waiting(number: usize) {
    let begun = {
        let mut transfers = TRANSFERS.lock();
        let waiting = transfers.waiting.take_if(|waiting| usize::from(waiting.vm) == number);
        waiting.map(|waiting| (waiting.tag, transfers.begin(waiting)))
    };
    if let Some((tag, begun)) = begun {
        answer(tag, begun);
    }
}

/// Allocates memory for a package of `size` bytes that describes VM number `vm`, with `memory` bytes of RAM, which must be free but are
/// not allocated yet. Abandons a transfer in progress; one for the same VM leaves its number, as that would not be free at once, and its
/// memory. If what had the number is still being freed, all this happens once it is.
pub fn begin(tag: u32, vm: u8, size: u32, memory: u64) {
    // Another operator may use the same tag.
    let _ = CREATED.compare_exchange(tag, 0, Ordering::Relaxed, Ordering::Relaxed);
    let begun = TRANSFERS.lock().begin(Waiting { tag, vm, size, memory });
    answer(tag, begun);
}

/// Answers a request to begin a transfer, unless the transfer waits.
fn answer(tag: u32, begun: Result<Begun, Unavailable>) {
    match begun {
        Ok(Begun::Now) => console::event(&Event::Uploaded { tag, next: 0 }),
        Ok(Begun::Waits) => {}
        Err(why) => console::refuse(tag, format_args!("{why}")),
    }
}

enum Begun {
    Now,
    /// Once its number is free.
    Waits,
}

/// The resource that a transfer lacks; sizes in bytes.
enum Unavailable {
    /// Memory for the VM and its package.
    Memory {
        memory: u64,
        size: u32,
        free: u64,
    },
    /// Memory for the package, in the VM's own blocks.
    Room {
        size: u32,
    },
    Number(usize),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Unavailable::Memory { memory, size, free } => {
                let (memory, size, free) = (memory >> 20, size >> 10, free >> 20);
                write!(f, "it needs {memory} MiB of memory, and {size} KiB for its files: {free} MiB are free")
            }
            Unavailable::Room { size } => {
                write!(f, "no memory for {} KiB of files: {} MiB are free", size >> 10, memory::available() >> 20)
            }
            Unavailable::Number(number) => write!(f, "VM number {number} is in use, or is out of range"),
        }
    }
}

impl Transfers {
    /// As [`begin`], without the answer: a message may wait for the line, which must not block other CPUs at this lock.
    fn begin(&mut self, new: Waiting) -> Result<Begun, Unavailable> {
        let Waiting { tag, vm, size, memory } = new;
        let number = usize::from(vm);
        self.waiting = None;
        let same = match self.current.take() {
            Some(old) if old.vm == number && old.creation.is_none() => Some(old),
            Some(other) => {
                other.undo(retire::abandon);
                None
            }
            None => None,
        };
        let kept = same.as_ref().map_or(0, |old| u64::from(old.room));
        let free = memory::available() + kept;
        // Before the number is claimed, which is not free at once when it is given back.
        if memory.saturating_add(u64::from(size)) > free {
            if same.is_some() {
                retire::abandon(number);
            }
            return Err(Unavailable::Memory { memory, size, free });
        }
        // Servers and clients refer to each other by their numbers, even if one was never created.
        if same.is_none() && image::has_links(number) {
            return Err(Unavailable::Number(number));
        }
        if same.is_none() && !retire::claim(number) {
            if number >= MAX_VMS || vm::get(number).is_some() {
                return Err(Unavailable::Number(number));
            }
            // `begin_waiting` takes this lock, after the number was freed.
            self.waiting = Some(new);
            return Ok(Begun::Waits);
        }
        let (at, room) = match same.filter(|old| old.room >= size) {
            Some(old) => (old.at, old.room),
            None => match arena::of_vm(number).reserve(u64::from(size).next_multiple_of(stile_paging::PAGE_SIZE)) {
                Ok(memory) => (memory.start, size),
                Err(_) => {
                    retire::abandon(number);
                    return Err(Unavailable::Room { size });
                }
            },
        };
        self.current = Some(Upload { tag, vm: number, at, size, room, next: 0, checksum: Checksum::new(), creation: None });
        Ok(Begun::Now)
    }
}

/// Drops a package that was not completed, and answers once nothing is left of it.
pub fn abandon(tag: u32, upload: u32) {
    let old = {
        let mut transfers = TRANSFERS.lock();
        let _ = transfers.waiting.take_if(|waiting| waiting.tag == upload);
        transfers.current.take_if(|old| old.tag == upload)
    };
    match old {
        Some(old) => old.undo(|vm| retire::abandon_for(tag, vm)),
        None => console::event(&Event::Answer { tag, answer: Answer::Done }),
    }
}

/// Receives a piece, if it is the next one; otherwise requests the next one from the operator.
pub fn take(tag: u32, offset: u32, piece: &Piece) {
    receive(tag, offset, piece.bytes());
}

/// Receives the first `length` bytes of the window, as [`take`] does.
pub fn take_window(tag: u32, offset: u32, length: u32) {
    let mut is_received = false;
    window::with(|bytes| {
        if let Some(bytes) = bytes.get(..length as usize).filter(|bytes| bytes.len() <= AT_ONCE) {
            receive(tag, offset, bytes);
            is_received = true;
        }
    });
    if !is_received {
        console::refuse(tag, format_args!("the transfer's window is closed, or {length} bytes are too many at once"));
    }
}

fn receive(tag: u32, offset: u32, bytes: &[u8]) {
    let received = {
        let mut transfers = TRANSFERS.lock();
        let Some(upload) = transfers.current.as_mut().filter(|upload| upload.tag == tag) else { return };
        let before = upload.next;
        if offset == before && bytes.len() <= (upload.size - before) as usize {
            // SAFETY: `begin` reserved `size` bytes from `at` on for this package, the piece ends within them, and nothing else refers
            // to them yet.
            unsafe { Arch::physical(upload.at + u64::from(before)).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            upload.checksum.update(bytes);
            upload.next += bytes.len() as u32;
        }
        let next = upload.next;
        (offset != before || next == upload.size || next / ACK_INTERVAL != before / ACK_INTERVAL).then_some(next)
    };
    if let Some(next) = received {
        console::event(&Event::Uploaded { tag, next });
    }
}

/// Starts a VM that was created.
pub fn start(vm: &'static Vm) {
    console::event(&Event::Vm { vm: vm.number as u8, state: VmState::Started });
    power::start(vm);
}

/// Creates a bounded piece of the VM, and requests the command again. Once the VM is complete, calls `then` for it. The package
/// becomes part of the VM, or is freed. `for_snapshot`: as [`vm::begin`].
pub fn create(tag: u32, crc: u32, for_snapshot: bool, then: impl FnOnce(&'static Vm)) {
    let mut transfers = TRANSFERS.lock();
    let Some(mine) = transfers.current.as_mut().filter(|upload| upload.tag == tag) else {
        drop(transfers);
        return if CREATED.load(Ordering::Relaxed) == tag {
            // The answer was lost.
            console::event(&Event::Answer { tag, answer: Answer::Done });
        } else {
            console::refuse(tag, format_args!("the transfer was abandoned: another one began meanwhile"));
        };
    };
    let (made, next) = (make(mine, crc, for_snapshot), mine.next);
    match made {
        Ok(None) => {
            drop(transfers);
            console::event(&Event::Uploaded { tag, next });
        }
        Ok(Some(vm)) => {
            transfers.current = None;
            drop(transfers);
            CREATED.store(tag, Ordering::Relaxed);
            console::event(&Event::Answer { tag, answer: Answer::Done });
            then(vm);
        }
        Err(why) => {
            let failed = transfers.current.take();
            drop(transfers);
            // Before the package is freed, whose text it may contain.
            console::refuse(tag, format_args!("{why}"));
            if let Some(failed) = failed {
                failed.undo(retire::abandon);
            }
        }
    }
}

/// Reason for not creating a VM.
enum Refusal {
    Package(stile_blob::PackageError),
    Other(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Package(error) => error.fmt(f),
            Refusal::Other(why) => f.write_str(why),
        }
    }
}

/// Begins the VM, or creates another piece of it. Returns it once it is complete.
fn make(upload: &mut Upload, crc: u32, for_snapshot: bool) -> Result<Option<&'static Vm>, Refusal> {
    match &mut upload.creation {
        Some(creation) if creation.for_snapshot != for_snapshot => Err(Refusal::Other("another command has begun with it")),
        Some(creation) => creation.advance().map_err(Refusal::Other),
        None => {
            let creation = begin_vm(upload.vm, bytes_of(upload, crc)?, for_snapshot)?;
            upload.creation = Some(creation);
            Ok(None)
        }
    }
}

/// The bytes of a complete package.
fn bytes_of(upload: &Upload, crc: u32) -> Result<&'static [u8], Refusal> {
    if upload.next != upload.size || upload.checksum.clone().finish() != crc {
        return Err(Refusal::Other("the package is incomplete or its checksum is wrong"));
    }
    // SAFETY: all bytes were received and nothing writes them any more; they belong to the VM and live as long as it.
    Ok(unsafe { core::slice::from_raw_parts(Arch::physical(upload.at), upload.size as usize) })
}

#[inline(never)]
fn begin_vm(number: usize, bytes: &'static [u8], for_snapshot: bool) -> Result<Creation, Refusal> {
    let Package { vm: config, files } = Package::parse(bytes, image::files()).map_err(Refusal::Package)?;
    if vm::all().any(|vm| vm.name == config.name) {
        return Err(Refusal::Other("the machine already has a VM with this name"));
    }
    if !config.functions.is_empty() {
        return Err(Refusal::Other("PCI functions can be given only to VMs of the machine's configuration"));
    }
    if config.has_links() {
        return Err(Refusal::Other("devices can be served only to VMs of the machine's configuration"));
    }
    if config.techniques.ablate.is_some() {
        return Err(Refusal::Other("`ablate` is only for VMs of the machine's configuration"));
    }
    vm::begin(number, &config, files, for_snapshot).map_err(Refusal::Other)
}
