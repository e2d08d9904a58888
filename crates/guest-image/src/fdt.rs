//! Properties of device trees, and cells of interrupt specifiers.

use alloc::borrow::ToOwned;

use vm_fdt::{FdtWriter, FdtWriterResult};

/// First cell of a GIC interrupt specifier: a shared peripheral interrupt.
pub const GIC_SPI: u32 = 0;
/// Interrupt type: private (PPI).
pub const GIC_PPI: u32 = 1;
/// Last cell: rising edge.
pub const EDGE_RISING: u32 = 1;
/// Last cell: level-sensitive, active high.
pub const LEVEL_HIGH: u32 = 4;

/// Writes a property that is a list of strings.
pub fn string_list(fdt: &mut FdtWriter, name: &str, values: &[&str]) -> FdtWriterResult<()> {
    fdt.property_string_list(name, values.iter().map(|value| (*value).to_owned()).collect())
}
