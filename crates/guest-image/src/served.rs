//! Nodes of served devices in a guest's device tree.

use alloc::format;

use stile_board::{intid, map};
use vm_fdt::{FdtWriter, FdtWriterResult};

use super::fdt::{EDGE_RISING, GIC_SPI};

/// Writes the nodes of `serves` devices that the VM serves.
pub fn nodes(fdt: &mut FdtWriter, serves: usize) -> FdtWriterResult<()> {
    for (index, spi) in (0..serves as u64).zip(intid::SERVER..) {
        let registers = [map::SERVER_BASE + index * map::SERVER_STRIDE, map::SERVER_STRIDE];
        let events = [map::EVENTS_BASE + index * map::EVENTS_STRIDE, map::EVENTS_STRIDE];
        let reg = [registers, events].concat();
        node(fdt, "served-device", "stile,served-device", &reg, spi)?;
    }
    Ok(())
}

fn node(fdt: &mut FdtWriter, name: &str, compatible: &str, reg: &[u64], spi: u32) -> FdtWriterResult<()> {
    let node = fdt.begin_node(&format!("{name}@{:x}", reg[0]))?;
    fdt.property_string("compatible", compatible)?;
    fdt.property_array_u64("reg", reg)?;
    fdt.property_array_u32("interrupts", &[GIC_SPI, spi - intid::SPI_BASE, EDGE_RISING])?;
    fdt.property_null("dma-coherent")?;
    fdt.end_node(node)
}
