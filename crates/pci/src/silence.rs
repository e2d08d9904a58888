//! Deactivation of functions.

use crate::ConfigSpace;
use crate::register::{BRIDGE_ROM, BUS_MASTER, CLASS, COMMAND, HEADER, ID, ROM};

/// Class and subclass of host bridges: they are the bus, and have nothing to turn off.
const HOST_BRIDGE: u32 = 0x0600;

/// Stops a function from decoding and accessing anything, in any state that firmware left: memory, I/O, bus mastering
/// and the expansion ROM are off. A bridge then forwards nothing in either direction, which stops the functions behind
/// it, too.
pub fn silence(space: &mut impl ConfigSpace) {
    if !is_present(space) || space.read(CLASS) >> 16 == HOST_BRIDGE {
        return;
    }
    space.write(COMMAND, 0);
    match space.read(HEADER) >> 16 & 0x7f {
        0 => space.write(ROM, 0),
        1 => space.write(BRIDGE_ROM, 0),
        // CardBus bridges have none.
        _ => {}
    }
}

/// Stops a function from accessing memory. It still decodes its BARs.
pub fn stop_master(space: &mut impl ConfigSpace) {
    if is_present(space) {
        // Ones would clear the status bits above.
        let command = space.read(COMMAND) & 0xffff;
        space.write(COMMAND, command & !BUS_MASTER);
    }
}

fn is_present(space: &impl ConfigSpace) -> bool {
    space.read(ID) & 0xffff != 0xffff
}
