//! Messages of a virtio function: hostile ones in its MSI-X table, INIT messages, and as many as it can send.

use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering};

use common::check;
use common::fail::Outcome;
use common::phases::Machine;
use common::random::Random;
use pc::console::println;
use pc::lapic::{self, register};
use pc::{exception, machine, others};

use crate::function::{Function, ID_OF_EDU, write};
use crate::phase_machine::{self, Pc};
use crate::virtio::{DESCRIPTORS, RNG, Virtio};
use crate::{dma, job, poke};

/// Base of the addresses of messages, and the place of the destination in them.
pub const MESSAGES: u64 = 0xfee0_0000;
pub const DESTINATION: u32 = 12;
pub const ALL: u64 = 0xff;
/// Delivery modes.
pub const MODE: u32 = 8;
const LOWEST: u64 = 1;
pub const INIT: u64 = 5;
/// Vector of [`flood`], and the task priority meanwhile, which blocks what other attacks have left pending.
const VECTOR: u8 = 0xf1;
const PRIORITY: u32 = 0xe0;

/// A message of any kind but INIT.
fn any(random: &mut Random) -> (u64, u64) {
    let address = match random.below(6) {
        0 => random.odd(),
        1 => MESSAGES | ALL << DESTINATION | random.below(4) << 2,
        _ => MESSAGES | random.below(256) << DESTINATION | random.below(4) << 2,
    };
    let vector = match random.below(3) {
        0 => random.below(16),
        _ => random.below(256),
    };
    let mode = random.pick(&[0, 1, 2, 3, 4, 6, 7]);
    (address, vector | mode << MODE | random.below(4) << 14 | (random.odd() << 16 & 0xffff_ffff))
}

/// The phase "messages": all CPUs change the table while the function sends messages.
pub fn run() -> Outcome {
    let mut random = phase_machine::random();
    let Some(rng) = Virtio::find(RNG) else { return Ok(()) };
    let mut queue = rng.start_tiny()?;
    rng.enable_messages(false);
    job::give(change);
    for _ in 0..300 {
        let (address, data) = any(&mut random);
        rng.set_vector(random.below(2), address, data);
        rng.enable_messages(random.below(8) == 0);
        queue.request();
        check!(others::wait(|| queue.is_idle()), "a request of virtio-rng does not end");
    }
    job::stop();
    rng.reset()
}

/// Changes parts of the table at random, without INIT messages.
fn change() {
    let mut random = phase_machine::random();
    let Some(rng) = Virtio::find(RNG) else { return };
    job::until_stopped(|| {
        let (address, data) = any(&mut random);
        let entry = rng.table + 16 * random.below(3);
        match random.below(5) {
            0 => write(entry, 4, address),
            1 => write(entry + 4, 4, address >> 32),
            2 => write(entry + 8, 4, data),
            3 => write(entry + 12, 4, random.odd()),
            _ => write(entry + random.below(16), random.pick(&[1, 2]), random.bits() & !(INIT << MODE)),
        }
    });
}

/// The phase "inits": INIT messages take the other CPUs away while they access the window, again and again.
pub fn inits() -> Outcome {
    let Some(rng) = Virtio::find(RNG) else { return Ok(()) };
    for round in 0..8 {
        let mut queue = rng.start_tiny()?;
        rng.enable_messages(false);
        poke::start();
        for cpu in 1..Pc::cpus() as u64 {
            rng.set_vector(0, MESSAGES | cpu << DESTINATION, INIT << MODE);
            queue.request();
            check!(others::wait(|| queue.is_idle()), "request {round} of virtio-rng does not end");
        }
        Pc::restore()?;
    }
    Ok(())
}

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The phase "flood": the function sends messages without end, to all CPUs and to the one of the lowest priority.
pub fn flood() -> Outcome {
    const MESSAGES_TAKEN: u64 = 1000;
    let Some(rng) = Virtio::find(RNG) else { return Ok(()) };
    let queue = RefCell::new(rng.start_tiny()?);
    rng.enable_messages(false);
    let count = |_| {
        TAKEN.fetch_add(1, Ordering::SeqCst);
        lapic::end();
    };
    exception::handle(VECTOR, Some(count));
    lapic::write(register::TPR, PRIORITY);
    job::give(|| {
        lapic::write(register::TPR, PRIORITY);
        machine::sti();
        job::until_stopped(core::hint::spin_loop);
        machine::cli();
    });
    for mode in [0, LOWEST] {
        rng.set_vector(0, MESSAGES | ALL << DESTINATION, u64::from(VECTOR) | mode << MODE);
        TAKEN.store(0, Ordering::SeqCst);
        machine::sti();
        let came = others::wait(|| {
            let mut queue = queue.borrow_mut();
            if queue.is_idle() {
                queue.request();
            }
            TAKEN.load(Ordering::SeqCst) >= MESSAGES_TAKEN
        });
        machine::cli();
        check!(came, "{} messages of mode {mode} have arrived", TAKEN.load(Ordering::SeqCst));
    }
    job::stop();
    rng.reset()
}

/// Resets the machine by an INIT message to all CPUs, while `edu` copies to memory and requests are under way. Returns if that fails.
pub fn reset_by_init() {
    if Pc::restore().is_err() {
        return;
    }
    if let Some(edu) = Function::find(ID_OF_EDU) {
        dma::start(edu, DESCRIPTORS + (1 << 20), 4096, true);
    }
    let Some(rng) = Virtio::find(RNG) else { return };
    let Ok(mut queue) = rng.start_tiny() else { return };
    rng.enable_messages(false);
    rng.set_vector(0, MESSAGES | ALL << DESTINATION, INIT << MODE);
    queue.request();
    others::wait(|| false);
    println!("FAIL an INIT message to all CPUs does not reset the machine");
}
