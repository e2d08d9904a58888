//! The server: a disk of its RAM, for each of its clients. Clients are hostile.

use payload::gic::Bits;
use payload::mmu::{self, Memory};
use payload::prelude::*;
use payload::uart::Reg32;
use payload::{exception, harness, instruction, psci};

use crate::disk::{SECTOR, SECTORS, SIZE, kind};
use crate::memory::{self, NEXT, WRITE, barrier, read8, read16, read32, read64, write8, write16, write32};

const BASE: u64 = 0x0A01_0000;
const EVENTS: u64 = 0x0701_0000;
const FIRST_INTID: u32 = 56;
/// Clients at most.
const MOST: usize = 8;
/// Seconds of [`kind::SLEEP`].
const SLEEP: u64 = 100;
/// Seconds of [`kind::DELAY`].
const DELAY: u64 = 400;
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

impl Slot {
    fn register(&self, offset: u64) -> Reg32 {
        Reg32(self.base + offset)
    }

    fn pair(&self, offset: u64) -> u64 {
        u64::from(self.register(offset).read()) | u64::from(self.register(offset + 4).read()) << 32
    }

    fn new(number: u64) -> Self {
        let disk = memory::page(16 + 16 * (number + 1));
        // In Stile's memory, which it maps as normal.
        let events = mmu::window(EVENTS + 0x1000 * number, Memory::Normal, false);
        let (base, ended) = (BASE + 0x1000 * number, memory::page(1) + number);
        let slot = Slot { base, disk, ram: (0, 0), window: 0, queue: None, events, state: None, acknowledged: None, ended };
        Slot { ram: (slot.pair(0x20), slot.pair(0x18)), window: slot.pair(0x10), ..slot }
    }

    fn come_online(&mut self) {
        for (offset, value) in [(0x38, 0), (0x3C, 0), (0x50, 0), (0x54, u32::from(SIZE)), (0x100, SECTORS as u32), (0x28, 1)] {
            self.register(offset).write(value);
        }
        self.follow_state();
        if self.queue.is_some() {
            // The server before may have ended between its answers and the interrupt for them.
            self.register(0x34).write(1);
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
                barrier();
                return last;
            }
        }
    }

    /// Acknowledges a reset, and finds the queue of a running driver.
    fn follow_state(&mut self) {
        let state = self.register(0x2C).read();
        if state >> 31 != 0 {
            self.queue = None;
            if machine::has("stubborn") && !memory::second_boot() {
                memory::mark();
                self.wait_until_cut_off();
            }
            self.register(0x30).write(1);
        }
        let state = self.register(0x2C).read();
        if state & 4 != 0 && self.queue.is_none() {
            match self.take_queue() {
                Ok(queue) => self.queue = Some(queue),
                Err(Broken) => self.register(0x48).write(1),
            }
        }
    }

    /// Sleeps until accesses to the client's RAM are refused.
    fn wait_until_cut_off(&self) {
        let touch = || {
            let _ = read64(self.window);
        };
        while exception::catch(touch).is_none_or(|fault| !fault.is_external_abort()) {
            memory::sleep_a_second();
        }
        println!("server: is cut off");
    }

    fn take_queue(&self) -> Result<Queue, Broken> {
        let size = self.register(0x58).read() as u16;
        if self.register(0x5C).read() == 0 || !size.is_power_of_two() || size > SIZE {
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
            if queue.next == read16(queue.available + 2) {
                break;
            }
            barrier();
            let head = read16(queue.available + 4 + 2 * u64::from(queue.next % queue.size));
            let written = self.request(&queue, head)?;
            let entry = queue.used + 4 + 8 * u64::from(queue.next % queue.size);
            write32(entry, head.into());
            write32(entry + 4, written);
            barrier();
            queue.next = queue.next.wrapping_add(1);
            write16(queue.used + 2, queue.next);
            some = true;
        }
        self.queue = Some(queue);
        Ok(some)
    }

    /// A descriptor's address here, length, flags and next.
    fn descriptor(&self, queue: &Queue, index: u16) -> Result<(u64, u32, u16, u16), Broken> {
        if index >= queue.size {
            return Err(Broken);
        }
        let at = queue.descriptors + 16 * u64::from(index);
        let length = read32(at + 8);
        Ok((self.find(read64(at), length.into())?, length, read16(at + 12), read16(at + 14)))
    }

    fn request(&mut self, queue: &Queue, head: u16) -> Result<u32, Broken> {
        let (header, length, flags, next) = self.descriptor(queue, head)?;
        if length < 16 || flags != NEXT || header % 8 != 0 {
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
        let copy = |from: u64, to: u64| (0..SECTOR).for_each(|byte| write8(to + byte, read8(from + byte)));
        let mut result = 0;
        match kind {
            kind::READ if sector < SECTORS && flags & WRITE != 0 => copy(disk, data),
            kind::WRITE if sector < SECTORS && flags & WRITE == 0 => copy(data, disk),
            kind::REBOOT | kind::TURN_OFF if !memory::second_boot() => {
                memory::mark();
                println!("server: goes away");
                if kind == kind::REBOOT { psci::system_reset() } else { harness::exit(0) }
            }
            kind::REBOOT | kind::TURN_OFF => println!("server: is back"),
            kind::SLEEP => (0..SLEEP).for_each(|_| memory::sleep_a_second()),
            kind::DELAY => {
                self.acknowledge();
                memory::sleep(DELAY);
            }
            kind::END => write8(self.ended, 1),
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
                    self.register(0x34).write(1);
                    continue;
                }
                Ok(false) => {}
                Err(Broken) => {
                    self.queue = None;
                    self.register(0x48).write(1);
                }
            }
            let acknowledged = self.acknowledge();
            if self.acknowledged.replace(acknowledged) == Some(acknowledged) {
                return;
            }
        }
    }
}

/// Serves `clients=N` devices, until all clients have ended.
pub fn run() -> ! {
    let clients = (machine::number("clients", 1) as usize).min(MOST);
    let mut slots: [Slot; MOST] = core::array::from_fn(|number| Slot::new(number as u64));
    let slots = &mut slots[..clients];
    for (slot, intid) in slots.iter_mut().zip(FIRST_INTID..) {
        if slot.register(0).read() != 0x7653_7453 {
            harness::die("server: no device");
        }
        gic::set_edge(intid, true);
        gic::set(Bits::Enable, intid);
        slot.come_online();
    }
    println!("server: online");
    loop {
        slots.iter_mut().for_each(Slot::attend);
        if slots.iter().all(|slot| read8(slot.ended) != 0) {
            harness::exit(0)
        }
        if !irq::is_pending() {
            instruction!("wfi");
        }
        irq::take();
    }
}
