//! Platform description from the device tree.

use dtoolkit::Node;
use dtoolkit::Property;
use dtoolkit::fdt::{Fdt, FdtNode};

use super::cpu::CPUS;
use super::uart;
use crate::arguments::Arguments;

/// The machine, and the command line's arguments.
pub struct Platform {
    /// CPUs: 1 to 64.
    pub cpus: usize,
    /// The GIC's distributor.
    pub gicd: u64,
    /// The rest of the GIC.
    pub interfaces: Cpus,
    /// The UART.
    pub uart: u64,
    /// Whether PSCI's conduit is SMC instead of HVC.
    pub smc: bool,
    /// The command line's arguments.
    pub arguments: Arguments,
}

/// Addresses of CPUs' parts of a GIC.
#[derive(Clone, Copy)]
pub enum Cpus {
    /// A GICv3.
    GicV3 {
        /// Redistributors: the first CPU's, followed by the others.
        gicr: u64,
    },
    /// A GICv2.
    GicV2 {
        /// Each CPU's own interface.
        gicc: u64,
    },
}

/// Start of RAM, where loaders that pass no device tree put one.
const RAM: u64 = 0x4000_0000;

impl Platform {
    /// Reads the device tree at `address`, or at the start of RAM.
    ///
    /// # Panics
    /// If the device tree is missing, or it has no GIC.
    pub fn read(address: u64) -> Self {
        let tree = [address, RAM].into_iter().find_map(tree).expect("a device tree");
        let uart = find(tree.root(), &["arm,pl011", "arm,sbsa-uart"]).and_then(|node| register(&node, 0)).unwrap_or(0);
        // Early, so that missing nodes can be reported.
        uart::set_base(uart);
        let gicv3 = find(tree.root(), &["arm,gic-v3"]);
        let gic = gicv3.or_else(|| find(tree.root(), &["arm,cortex-a15-gic", "arm,gic-400"])).expect("a GIC");
        let of_cpus = register(&gic, 1).expect("redistributors, or interfaces");
        let text = |path, name| tree.find_node(path).and_then(|node| node.property(name)?.value_as::<&str>().ok());
        Self {
            cpus: tree.cpus().map_or(1, |cpus| cpus.cpus().count()).clamp(1, CPUS),
            gicd: register(&gic, 0).expect("a distributor"),
            interfaces: if gicv3.is_some() { Cpus::GicV3 { gicr: of_cpus } } else { Cpus::GicV2 { gicc: of_cpus } },
            uart,
            smc: text("/psci", "method") == Some("smc"),
            arguments: Arguments::parse(text("/chosen", "bootargs").unwrap_or("")),
        }
    }
}

fn tree(address: u64) -> Option<Fdt<'static>> {
    if address < RAM || !address.is_multiple_of(8) {
        return None;
    }
    // SAFETY: RAM is mapped, the header has the tree's size, and the tree is never written.
    let has_magic = unsafe { (address as *const u32).read_volatile() } == 0xd00d_feed_u32.to_be();
    // SAFETY: RAM is mapped, a tree begins there, its header has its size, and it is never written.
    has_magic.then(|| unsafe { Fdt::from_raw_unchecked(address as *const u8) })
}

/// The first node compatible with one of `with`.
fn find(node: FdtNode<'static>, with: &[&str]) -> Option<FdtNode<'static>> {
    if node.compatible().is_some_and(|mut names| names.any(|name| with.contains(&name))) {
        return Some(node);
    }
    node.children().find_map(|child| find(child, with))
}

fn register(node: &FdtNode<'static>, index: usize) -> Option<u64> {
    node.reg().ok()??.nth(index)?.address().ok()
}
