//! The driver: Virtio 1.2, sections 3.1 and 4.1.

use core::sync::atomic::Ordering;

use common::fail::Outcome;
use common::{check, check_eq};
use pc::{exception, machine};

use crate::disk::{SECTOR, SECTORS, SIZE, kind};
use crate::function::{self, at};
use crate::memory::{self, NEXT, WRITE, barrier, describe, place, read8, read16, read32, read64, write8, write16, write32, write64};
use crate::time::{becomes, halt};

/// Vector of the queue's interrupts.
pub const VECTOR: u8 = 0x50;
const RUNNING: u8 = 0xf;
/// DEVICE_NEEDS_RESET.
const NEEDS_RESET: u8 = 0x40;

/// The queue's pages.
pub fn queue() -> u64 {
    memory::page(8)
}

/// The tests before this machine resets itself.
pub fn before_reset() -> Outcome {
    check!(function::identification() == [0x1042_1af4, u32::MAX], "not one disk: {:x?}", function::identification());
    // MSI-X; common configuration, notifications, ISR status, the device's configuration.
    let (found, size) = function::capabilities();
    check!(found == [0x11, 1, 2, 3, 4], "capabilities {found:x?}");
    check_eq!(size, 0x1000, "size of the BAR");
    start(SIZE)?;
    check_eq!(read32(at(function::CONFIG)), SECTORS as u32, "capacity");
    (0..SECTORS).try_for_each(write)?;
    (0..SECTORS).try_for_each(check)?;
    a_masked_message_is_sent_later()?;
    (0..400).try_for_each(|number| check(number % SECTORS))?;
    for round in 0..20 {
        start(SIZE)?;
        check(round)?;
    }
    // The server resets its machine with a request under way, and then answers it. Registers wait meanwhile.
    request(kind::REBOOT, 0)?;
    check_eq!(function::status(), RUNNING, "status");
    (0..SECTORS).try_for_each(check)
}

/// A few requests before this machine resets itself.
pub fn before_early_reset() -> Outcome {
    start(SIZE)?;
    (0..SECTORS).try_for_each(write)
}

/// The server acknowledges no requests, and no reset by this driver.
pub fn unanswered() -> Outcome {
    before_early_reset()?;
    the_driver_is_told()?;
    function::set_status(0);
    check_eq!(function::status(), NEEDS_RESET, "status before the end of the reset");
    check!(becomes(|| function::status() == 0), "status {:#x}", function::status());
    // The server has acknowledged the reset after all.
    check!(becomes(|| start(SIZE).is_ok()), "the device can't be used");
    (0..SECTORS).try_for_each(check)?;
    request(kind::END, 0)
}

/// While the server does not acknowledge a request, the driver finds DEVICE_NEEDS_RESET.
fn the_driver_is_told() -> Outcome {
    let before = read16(queue() + place::USED + 2);
    send(kind::SLEEP, 0);
    check!(becomes(|| function::status() == RUNNING | NEEDS_RESET), "status {:#x}", function::status());
    check_eq!(read16(queue() + place::USED + 2), before, "used index");
    check!(becomes(|| read16(queue() + place::USED + 2) != before), "the request is not answered");
    check!(becomes(|| function::status() == RUNNING), "status {:#x} after the answer", function::status());
    (0..SECTORS).try_for_each(check)
}

/// The tests after that.
pub fn after_reset() -> Outcome {
    start(SIZE)?;
    (0..SECTORS).try_for_each(check)?;
    // The server has answered the request that was under way before this machine was loaded anew, or never.
    let before = read16(queue() + place::USED + 2);
    (0..1_000_000).for_each(|_| core::hint::spin_loop());
    check_eq!(read16(queue() + place::USED + 2), before, "used index");
    request(kind::END, 0)
}

/// Resets this machine with a request under way.
pub fn reset_under_way() -> ! {
    memory::mark();
    send(kind::READ, 1);
    memory::reset()
}

/// Negotiates and enables a queue of `size` descriptors. Waits for a server.
pub fn start(size: u16) -> Outcome {
    (0..6 * 512).for_each(|word| write64(queue() + 8 * word, 0));
    function::set_up(VECTOR);
    function::set_status(0);
    // A reset of a server that takes long is polled for.
    while function::status() != 0 {
        core::hint::spin_loop();
    }
    function::set_status(3);
    write32(at(function::FEATURE_SELECT), 1);
    check_eq!(read32(at(function::FEATURE)) & 1, 1, "VERSION_1");
    write32(at(function::DRIVER_SELECT), 1);
    write32(at(function::DRIVER_FEATURE), 1);
    function::set_status(0xb);
    check_eq!(function::status(), RUNNING & !4, "features");
    write16(at(function::QUEUE), 0);
    check!(function::queue_size() >= size, "a queue of {}", function::queue_size());
    write16(at(function::QUEUE_SIZE), size);
    let places =
        [(function::DESCRIPTORS, queue()), (function::AVAILABLE, queue() + place::AVAILABLE), (function::USED, queue() + place::USED)];
    for (offset, address) in places {
        write32(at(offset), address as u32);
        write32(at(offset + 4), (address >> 32) as u32);
    }
    write16(at(function::QUEUE_VECTOR), 0);
    check_eq!(read16(at(function::QUEUE_VECTOR)), 0, "vector");
    write16(at(function::QUEUE_ENABLE), 1);
    check_eq!(read16(at(function::QUEUE_ENABLE)), 1, "ready");
    exception::handle(VECTOR, None);
    function::set_status(RUNNING);
    Ok(())
}

/// Makes a request of three descriptors available, and kicks the server.
fn send(kind: u32, sector: u64) {
    let queue = queue();
    write32(queue + place::HEADER, kind);
    write64(queue + place::HEADER + 8, sector);
    write8(queue + place::STATUS, 0xff);
    describe(queue, 0, queue + place::HEADER, 16, NEXT, 1);
    describe(queue, 1, queue + place::DATA, SECTOR as u32, if kind == kind::READ { NEXT | WRITE } else { NEXT }, 2);
    describe(queue, 2, queue + place::STATUS, 1, WRITE, 0);
    let index = read16(queue + place::AVAILABLE + 2);
    write16(queue + place::AVAILABLE + 4 + 2 * u64::from(index % SIZE), 0);
    barrier();
    write16(queue + place::AVAILABLE + 2, index.wrapping_add(1));
    function::kick();
}

/// Number of the queue's interrupts so far.
fn interrupts() -> u64 {
    exception::COUNTS[usize::from(VECTOR)].load(Ordering::SeqCst)
}

/// Makes a request, and waits, in HLT, for its answer and an interrupt. There may be more interrupts: a server that comes back sends one to
/// each client.
pub fn request(kind: u32, sector: u64) -> Outcome {
    let (taken, before) = (interrupts(), read16(queue() + place::USED + 2));
    send(kind, sector);
    while interrupts() == taken || read16(queue() + place::USED + 2) == before {
        machine::cli();
        if interrupts() == taken {
            halt();
        } else {
            // An interrupt that is not the answer's: another follows.
            machine::sti();
            core::hint::spin_loop();
        }
    }
    machine::cli();
    barrier();
    check_eq!(read16(queue() + place::USED + 2), before.wrapping_add(1), "used index");
    check_eq!(read8(queue() + place::STATUS), 0, "status of request {kind:#x} of sector {sector}");
    Ok(())
}

/// Completions of a masked vector are remembered.
fn a_masked_message_is_sent_later() -> Outcome {
    let taken = interrupts();
    function::mask(true);
    let before = read16(queue() + place::USED + 2);
    send(kind::READ, 0);
    machine::sti();
    while read16(queue() + place::USED + 2) == before || !function::is_pending() {
        core::hint::spin_loop();
    }
    check_eq!(interrupts(), taken, "interrupts while masked");
    function::mask(false);
    while interrupts() == taken {
        core::hint::spin_loop();
    }
    machine::cli();
    check!(!function::is_pending(), "it is still pending");
    Ok(())
}

fn contents(sector: u64, word: u64) -> u64 {
    (sector << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn write(sector: u64) -> Outcome {
    (0..SECTOR / 8).for_each(|word| write64(queue() + place::DATA + 8 * word, contents(sector, word)));
    request(kind::WRITE, sector)
}

fn check(sector: u64) -> Outcome {
    (0..SECTOR / 8).for_each(|word| write64(queue() + place::DATA + 8 * word, 0));
    request(kind::READ, sector)?;
    for word in 0..SECTOR / 8 {
        check_eq!(read64(queue() + place::DATA + 8 * word), contents(sector, word), "word {word} of sector {sector}");
    }
    Ok(())
}
