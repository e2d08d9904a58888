//! A GICv2 with the Virtualization Extensions, by its device-tree node (binding `arm,gic`).

use dtoolkit::fdt::{Fdt, FdtNode};

use crate::nodes::{Span, find_each, registers};

/// Names of such interrupt controllers.
const COMPATIBLE: [&str; 3] = ["arm,gic-400", "arm,cortex-a15-gic", "arm,cortex-a7-gic"];

const PAGE: u64 = 4096;

/// Size of GICC where its pages are repeated for translation granules of 64 KiB: the second follows the last copy of the
/// first.
const REPEATED: u64 = 0x2_0000;

/// Registers, in physical memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gicv2 {
    /// Distributor: at least a page.
    pub gicd: Span,
    /// CPU interface: at least two pages.
    pub gicc: Span,
    /// Virtual interface control, up to the last list register at least.
    pub gich: Span,
    /// Virtual CPU interface, for guests: at least two pages.
    pub gicv: Span,
}

impl Gicv2 {
    /// The node of the first GICv2 that is enabled.
    pub fn find<'a>(tree: &Fdt<'a>) -> Option<FdtNode<'a>> {
        find_each(tree, COMPATIBLE).into_iter().flatten().next()
    }

    /// Reads the node's registers: all start at a page, do not overlap, and end below 2^48.
    ///
    /// # Errors
    /// A description: a region is missing, too small or misplaced.
    pub fn read<'a>(tree: &Fdt<'a>, gic: FdtNode<'a>) -> Result<Gicv2, &'static str> {
        let regions: [Span; 4] = registers::<4>(tree, gic)
            .into_array()
            .map_err(|_| "the GICv2 has no virtualization extensions: its node does not have four regions")?;
        let whole = |span: &Span| span.start / PAGE * PAGE..span.end.next_multiple_of(PAGE);
        let is_placed = |span: &Span| span.start.is_multiple_of(PAGE) && span.end <= 1 << 48;
        let overlap = |a: &Span, b: &Span| a.start < b.end && b.start < a.end;
        let are_apart = || (0..4).all(|n| (0..n).all(|m| !overlap(&whole(&regions[n]), &whole(&regions[m]))));
        if !regions.iter().all(is_placed) || !are_apart() {
            return Err("a region of the GICv2 does not start at a page, or overlaps another one");
        }
        let [gicd, gicc, gich, gicv] = regions;
        let size = |span: &Span| span.end - span.start;
        if size(&gicd) < PAGE || size(&gicc) < 2 * PAGE || size(&gich) < 0x140 || size(&gicv) < 2 * PAGE {
            return Err("a region of the GICv2 is too small: GICC and GICV have 8 KiB, GICD has 4 KiB");
        }
        Ok(Gicv2 { gicd, gicc, gich, gicv })
    }

    /// Offset in GICC of its first page, whose neighbour is the second.
    pub fn interface_offset(&self) -> u64 {
        if self.gicc.end - self.gicc.start >= REPEATED { 0xf000 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use vm_fdt::FdtWriter;

    fn read(name: &str, registers: &[u64]) -> Option<Result<Gicv2, &'static str>> {
        let mut fdt = FdtWriter::new().unwrap();
        let root = fdt.begin_node("").unwrap();
        fdt.property_u32("#address-cells", 2).unwrap();
        fdt.property_u32("#size-cells", 2).unwrap();
        let gic = fdt.begin_node("intc@ff841000").unwrap();
        fdt.property_string("compatible", name).unwrap();
        fdt.property_array_u64("reg", registers).unwrap();
        fdt.end_node(gic).unwrap();
        fdt.end_node(root).unwrap();
        let bytes: Vec<u8> = fdt.finish().unwrap();
        let tree = Fdt::new(&bytes).unwrap();
        Gicv2::find(&tree).map(|gic| Gicv2::read(&tree, gic))
    }

    /// The Raspberry Pi 4's.
    const GIC: [u64; 8] = [0xff84_1000, 0x1000, 0xff84_2000, 0x2000, 0xff84_4000, 0x2000, 0xff84_6000, 0x2000];

    #[test]
    fn a_gicv2_is_found_by_each_name() {
        for name in COMPATIBLE {
            let gic = read(name, &GIC).unwrap().unwrap();
            assert_eq!((gic.gicd.start, gic.gicv), (0xff84_1000, 0xff84_6000..0xff84_8000));
        }
        assert_eq!(read("arm,gic-v3", &GIC), None);
    }

    #[test]
    fn the_second_page_follows_the_last_copy_of_the_first() {
        let gic = read("arm,gic-400", &GIC).unwrap().unwrap();
        assert_eq!(gic.interface_offset(), 0);
        let wide = [0x1000_0000, 0x1_0000, 0x1002_0000, 0x2_0000, 0x1004_0000, 0x2_0000, 0x1006_0000, 0x2_0000];
        assert_eq!(read("arm,gic-400", &wide).unwrap().unwrap().interface_offset(), 0xf000);
    }

    #[test]
    fn unusable_regions_are_refused() {
        let with = |n: usize, value: u64| {
            let mut registers = GIC;
            registers[n] = value;
            registers
        };
        // Too small, unaligned, too high, and overlapping.
        let wrong =
            [(1, 0x800), (3, 0x1000), (5, 0x100), (7, 0x1000), (6, 0xff84_6800), (6, u64::MAX - 0x1fff), (6, 0xff84_1000), (3, 0x3000)];
        for (n, value) in wrong {
            assert!(read("arm,gic-400", &with(n, value)).unwrap().is_err(), "{n} {value:#x}");
        }
        assert!(read("arm,gic-400", &GIC[..4]).unwrap().is_err(), "no virtualization extensions");
        assert!(read("arm,gic-400", &[]).unwrap().is_err());
    }
}
