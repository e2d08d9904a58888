//! Messages of each delivery mode, to each kind of destination: they reach the CPUs of this VM that they address, or none if the mode is
//! reserved or the destination absent. (The neighbour fails if one reaches it, and Stile's account shows those that reach the machine.)

use common::check;
use common::fail::Outcome;
use core::sync::atomic::Ordering;

use common::phases::Machine;
use pc::lapic;
use pc::{exception, machine, others};

use crate::job;
use crate::messages::{ALL, DESTINATION, INIT, MESSAGES, MODE};
use crate::phase_machine::Pc;
use crate::virtio::{Queue, RNG, Virtio};

/// Vector of the messages under test, and of the message sent behind each.
const VECTOR: u8 = 0xe1;
const FENCE: u8 = 0xe2;
const NMI: u8 = 2;
/// Delivery modes (AMD64 Architecture Programmer's Manual 2, 16.11).
const FIXED: u64 = 0;
const LOWEST: u64 = 1;
const SMI: u64 = 2;
const RESERVED: u64 = 3;
const NMIS: u64 = 4;
const STARTUP: u64 = 6;
const EXTERNAL: u64 = 7;
/// Bits of the data: assert, level-triggered.
const TRIGGERS: [u64; 3] = [0, 1 << 14, 3 << 14];
/// An APIC ID that no CPU of this VM has. (The machine's CPUs have IDs 0 and 1, as CPUs of this VM.)
const ABSENT: u64 = 77;

/// The phase "modes".
pub fn run() -> Outcome {
    let Some(rng) = Virtio::find(RNG) else { return Ok(()) };
    let mut queue = rng.start_tiny()?;
    rng.enable_messages(false);
    job::give(|| {
        machine::sti();
        job::until_stopped(core::hint::spin_loop);
        machine::cli();
    });
    machine::sti();
    let outcome = all(rng, &mut queue);
    machine::cli();
    job::stop();
    outcome?;
    rng.reset()
}

fn all(rng: Virtio, queue: &mut Queue) -> Outcome {
    let cpus = Pc::cpus() as u64;
    for (destination, targets) in [(0, 1), (cpus - 1, 1), (ABSENT, 0), (ALL, cpus)] {
        for mode in [FIXED, LOWEST, SMI, RESERVED, NMIS, STARTUP, EXTERNAL] {
            for trigger in TRIGGERS {
                one(rng, queue, (destination, mode | trigger >> MODE), targets)?;
            }
        }
    }
    // No CPU of this VM has this APIC ID; a CPU of the machine might.
    for id in cpus..ALL {
        one(rng, queue, (id, INIT), 0)?;
        one(rng, queue, (id, NMIS), 0)?;
    }
    Ok(())
}

/// Sends a message, and a fixed one behind it. `kind`: delivery mode and trigger bits. `targets`: number of CPUs that `destination`
/// addresses.
fn one(rng: Virtio, queue: &mut Queue, (destination, kind): (u64, u64), targets: u64) -> Outcome {
    const MODES: u64 = 7;
    let counts = [VECTOR, NMI].map(exception::take);
    check!(counts == [0; 2], "before mode {kind:#x} to {destination}: {counts:?} interrupts and NMIs");
    send(rng, queue, destination, u64::from(VECTOR) | kind << MODE)?;
    let (interrupts, nmis) = match kind & MODES {
        FIXED => (targets, 0),
        LOWEST => (targets.min(1), 0),
        NMIS => (0, targets),
        _ => (0, 0),
    };
    let count = |vector: u8| exception::COUNTS[usize::from(vector)].load(Ordering::SeqCst);
    let came = others::wait(|| count(VECTOR) >= interrupts && count(NMI) >= nmis);
    check!(came, "mode {kind:#x} to {destination}: {} interrupts and {} NMIs", count(VECTOR), count(NMI));
    exception::take(FENCE);
    send(rng, queue, lapic::id().into(), FENCE.into())?;
    // A message of a reserved mode stays pending, as its entry counts as masked, and arrives as one more fence.
    check!(others::wait(|| count(FENCE) != 0), "the message after mode {kind:#x} to {destination} is lost");
    let counts = [VECTOR, NMI].map(exception::take);
    check!(counts == [interrupts, nmis], "mode {kind:#x} to {destination}: {counts:?} interrupts and NMIs");
    Ok(())
}

/// Has the function send this message, by its MSI-X vector 0.
fn send(rng: Virtio, queue: &mut Queue, destination: u64, data: u64) -> Outcome {
    rng.set_vector(0, MESSAGES | destination << DESTINATION, data);
    queue.request();
    check!(others::wait(|| queue.is_idle()), "a request of virtio-rng does not end");
    Ok(())
}
