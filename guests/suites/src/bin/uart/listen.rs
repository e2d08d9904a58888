//! Delivery of a device's interrupts.

use payload::prelude::*;

/// Routes a device's SPI to this CPU, level-sensitive.
pub fn listen(intid: u32) {
    gic::clear(gic::Bits::Enable, intid);
    gic::set_edge(intid, false);
    gic::route(intid, smp::this());
    gic::set(gic::Bits::Enable, intid);
}
