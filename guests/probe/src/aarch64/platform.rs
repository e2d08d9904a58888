//! What the device tree says.

use fdt::Fdt;
use fdt::node::FdtNode;

use super::cpu::CPUS;
use super::uart;
use crate::arguments::Arguments;

/// The machine, and what the command line asks for.
pub struct Platform {
    /// CPUs: 1 or 2.
    pub cpus: usize,
    /// GICv3 distributor.
    pub gicd: u64,
    /// GICv3 redistributors: the first CPU's, the others follow.
    pub gicr: u64,
    /// The UART.
    pub uart: u64,
    /// Whether PSCI is called by SMC, and not by HVC.
    pub smc: bool,
    /// What the command line asks for.
    pub arguments: Arguments,
}

/// Start of RAM, where loaders that pass no device tree put one.
const RAM: u64 = 0x4000_0000;

impl Platform {
    /// Reads the device tree at `address`, or at the start of RAM.
    ///
    /// # Panics
    /// There is none, or it names no GICv3.
    pub fn read(address: u64) -> Self {
        let tree = [address, RAM].into_iter().find_map(tree).expect("a device tree");
        let uart = tree.find_compatible(&["arm,pl011", "arm,sbsa-uart"]).and_then(|node| register(&node, 0)).unwrap_or(0);
        // So that what follows can be said to be missing.
        uart::set_base(uart);
        let gic = tree.find_compatible(&["arm,gic-v3"]).expect("a GICv3");
        let psci = tree.find_node("/psci").and_then(|node| node.property("method")?.as_str());
        Self {
            cpus: tree.cpus().count().clamp(1, CPUS),
            gicd: register(&gic, 0).expect("a distributor"),
            gicr: register(&gic, 1).expect("redistributors"),
            uart,
            smc: psci == Some("smc"),
            arguments: Arguments::parse(tree.chosen().bootargs().unwrap_or("")),
        }
    }
}

fn tree(address: u64) -> Option<Fdt<'static>> {
    if address < RAM || !address.is_multiple_of(8) {
        return None;
    }
    // SAFETY: it is RAM that nobody writes to; what is no device tree is recognised as such.
    unsafe { Fdt::from_ptr(address as *const u8) }.ok()
}

fn register(node: &FdtNode<'_, '_>, index: usize) -> Option<u64> {
    Some(node.reg()?.nth(index)?.starting_address as u64)
}
