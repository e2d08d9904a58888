//! The driver: Virtio 1.2, sections 3.1 and 4.1.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::random::mix;

use crate::disk::{SECTOR, SECTORS, SIZE, kind};
use crate::function::{self, at};
use crate::memory::{self, NEXT, WRITE, barrier, describe, place, read8, read16, read32, read64, write8, write16, write32, write64};

pub const TESTS: &[Test] = payload::tests![
    it_is_identified,
    a_server_comes,
    sectors_keep_what_is_written,
    a_masked_message_is_sent_later,
    many_requests_are_answered,
    a_reset_starts_anew,
    the_server_comes_back
];
pub const BEFORE_RESET: &[Test] = payload::tests![a_server_comes, sectors_keep_what_is_written];
pub const AFTER_RESET: &[Test] = payload::tests![the_disk_is_as_before, nothing_was_under_way, the_end_is_announced];
pub const COUNT: &[Test] = payload::tests![a_server_comes, sectors_keep_what_is_written, many_requests_are_answered, the_end_is_announced];
pub const AWAY: &[Test] =
    payload::tests![a_server_comes, sectors_keep_what_is_written, the_server_is_turned_on_again, the_end_is_announced];
pub const UNANSWERED: &[Test] = payload::tests![
    a_server_comes,
    sectors_keep_what_is_written,
    the_driver_is_told_of_unacknowledged_requests,
    the_driver_is_told_of_unanswered_requests,
    a_reset_that_is_not_acknowledged_ends,
    the_disk_works_again,
    the_end_is_announced
];
pub const PAUSED: &[Test] = payload::tests![
    a_server_comes,
    sectors_keep_what_is_written,
    the_server_is_paused,
    a_paused_server_is_not_cut_off,
    the_disk_is_as_before,
    the_end_is_announced
];
pub const ALONE: &[Test] = payload::tests![it_is_identified, the_wait_for_a_server_ends];

const INTID: u32 = 64;
const RUNNING: u32 = 0xF;
const NEEDS_RESET: u32 = 0x40;

/// The queue's pages.
pub fn queue() -> u64 {
    memory::page(8)
}

fn it_is_identified() -> Outcome {
    let [first, second] = function::identification();
    check_eq!(first, 0x1042_1AF4, "a disk");
    check_eq!(second, u32::MAX, "no second device");
    // MSI-X; common configuration, notifications, ISR status, the device's configuration.
    let (found, size) = function::capabilities();
    check!(found == [0x11, 1, 2, 3, 4, 0, 0, 0], "capabilities {found:x?}");
    check_eq!(size, 0x1000, "size of the BAR");
    Ok(())
}

/// Negotiates and enables a queue of `size` descriptors. Waits for a server.
pub fn start(size: u16) -> Outcome {
    (0..6).for_each(|page| (0..512).for_each(|word| write64(queue() + 4096 * page + 8 * word, 0)));
    function::set_up(INTID);
    function::set_status(0);
    check!(becomes(|| function::status() == 0), "status {:#x} after a reset", function::status());
    function::set_status(3);
    write32(at(function::FEATURE_SELECT), 1);
    check_eq!(read32(at(function::FEATURE)) & 1, 1, "VERSION_1");
    write32(at(function::DRIVER_SELECT), 1);
    write32(at(function::DRIVER_FEATURE), 1);
    function::set_status(0xB);
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
    function::set_status(RUNNING as u8);
    // Interrupts for a previous driver may be pending.
    gic::set_edge(INTID, true);
    gic::clear(Bits::Pending, INTID);
    gic::set(Bits::Enable, INTID);
    irq::take();
    Ok(())
}

/// Makes a request of three descriptors available, and kicks the server.
fn send(kind: u32, sector: u64) {
    let queue = queue();
    write32(queue + place::HEADER, kind);
    write64(queue + place::HEADER + 8, sector);
    write8(queue + place::STATUS, 0xFF);
    describe(queue, 0, queue + place::HEADER, 16, NEXT, 1);
    describe(queue, 1, queue + place::DATA, SECTOR as u32, if kind == kind::READ { NEXT | WRITE } else { NEXT }, 2);
    describe(queue, 2, queue + place::STATUS, 1, WRITE, 0);
    let index = read16(queue + place::AVAILABLE + 2);
    write16(queue + place::AVAILABLE + 4 + 2 * u64::from(index % SIZE), 0);
    barrier();
    write16(queue + place::AVAILABLE + 2, index.wrapping_add(1));
    function::kick();
}

/// Makes a request, and waits for its answer and an interrupt. There may be more interrupts: a server that comes back sends one
/// to each client.
pub fn request(kind: u32, sector: u64) -> Outcome {
    irq::clear();
    let before = read16(queue() + place::USED + 2);
    send(kind, sector);
    let sleeps = machine::has("count") || machine::has("away");
    let answered = wait::until(|| {
        // Interrupts are masked, but end WFI.
        if sleeps && !irq::is_pending() {
            payload::instruction!("wfi");
        }
        irq::take();
        irq::count(0) != 0 && read16(queue() + place::USED + 2) != before
    });
    check!(answered, "request {kind:#x} of sector {sector} is not answered after {} interrupts", irq::count(0));
    check_eq!(irq::nth(0, 0), INTID, "interrupt");
    barrier();
    check_eq!(read16(queue() + place::USED + 2), before.wrapping_add(1), "used index");
    check_eq!(read8(queue() + place::STATUS), 0, "status of request {kind:#x}");
    Ok(())
}

fn a_server_comes() -> Outcome {
    start(SIZE)?;
    check_eq!(read32(at(function::CONFIG)), SECTORS as u32, "capacity");
    Ok(())
}

/// Completions of a masked vector are remembered.
fn a_masked_message_is_sent_later() -> Outcome {
    irq::clear();
    function::mask(true);
    let before = read16(queue() + place::USED + 2);
    send(kind::READ, 0);
    check!(wait::until(|| read16(queue() + place::USED + 2) != before), "the request is not answered");
    check!(wait::until(function::is_pending), "its message is not pending");
    irq::take();
    check_eq!(irq::count(0), 0, "interrupts while masked");
    function::mask(false);
    let arrives = wait::until(|| {
        irq::take();
        irq::count(0) != 0
    });
    check!(arrives, "the message is not sent");
    check!(!function::is_pending(), "it is still pending");
    Ok(())
}

/// No server comes: loads of the status end soon, and others later, when the device reads as one that can't be used.
fn the_wait_for_a_server_ends() -> Outcome {
    function::set_up(INTID);
    function::set_status(3);
    check_eq!(function::status(), 3 | NEEDS_RESET, "status without a server");
    for half in 0..2 {
        write32(at(function::FEATURE_SELECT), half);
        check_eq!(read32(at(function::FEATURE)), 0, "features {half}");
    }
    write32(at(function::DRIVER_SELECT), 1);
    write32(at(function::DRIVER_FEATURE), 1);
    function::set_status(0xB);
    check_eq!(function::status(), 3, "status with features that were not offered");
    function::set_status(0);
    check_eq!(function::status(), 0, "status after a reset");
    Ok(())
}

fn contents(sector: u64, word: u64) -> u64 {
    mix(sector << 32 | word)
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

fn sectors_keep_what_is_written() -> Outcome {
    (0..SECTORS).try_for_each(write)?;
    (0..SECTORS).try_for_each(check)
}

fn many_requests_are_answered() -> Outcome {
    (0..machine::number("requests", 400)).try_for_each(|number| check(number % SECTORS))
}

fn a_reset_starts_anew() -> Outcome {
    for round in 0..20 {
        start(SIZE)?;
        check(round)?;
    }
    Ok(())
}

/// The server resets its machine with a request under way, and then answers it. Registers wait meanwhile.
fn the_server_comes_back() -> Outcome {
    request(kind::REBOOT, 0)?;
    check_eq!(function::status(), RUNNING, "status");
    (0..SECTORS).try_for_each(check)
}

/// The server turns its machine off with a request under way, and answers it once the operator has turned that on.
fn the_server_is_turned_on_again() -> Outcome {
    request(kind::TURN_OFF, 0)?;
    check_eq!(function::status(), RUNNING, "status");
    (0..SECTORS).try_for_each(check)
}

/// Waits for a condition, asleep, for at most some minutes.
fn becomes(condition: impl Fn() -> bool) -> bool {
    let end = wait::now() + 450 * wait::frequency();
    while !condition() {
        if wait::now() > end {
            return false;
        }
        memory::sleep_a_second();
    }
    true
}

/// While the server acknowledges no requests, the driver finds DEVICE_NEEDS_RESET.
fn the_driver_is_told_of_unacknowledged_requests() -> Outcome {
    the_driver_is_told_of(kind::SLEEP)
}

/// While the server answers none of the requests that it has acknowledged, the driver finds DEVICE_NEEDS_RESET.
fn the_driver_is_told_of_unanswered_requests() -> Outcome {
    the_driver_is_told_of(kind::DELAY)
}

fn the_driver_is_told_of(kind: u32) -> Outcome {
    let before = read16(queue() + place::USED + 2);
    send(kind, 0);
    check!(becomes(|| function::status() == RUNNING | NEEDS_RESET), "status {:#x}", function::status());
    check_eq!(read16(queue() + place::USED + 2), before, "used index");
    check!(becomes(|| read16(queue() + place::USED + 2) != before), "the request is not answered");
    check!(becomes(|| function::status() == RUNNING), "status {:#x} after the answer", function::status());
    (0..SECTORS).try_for_each(check)
}

/// The server does not acknowledge a reset: loads of the status end meanwhile, and the reset ends when the server is cut off.
fn a_reset_that_is_not_acknowledged_ends() -> Outcome {
    function::set_status(0);
    check_eq!(function::status(), NEEDS_RESET, "status before the end of the reset");
    check!(becomes(|| function::status() == 0), "status {:#x}", function::status());
    Ok(())
}

/// The server has acknowledged the reset after all.
fn the_disk_works_again() -> Outcome {
    check!(becomes(|| start(SIZE).is_ok()), "the device can't be used");
    (0..SECTORS).try_for_each(check)
}

/// The operator pauses the server, for longer than it may take to acknowledge a reset.
fn the_server_is_paused() -> Outcome {
    println!("pause the server");
    // The server is paused once a request has no answer for some seconds.
    let answered = || {
        let before = read16(queue() + place::USED + 2);
        send(kind::READ, 0);
        (0..5).any(|_| {
            memory::sleep_a_second();
            read16(queue() + place::USED + 2) != before
        })
    };
    while answered() {}
    Ok(())
}

/// A reset waits for a server that is paused.
fn a_paused_server_is_not_cut_off() -> Outcome {
    function::set_status(0);
    for _ in 0..20 {
        check_eq!(function::status(), NEEDS_RESET, "status before the end of the reset");
        memory::sleep(10);
    }
    println!("resume the server");
    while function::status() != 0 {
        memory::sleep_a_second();
    }
    Ok(())
}

/// Leaves a request under way at the machine's reset.
pub fn leave_under_way() {
    memory::mark();
    send(kind::READ, 1);
}

fn the_disk_is_as_before() -> Outcome {
    start(SIZE)?;
    (0..SECTORS).try_for_each(check)
}

/// The server has answered before this machine was loaded anew, or never.
fn nothing_was_under_way() -> Outcome {
    let before = read16(queue() + place::USED + 2);
    wait::settle();
    check_eq!(read16(queue() + place::USED + 2), before, "used index");
    Ok(())
}

pub fn the_end_is_announced() -> Outcome {
    request(kind::END, 0)
}
