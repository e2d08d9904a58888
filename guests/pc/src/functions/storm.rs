//! Attacks without end through `virtio-serial`, on CPUs that other VMs share. The function sends a message at each store to one of its
//! doorbells, even if the queue is empty.

use core::arch::asm;

use common::fail::{Fail, Outcome};
use common::phases::Machine;
use pc::console::println;
use pc::lapic::{self, register};
use pc::{exception, machine};

use crate::function::{Function, RAM, write};
use crate::messages::{DESTINATION, MESSAGES};
use crate::phase_machine::{self, Pc};
use crate::virtio::{AVAILABLE, DESCRIPTORS, SERIAL, USED, Virtio};
use crate::{job, poke};

/// An attack's name, and the functions that its first CPU and its other CPUs run.
type Attack = (&'static str, fn(Virtio), fn());

const ATTACKS: [Attack; 8] = [
    ("none", |_| spin(), spin),
    ("messages", messages, spin),
    ("wakes", messages, wake),
    ("entries", entries, spin),
    ("masks", masks, spin),
    ("bars", bars, poke::poke),
    ("faults", faults, spin),
    ("resets", resets, spin),
];

/// Number of vectors, one for each transmit queue.
const VECTORS: u64 = 31;
/// First vector of the messages, and the task priority that keeps them pending.
const FIRST: u64 = 0x40;
const BLOCKED: u32 = 0xf0;

/// Runs an attack, which does not end.
///
/// # Errors
/// The attack can't begin, or has ended.
pub fn run(name: &str) -> Outcome {
    let fail = |why| Fail::new(format_args!("attack {name}: {why}"));
    let (_, attack, others) = ATTACKS.into_iter().find(|(known, ..)| *known == name).ok_or(fail("unknown"))?;
    println!("storm: {name}");
    Pc::restore()?;
    let serial = Virtio::find(SERIAL).ok_or(fail("no virtio-serial"))?;
    start(serial, [DESCRIPTORS, AVAILABLE, USED])?;
    for vector in 0..VECTORS {
        exception::handle((FIRST + vector) as u8, Some(|_| lapic::end()));
    }
    lapic::write(register::TPR, BLOCKED);
    job::give(others);
    attack(serial);
    Err(fail("ended"))
}

/// Starts the transmit queues at these addresses, with messages to the last CPU.
fn start(serial: Virtio, addresses: [u64; 3]) -> Outcome {
    for page in [DESCRIPTORS, AVAILABLE, USED] {
        (0..4096).step_by(8).for_each(|at| write(page + at, 8, 0));
    }
    serial.start_queues(outputs(), 2, addresses)?;
    serial.enable_messages(false);
    (0..VECTORS).for_each(|vector| serial.set_vector(vector, to(Pc::cpus() as u64 - 1), FIRST + vector));
    Ok(())
}

/// Transmit queues of ports 0, 1 and following (Virtio 1.2, section 5.3.2).
fn outputs() -> impl Iterator<Item = u64> {
    (0..VECTORS).map(|port| if port == 0 { 1 } else { 2 * port + 3 })
}

/// Address of messages to a CPU.
fn to(cpu: u64) -> u64 {
    MESSAGES | cpu << DESTINATION
}

/// Rings all doorbells.
fn ring(serial: Virtio) {
    outputs().for_each(|queue| write(serial.notify + serial.step * queue, 2, queue));
}

fn spin() {
    lapic::write(register::TPR, BLOCKED);
    loop {
        core::hint::spin_loop();
    }
}

/// Sends as many messages as possible, to a vCPU that takes none.
fn messages(serial: Virtio) {
    loop {
        ring(serial);
    }
}

/// Waits for messages, each of which wakes this CPU.
fn wake() {
    lapic::write(register::TPR, 0);
    loop {
        // SAFETY: there is a handler for each interrupt.
        unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
    }
}

/// Changes the messages' vectors and CPUs all the time.
fn entries(serial: Virtio) {
    let mut random = phase_machine::random();
    loop {
        let entry = serial.table + 16 * random.below(VECTORS);
        match random.below(4) {
            0 => write(entry, 4, to(random.below(Pc::cpus() as u64 + 1))),
            1 => write(entry, 4, to(0xff)),
            2 => write(entry + 8, 4, 0x10 + random.below(0xf0)),
            _ => write(entry + 12, 4, random.below(2)),
        }
        ring(serial);
    }
}

/// Masks all vectors, makes them pending and unmasks them, one by one and all at once.
fn masks(serial: Virtio) {
    loop {
        serial.enable_messages(true);
        ring(serial);
        serial.enable_messages(false);
        (0..VECTORS).for_each(|vector| write(serial.table + 16 * vector + 12, 4, 1));
        ring(serial);
        (0..VECTORS).for_each(|vector| write(serial.table + 16 * vector + 12, 4, 0));
    }
}

/// Turns decoding and bus mastering off and on, and moves the BARs of all functions, while other CPUs access them.
fn bars(serial: Virtio) {
    loop {
        for function in Function::all() {
            function.enable(false);
            function.enable(true);
            (0..6).for_each(|bar| function.write(0x10 + 4 * bar, (function.place(bar) ^ 1 << 18) as u32));
        }
        Function::all().for_each(Function::connect);
        ring(serial);
    }
}

/// Makes the function read a queue outside of this VM's memory, by each doorbell.
fn faults(serial: Virtio) {
    loop {
        for page in 0..64 {
            if start(serial, [DESCRIPTORS, RAM + 4096 * page, USED]).is_ok() {
                (0..32).for_each(|_| ring(serial));
            }
        }
    }
}

/// Resets the VM with messages under way.
fn resets(serial: Virtio) {
    (0..100).for_each(|_| ring(serial));
    // SAFETY: the 8042 resets the VM: nothing after it is needed.
    unsafe { machine::out8(0x64, 0xfe) };
    spin();
}
