//! Xen's device tree: QEMU's `virt` board, and the domain that Xen starts (Xen, "Device Tree Bindings", "Dom0less").

use stile_blob::Gic;
use stile_board::map;
use vm_fdt::{FdtWriter, FdtWriterResult};

use stile::image::domain::{self, Domain};
use stile::image::dtb;
use stile::image::fdt::string_list;

/// The emulated machine.
#[derive(Debug)]
pub struct Machine {
    /// Physical CPUs.
    pub cpus: u32,
    /// RAM in bytes.
    pub memory: u64,
}

/// Bytes of QEMU's region for redistributors.
const GICR_SIZE: u64 = map::PL011_BASE - map::GICR_BASE;

/// Xen's command line: its console, and no scrubbing of free memory at boot, which idle CPUs would do while the probe measures
/// how they wake.
const PARAMETERS: &str = "console=dtuart bootscrub=0";

/// Builds the flattened device tree.
///
/// # Errors
/// Only if the command line has a NUL character.
pub fn build(machine: &Machine, domain: &Domain<'_>) -> FdtWriterResult<Vec<u8>> {
    let mut fdt = FdtWriter::new()?;
    let root = fdt.begin_node("")?;
    fdt.property_string("compatible", "linux,dummy-virt")?;
    fdt.property_u32("#address-cells", 2)?;
    fdt.property_u32("#size-cells", 2)?;
    fdt.property_u32("interrupt-parent", dtb::GIC)?;

    let chosen = fdt.begin_node("chosen")?;
    fdt.property_u32("#address-cells", 2)?;
    fdt.property_u32("#size-cells", 2)?;
    fdt.property_string("stdout-path", dtb::CONSOLE)?;
    fdt.property_string("xen,xen-bootargs", PARAMETERS)?;
    domain::node(&mut fdt, 1, domain)?;
    fdt.end_node(chosen)?;

    let memory = fdt.begin_node(&format!("memory@{:x}", map::RAM_BASE))?;
    fdt.property_string("device_type", "memory")?;
    fdt.property_array_u64("reg", &[map::RAM_BASE, machine.memory])?;
    fdt.end_node(memory)?;

    dtb::cpus(&mut fdt, machine.cpus as usize, None)?;
    dtb::timer(&mut fdt, false)?;

    let psci = fdt.begin_node("psci")?;
    string_list(&mut fdt, "compatible", &["arm,psci-1.0", "arm,psci-0.2"])?;
    fdt.property_string("method", "smc")?;
    fdt.end_node(psci)?;

    let registers = [map::GICD_BASE, map::GICD_SIZE, map::GICR_BASE, GICR_SIZE];
    let gic = dtb::begin_gic(&mut fdt, Gic::V3, &registers, true)?;
    fdt.end_node(gic)?;
    let uart = dtb::begin_uart(&mut fdt)?;
    fdt.end_node(uart)?;

    fdt.end_node(root)?;
    fdt.finish()
}

#[cfg(test)]
#[path = "../../../../cli/src/image/tests/tree_source.rs"]
mod tree_source;

#[cfg(test)]
mod tests {
    use super::tree_source::source;
    use super::*;

    #[test]
    fn whole_tree() {
        let machine = Machine { cpus: 2, memory: 256 << 20 };
        let domain = Domain { vcpus: 2, memory: 64 << 20, image: 0x4800_0000..0x4800_8000, bootargs: "n=64 only=ipi" };
        insta::assert_snapshot!("device_tree", source(&build(&machine, &domain).expect("a tree")));
    }
}
