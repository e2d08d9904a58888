//! Eight functions that have MSI-X tables, all of whose vectors are translated: the most that an access to the ITS changes.

use payload::harness::Test;
use payload::prelude::*;
use payload::uart::Reg32;

use crate::edu::{MASTER, MEMORY, WINDOW, config};
use crate::its::{self, CTLR, Command, MAPC, VALID, execute};

pub const TESTS: &[Test] = payload::tests![vectors_of_all_functions_are_enabled, vectors_of_one_event_are_mapped];

const FUNCTIONS: u64 = 8;
const VECTORS: u64 = 32;
const TRANSLATER: u32 = 0x0809_0040;
/// Capability identifier of MSI-X, and the bit of its first word that enables it.
const MSIX: u32 = 0x11;
const ENABLE: u32 = 1 << 31;

/// The function `device`, whose table is placed. Returns the table's address.
fn table(device: u64) -> Option<u64> {
    let bar = WINDOW + device * 0x10_0000;
    let mut at = u64::from(config(device, 0x34).read() & 0xfc);
    // There are few capabilities.
    for _ in 0..16 {
        let word = config(device, at).read();
        if word & 0xff == MSIX {
            config(device, 4).write(0);
            config(device, 0x10).write(bar as u32);
            config(device, 0x14).write(0);
            config(device, 4).write(MEMORY | MASTER);
            config(device, at).write(word | ENABLE);
            let place = config(device, at + 4).read();
            return (place & 7 == 0).then_some(bar + u64::from(place & !7));
        }
        at = u64::from(word >> 8 & 0xfc);
    }
    None
}

/// Unmasks all vectors of all functions, each with the event that `event` gives it.
fn unmask(event: impl Fn(u64) -> u64) -> Outcome {
    for device in 1..=FUNCTIONS {
        let table = table(device);
        check!(table.is_some(), "device {device} has no table in its first BAR");
        let table = table.unwrap_or_default();
        for vector in 0..VECTORS {
            let entry = table + 16 * vector;
            for (word, value) in [TRANSLATER, 0, event(vector) as u32, 0].into_iter().enumerate() {
                Reg32(entry + 4 * word as u64).write(value);
            }
        }
    }
    Ok(())
}

fn map_device(device: u64) -> Command {
    [8 | device << 35, 4, VALID, 0]
}

/// Maps an event of a device to an LPI of its own.
fn map_event(device: u64, event: u64) -> Command {
    [10 | device << 35, (8192 + (device - 1) * VECTORS + event) << 32 | event, 0, 0]
}

/// Each vector has its own event. GITS_CTLR.Enabled translates all of them, or none.
fn vectors_of_all_functions_are_enabled() -> Outcome {
    unmask(|vector| vector)?;
    execute(&[MAPC])?;
    for device in 1..=FUNCTIONS {
        execute(&[map_device(device)])?;
        for event in 0..VECTORS {
            execute(&[map_event(device, event)])?;
        }
    }
    for _ in 0..4 {
        its::register(CTLR).write(0);
        check_eq!(its::register(CTLR).read(), 1 << 31, "CTLR");
        its::register(CTLR).write(1);
        check_eq!(its::register(CTLR).read(), 1, "CTLR");
    }
    Ok(())
}

/// All vectors have the same event, which each command of a queue maps again.
fn vectors_of_one_event_are_mapped() -> Outcome {
    unmask(|_| 0)?;
    execute(&[MAPC])?;
    for device in 1..=FUNCTIONS {
        execute(&[map_device(device)])?;
        execute(&[map_event(device, 0); 100])?;
    }
    Ok(())
}
