//! The server: a disk of its RAM, for each of its clients. Clients are hostile.

use pc::console::println;
use pc::{exception, lapic, machine};

use crate::disk::{SECTOR, SECTORS, SIZE, SLEEP, kind};
use crate::memory::{self, NEXT, WRITE, barrier, read8, read16, read32, read64, write8, write16, write32, write64};
use crate::time::{halt, sleep};

pub const BASE: u64 = 0xfd00_0000;
pub const EVENTS: u64 = 0xfd10_0000;
/// Input of the I/O APIC, and vector, of the first device.
const FIRST_INPUT: u32 = 16;
const FIRST_VECTOR: u8 = 0x60;
/// Clients at most, and the most RAM of each.
const MOST: usize = 8;
const MOST_RAM: u64 = 1 << 30;
/// Status of a request: failed.
const FAILED: u8 = 1;

/// A client's device.
#[derive(Clone, Copy)]
struct Slot {
    base: u64,
    disk: u64,
    /// The client's RAM: in its addresses, and where it is here.
    ram: (u64, u64),
    window: u64,
    queue: Option<Queue>,
    /// The page with its events, the last change of the state that was followed, and the last event that was acknowledged.
    events: u64,
    state: Option<u32>,
    acknowledged: Option<u32>,
    /// Whether the client has said that it ends: a byte that a reset of this machine keeps.
    ended: u64,
    /// Whether it acknowledges the client's first reset only once it is cut off.
    is_stubborn: bool,
}

#[derive(Clone, Copy)]
struct Queue {
    size: u16,
    descriptors: u64,
    available: u64,
    used: u64,
    next: u16,
}

/// Requests of this client make no sense.
struct Broken;

/// Maps a window in the GiB after those that are mapped, by pages of 2 MiB. Its size is at most [`MOST_RAM`].
pub fn map(number: u64, window: u64, size: u64) {
    unsafe extern "C" {
        static level_4: u64;
    }
    const PRESENT: u64 = 0b11;
    const LARGE: u64 = 1 << 7;
    const BLOCK: u64 = 2 << 20;
    let level_2 = memory::page(256 + number);
    for index in 0..512 {
        let entry = if index * BLOCK < size { (window + index * BLOCK) | LARGE | PRESENT } else { 0 };
        write64(level_2 + 8 * index, entry);
    }
    // SAFETY: the table of `boot.s`, which nothing writes meanwhile.
    let level_3 = unsafe { (&raw const level_4).read_volatile() } & !0xfff;
    write64(level_3 + 8 * (window >> 30), level_2 | PRESENT);
}

impl Slot {
    fn register(&self, offset: u64) -> u32 {
        read32(self.base + offset)
    }

    fn set(&self, offset: u64, value: u32) {
        write32(self.base + offset, value);
    }

    fn pair(&self, offset: u64) -> u64 {
        u64::from(self.register(offset)) | u64::from(self.register(offset + 4)) << 32
    }

    fn new(number: u64, is_stubborn: bool) -> Self {
        let (base, events) = (BASE + 0x1000 * number, EVENTS + 0x1000 * number);
        let (disk, ended) = (memory::page(16 + 16 * (number + 1)), memory::page(1) + number);
        let slot = Slot { base, disk, ram: (0, 0), window: 0, queue: None, events, state: None, acknowledged: None, ended, is_stubborn };
        Slot { ram: (slot.pair(0x20), slot.pair(0x18).min(MOST_RAM)), window: slot.pair(0x10), ..slot }
    }

    fn come_online(&mut self) {
        for (offset, value) in [(0x38, 0), (0x3c, 0), (0x50, 0), (0x54, u32::from(SIZE)), (0x100, SECTORS as u32), (0x28, 1)] {
            self.set(offset, value);
        }
        self.follow_state();
        if self.queue.is_some() {
            // The server before may have ended between its answers and the interrupt for them.
            self.set(0x34, 1);
        }
    }

    /// Finds `length` bytes of the client's in this VM.
    fn find(&self, address: u64, length: u64) -> Result<u64, Broken> {
        let into = address.checked_sub(self.ram.0).ok_or(Broken)?;
        if into > self.ram.1 || length > self.ram.1 - into { Err(Broken) } else { Ok(self.window + into) }
    }

    /// Acknowledges all events. Returns the number of the last one.
    fn acknowledge(&self) -> u32 {
        loop {
            let last = read32(self.events);
            write32(self.events + 0x80, last);
            barrier();
            if read32(self.events) == last {
                return last;
            }
        }
    }

    /// Acknowledges a reset, and finds the queue of a running driver.
    fn follow_state(&mut self) {
        if self.register(0x2c) >> 31 != 0 {
            self.queue = None;
            if self.is_stubborn && !memory::second_boot() {
                memory::mark();
                self.wait_until_cut_off();
            }
            self.set(0x30, 1);
        }
        if self.register(0x2c) & 4 != 0 && self.queue.is_none() {
            match self.take_queue() {
                Ok(queue) => self.queue = Some(queue),
                Err(Broken) => self.set(0x48, 1),
            }
        }
    }

    /// Sleeps until the client's RAM, of which a page has zeros, reads as all ones.
    fn wait_until_cut_off(&self) {
        let zeros = self.window + memory::page(2) - self.ram.0;
        while read64(zeros) != u64::MAX {
            sleep(1);
        }
        println!("server: is cut off");
    }

    fn take_queue(&self) -> Result<Queue, Broken> {
        let size = self.register(0x58) as u16;
        if self.register(0x5c) == 0 || !size.is_power_of_two() || size > SIZE {
            return Err(Broken);
        }
        let entries = u64::from(size);
        let (descriptors, available, used) = (self.pair(0x60), self.pair(0x68), self.pair(0x70));
        if (descriptors | available | used) & 15 != 0 {
            return Err(Broken);
        }
        let descriptors = self.find(descriptors, 16 * entries)?;
        let (available, used) = (self.find(available, 6 + 2 * entries)?, self.find(used, 6 + 8 * entries)?);
        // Requests are answered in their order: those that an earlier server did not answer are next.
        Ok(Queue { size, descriptors, available, used, next: read16(used + 2) })
    }

    /// Answers requests. Returns whether there were any.
    fn serve(&mut self) -> Result<bool, Broken> {
        let Some(mut queue) = self.queue else { return Ok(false) };
        let mut some = false;
        for _ in 0..queue.size {
            if read16(queue.available + 2) == queue.next {
                break;
            }
            barrier();
            let head = read16(queue.available + 4 + 2 * u64::from(queue.next % queue.size));
            let written = self.answer(&queue, head)?;
            let entry = queue.used + 4 + 8 * u64::from(queue.next % queue.size);
            write32(entry, head.into());
            write32(entry + 4, written);
            queue.next = queue.next.wrapping_add(1);
            barrier();
            write16(queue.used + 2, queue.next);
            some = true;
        }
        self.queue = Some(queue);
        Ok(some)
    }

    /// A descriptor: where its buffer is here, its length and flags, and the index of the next one.
    fn descriptor(&self, queue: &Queue, index: u16) -> Result<(u64, u32, u16, u16), Broken> {
        if index >= queue.size {
            return Err(Broken);
        }
        let at = queue.descriptors + 16 * u64::from(index);
        let length = read32(at + 8);
        Ok((self.find(read64(at), length.into())?, length, read16(at + 12), read16(at + 14)))
    }

    /// Answers a request of three descriptors. Returns the number of bytes that were written.
    fn answer(&self, queue: &Queue, head: u16) -> Result<u32, Broken> {
        let (header, length, flags, next) = self.descriptor(queue, head)?;
        if length != 16 || flags != NEXT || header % 8 != 0 {
            return Err(Broken);
        }
        let (data, length, flags, next) = self.descriptor(queue, next)?;
        if u64::from(length) != SECTOR || flags & NEXT == 0 || data % 8 != 0 {
            return Err(Broken);
        }
        let (status, status_length, status_flags, _) = self.descriptor(queue, next)?;
        if status_length == 0 || status_flags != WRITE {
            return Err(Broken);
        }
        let (kind, sector) = (read32(header), read64(header + 8));
        let disk = self.disk + SECTOR * (sector % SECTORS);
        let copy = |from: u64, to: u64| (0..SECTOR).step_by(8).for_each(|word| write64(to + word, read64(from + word)));
        let mut result = 0;
        match kind {
            kind::READ if sector < SECTORS && flags & WRITE != 0 => copy(disk, data),
            kind::WRITE if sector < SECTORS && flags & WRITE == 0 => copy(data, disk),
            kind::REBOOT if !memory::second_boot() => {
                memory::mark();
                println!("server: goes away");
                memory::reset()
            }
            kind::REBOOT => println!("server: is back"),
            kind::END => write8(self.ended, 1),
            kind::SLEEP => sleep(SLEEP),

            _ => result = FAILED,
        }
        write8(status, result);
        Ok(if kind == kind::READ { SECTOR as u32 + 1 } else { 1 })
    }

    /// Handles events: returns when there are none, and all requests are answered or belong to a broken queue.
    fn attend(&mut self) {
        loop {
            let state = read32(self.events + 4);
            if self.state.replace(state) != Some(state) {
                self.follow_state();
            }
            match self.serve() {
                Ok(true) => {
                    self.set(0x34, 1);
                    continue;
                }
                Ok(false) => {}
                Err(Broken) => {
                    self.queue = None;
                    self.set(0x48, 1);
                }
            }
            let acknowledged = self.acknowledge();
            if self.acknowledged.replace(acknowledged) == Some(acknowledged) {
                return;
            }
        }
    }
}

/// Serves this many clients, until all have ended. `is_stubborn`: acknowledges the first reset only once it is cut off.
pub fn run(clients: usize, is_stubborn: bool) -> ! {
    let clients = clients.min(MOST);
    let mut slots: [Slot; MOST] = core::array::from_fn(|number| Slot::new(number as u64, is_stubborn));
    let slots = &mut slots[..clients];
    for (number, slot) in (0..).zip(slots.iter_mut()) {
        if slot.register(0) != 0x7653_7453 {
            println!("FAIL server: no device {number}\nEXIT: STATUS=1");
            machine::off()
        }
        map(number.into(), slot.window, slot.ram.1);
        let vector = FIRST_VECTOR + number;
        exception::handle(vector, None);
        lapic::io_route(FIRST_INPUT + u32::from(number), lapic::id(), vector.into());
        slot.come_online();
    }
    println!("server: online");
    loop {
        slots.iter_mut().for_each(Slot::attend);
        if slots.iter().all(|slot| read8(slot.ended) != 0) {
            println!("EXIT: STATUS=0");
            machine::off()
        }
        halt();
    }
}
