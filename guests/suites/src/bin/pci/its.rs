//! The interrupt translation service, by commands alone: it translates messages of the function, which has none.

use payload::gic::{gicd, gicr};
use payload::harness::Test;
use payload::prelude::*;
use payload::uart::Reg32;
use payload::{gic, icc};

use crate::dma::place;

pub const TESTS: &[Test] = payload::tests![
    an_lpi_follows_its_configuration,
    one_store_executes_a_full_queue,
    bad_commands_are_skipped,
    discarded_events_are_silent,
    a_queue_outside_of_memory_stalls,
    a_queue_for_all_events_at_once,
];

const ITS: u64 = 0x0808_0000;
pub const CTLR: u64 = 0;
const CBASER: u64 = 0x80;
const CWRITER: u64 = 0x88;
const CREADR: u64 = 0x90;
pub const VALID: u64 = 1 << 63;
/// Bytes of a command, and of the queue.
const COMMAND: u64 = 32;
const QUEUE: u64 = 4096;

/// The function, an event of it, and the LPI that it is mapped to.
const DEVICE: u64 = 8 << 32;
const EVENT: u64 = 3;
const LPI: u32 = 8192 + 40;
/// Acknowledged if nothing is pending.
const SPURIOUS: u32 = 1023;

pub type Command = [u64; 4];
const MAPD: Command = [8 | DEVICE, 4, VALID, 0];
pub const MAPC: Command = [9, 0, VALID, 0];
const MAPTI: Command = [10 | DEVICE, (LPI as u64) << 32 | EVENT, 0, 0];
const INT: Command = [3 | DEVICE, EVENT, 0, 0];
const CLEAR: Command = [4 | DEVICE, EVENT, 0, 0];
const INV: Command = [12 | DEVICE, EVENT, 0, 0];
const INVALL: Command = [13, 0, 0, 0];
const DISCARD: Command = [15 | DEVICE, EVENT, 0, 0];

/// A register of the ITS.
pub fn register(offset: u64) -> Reg32 {
    Reg32(ITS + offset)
}

fn write64(register: Reg32, value: u64) {
    register.write(value as u32);
    Reg32(register.0 + 4).write((value >> 32) as u32);
}

fn queue() -> u64 {
    place(0)
}

/// Configures the LPI, which the ITS reads at the next INV.
fn configure(byte: u32) {
    let at = place(1) + u64::from(LPI - 8192);
    Reg32(at & !3).write(byte << (at % 4 * 8));
}

/// Turns everything off, and on again with an empty queue.
pub fn reset() {
    gic::reset();
    register(CTLR).write(0);
    gicr(0, 0).write(0);
    configure(0);
    write64(gicr(0, 0x70), place(1) | 13);
    write64(gicr(0, 0x78), place(2) & !0xFFFF);
    gicr(0, 0).write(1);
    write64(register(CBASER), queue() | VALID);
    register(CWRITER).write(0);
    register(CTLR).write(1);
}

/// Executes commands, fewer than the queue has room for, by one store.
pub fn execute(commands: &[Command]) -> Outcome {
    let mut writer = u64::from(register(CWRITER).read());
    for command in commands {
        for (word, &value) in command.iter().enumerate() {
            write64(Reg32(queue() + writer + 8 * word as u64), value);
        }
        writer = (writer + COMMAND) % QUEUE;
    }
    register(CWRITER).write(writer as u32);
    check_eq!(register(CREADR).read(), writer as u32, "CREADR");
    Ok(())
}

fn acknowledge(expected: u32) -> Outcome {
    let intid = icc::iar1();
    check_eq!(intid, expected, "acknowledged");
    if intid != SPURIOUS {
        icc::eoir1(intid);
    }
    Ok(())
}

fn an_lpi_follows_its_configuration() -> Outcome {
    check_eq!(gicd(4).read() >> 17 & 1, 1, "GICD_TYPER.LPIS");
    execute(&[MAPD, MAPC, MAPTI, INT])?;
    acknowledge(SPURIOUS)?;
    configure(0xA1);
    acknowledge(SPURIOUS)?;
    execute(&[INV])?;
    acknowledge(LPI)?;
    acknowledge(SPURIOUS)?;
    execute(&[INT, CLEAR])?;
    acknowledge(SPURIOUS)?;
    // While it is in a list register, and again.
    for _ in 0..3 {
        execute(&[INT, INT])?;
        acknowledge(LPI)?;
        acknowledge(SPURIOUS)?;
    }
    gicr(0, 0).write(0);
    execute(&[INT])?;
    acknowledge(SPURIOUS)
}

fn one_store_executes_a_full_queue() -> Outcome {
    configure(0xA1);
    execute(&[MAPD, MAPC, MAPTI])?;
    for _ in 0..3 {
        let mut commands = [INVALL; (QUEUE / COMMAND) as usize - 1];
        commands[commands.len() - 1] = INT;
        execute(&commands)?;
        acknowledge(LPI)?;
    }
    acknowledge(SPURIOUS)
}

fn bad_commands_are_skipped() -> Outcome {
    configure(0xA1);
    execute(&[MAPD, MAPC, MAPTI])?;
    for code in [0, 2, 6, 7, 11, 16, 0x21, 0x2A, 0xFF] {
        execute(&[[code | DEVICE, u64::MAX, u64::MAX, u64::MAX]])?;
    }
    // Devices, events, LPIs, collections, CPUs and sizes that do not exist.
    let bad = [
        [3 | 9 << 32, EVENT, 0, 0],
        [3 | DEVICE, 32, 0, 0],
        [10 | DEVICE, 8191 << 32 | EVENT, 0, 0],
        [10 | DEVICE, 8448 << 32 | EVENT, 0, 0],
        [10 | DEVICE, u64::from(LPI) << 32 | EVENT, 0xFFFF, 0],
        [9, 0, VALID | 0xFFFF << 16, 0],
        [9, 0, VALID | 0xFFFF, 0],
        [8 | DEVICE, 31, VALID, 0],
        [1 | DEVICE, EVENT, 5, 0],
        [14, 0, u64::MAX, 0],
    ];
    execute(&bad)?;
    acknowledge(SPURIOUS)?;
    execute(&[INT])?;
    acknowledge(LPI)
}

fn discarded_events_are_silent() -> Outcome {
    configure(0xA1);
    execute(&[MAPD, MAPC, MAPTI, INT, DISCARD])?;
    acknowledge(SPURIOUS)?;
    execute(&[INT])?;
    acknowledge(SPURIOUS)?;
    execute(&[MAPTI, INT, [8 | DEVICE, 4, 0, 0]])?;
    acknowledge(SPURIOUS)?;
    execute(&[MAPD, MAPTI, INT, [9, 0, 0, 0], MAPC])?;
    acknowledge(SPURIOUS)?;
    execute(&[INT])?;
    acknowledge(LPI)
}

fn a_queue_outside_of_memory_stalls() -> Outcome {
    for place in [0, ITS, machine::ram().end, machine::ram().end - QUEUE, 0x000F_FFFF_FFFF_F000] {
        register(CTLR).write(0);
        write64(register(CBASER), place | VALID | 0xFF);
        register(CWRITER).write(0xF_FFE0);
        register(CTLR).write(1);
        register(CWRITER).write(0xF_FFE0);
        let inside = place == machine::ram().end - QUEUE;
        check_eq!(register(CREADR).read(), if inside { 0x1001 } else { 1 }, "CREADR with the queue at {place:#x}");
    }
    Ok(())
}

/// The configuration of all events of the function is read at once, when LPIs are enabled. Then all are pending.
fn a_queue_for_all_events_at_once() -> Outcome {
    const EVENTS: u32 = 32;
    for word in 0..EVENTS / 4 {
        Reg32(place(1) + u64::from(4 * word)).write(0xA1A1_A1A1);
    }
    execute(&[MAPD, MAPC])?;
    for event in 0..EVENTS {
        let event_of = |command: Command| [command[0], u64::from(8192 + event) << 32 | u64::from(event), 0, 0];
        execute(&[event_of(MAPTI)])?;
    }
    for _ in 0..4 {
        gicr(0, 0).write(0);
        gicr(0, 0).write(1);
        acknowledge(SPURIOUS)?;
        for event in 0..EVENTS {
            execute(&[[INT[0], event.into(), 0, 0]])?;
        }
        for _ in 0..EVENTS {
            let intid = icc::iar1();
            check!((8192..8192 + EVENTS).contains(&intid), "acknowledged {intid}");
            icc::eoir1(intid);
        }
        acknowledge(SPURIOUS)?;
    }
    Ok(())
}
