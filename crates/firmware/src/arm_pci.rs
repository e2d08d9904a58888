//! The PCI host bridge of an Arm machine with ACPI tables: configuration space (MCFG), the SMMU and the ITS (IORT), and the memory that
//! firmware has given to functions ([`root_bridge`]).

use heapless::Vec;

use crate::iort::{self, Route};
use crate::mcfg::{self, ConfigurationSpace};
use crate::pci_map::MapEntry;
use crate::root_bridge::{MOST_WINDOWS, Window};
use crate::tree_writer::TreeWriter;

/// The segment whose bridge is used: addresses of functions are in segment 0.
pub const SEGMENT: u16 = 0;
/// The property of `/chosen` that BARs stay where firmware put them (Devicetree Specification's schema of `/chosen`).
pub const PROBE_ONLY: &str = "linux,pci-probe-only";

/// The SMMU's phandle: the GIC has 1.
const SMMU: u32 = 2;
/// The ITS's phandle.
pub const ITS: u32 = 3;
/// Size of an SMMU's registers, in bytes.
const SMMU_SIZE: u64 = 0x2_0000;
/// Edge-triggered, rising.
const EDGE: u32 = 1;

/// The host bridge with bus 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmPci {
    /// Configuration space, from bus 0 on.
    pub space: ConfigurationSpace,
    /// The path of its functions' requests and messages.
    pub route: Route,
    /// Memory that firmware has given to functions. The tables do not have it: it is in AML.
    pub windows: Vec<Window, MOST_WINDOWS>,
}

impl ArmPci {
    /// Reads the tables MCFG and IORT; the latter may be empty. `None` without configuration space of bus 0.
    pub fn read(mcfg: &[u8], iort: &[u8]) -> Option<Self> {
        let space = mcfg::read(mcfg).into_iter().find(|space| space.segment == SEGMENT && space.buses.0 == 0)?;
        Some(ArmPci { space, route: iort::route(iort, SEGMENT), windows: Vec::new() })
    }

    /// Writes the nodes of the bridge and its SMMU.
    pub fn write(&self, tree: &mut TreeWriter<'_>) {
        let span = self.space.span();
        tree.begin_at("pcie", Some(span.start));
        tree.text("compatible", "pci-host-ecam-generic");
        tree.cells("#address-cells", &[3]);
        tree.cells("#size-cells", &[2]);
        tree.reg(core::iter::once(span));
        tree.cells("bus-range", &[0, self.space.buses.1.into()]);
        let mut ranges: Vec<u32, { 7 * MOST_WINDOWS }> = Vec::new();
        for Window { pci, cpu } in &self.windows {
            /// 32-bit and 64-bit memory.
            const SPACES: [u32; 2] = [0b10 << 24, 0b11 << 24];
            let [pci_high, pci_low, cpu_high, cpu_low, high, low] = words([pci.start, *cpu, pci.end - pci.start]);
            let space = SPACES[usize::from(pci.end > 1 << 32)];
            // There is room for all windows.
            let _ = ranges.extend_from_slice(&[space, pci_high, pci_low, cpu_high, cpu_low, high, low]);
        }
        tree.cells("ranges", &ranges);
        map(tree, "iommu-map", SMMU, &self.route.streams);
        map(tree, "msi-map", ITS, &self.route.devices);
        if self.route.is_coherent {
            tree.empty("dma-coherent");
        }
        tree.end();
        if let Some(smmu) = &self.route.smmu {
            tree.begin_at("iommu", Some(smmu.address));
            tree.text("compatible", "arm,smmu-v3");
            tree.reg(core::iter::once(smmu.address..smmu.address + SMMU_SIZE));
            if let Some(intid) = smmu.event {
                tree.cells("interrupts", &[0, intid - 32, EDGE]);
            }
            if smmu.is_coherent {
                tree.empty("dma-coherent");
            }
            tree.cells("phandle", &[SMMU]);
            tree.end();
        }
    }
}

/// Writes a map of routing IDs to IDs of the node with a phandle.
fn map(tree: &mut TreeWriter<'_>, name: &str, phandle: u32, entries: &[MapEntry]) {
    let mut cells: Vec<u32, { 4 * crate::pci_map::MOST_ENTRIES }> = Vec::new();
    for MapEntry { from, to, count } in entries {
        // There is room for all entries.
        let _ = cells.extend_from_slice(&[*from, phandle, *to, *count]);
    }
    tree.cells(name, &cells);
}

/// The halves of numbers, upper ones first.
fn words([a, b, c]: [u64; 3]) -> [u32; 6] {
    [(a >> 32) as u32, a as u32, (b >> 32) as u32, b as u32, (c >> 32) as u32, c as u32]
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges")]
mod tests {
    use dtoolkit::Node;
    use dtoolkit::fdt::Fdt;

    use super::*;
    use crate::arm_tables::ArmTables;
    use crate::described::describe;
    use crate::described::tests::{fields, machine, put_table};
    use crate::flat::Flat;
    use crate::iort::tests::{body, its_group, root_complex, smmu};
    use crate::nodes::{cells, find, intid, spans};
    use crate::pci_map::PciMap;

    /// Checks the tree of the tables in `memory`, and of these windows.
    fn tree_of(memory: &Flat, windows: &[Window], check: impl FnOnce(&Fdt<'_>)) {
        let mut tables = ArmTables::read(memory, 0).unwrap();
        tables.pci.as_mut().unwrap().windows.extend_from_slice(windows).unwrap();
        let mut to = [0; 4096];
        let length = describe(&tables, None, None, None, core::iter::empty(), core::iter::empty(), &mut to).unwrap();
        check(&crate::device_tree::parse(&to[..length]).unwrap());
    }

    fn maps(tree: &Fdt<'_>) -> [PciMap; 2] {
        let bridge = find(tree, "pci-host-ecam-generic").unwrap();
        [("iommu-map", "arm,smmu-v3"), ("msi-map", "arm,gic-v3-its")]
            .map(|(name, target)| PciMap::read(&bridge, name, find(tree, target).as_ref()))
    }

    #[test]
    fn bridge_and_smmu_are_described() {
        let windows = [Window::new(0x1000_0000, 0x1000_0000, 0x5000), Window::new(0x80_0000_0000, 0x81_0000_0000, 0x4000)];
        tree_of(&machine(), &windows.map(Option::unwrap), |tree| {
            let bridge = find(tree, "pci-host-ecam-generic").unwrap();
            assert_eq!(spans::<2>(bridge)[..], [0x40_1000_0000..0x40_2000_0000]);
            let ranges = [0x200_0000, 0, 0x1000_0000, 0, 0x1000_0000, 0, 0x5000, 0x300_0000, 0x80, 0, 0x81, 0, 0, 0x4000];
            assert_eq!(cells(&bridge, "ranges")[..], ranges);
            assert_eq!(cells(&bridge, "bus-range")[..], [0, 255]);
            assert!(bridge.property("dma-coherent").is_some());
            assert_eq!(maps(tree).map(|map| [map.get(0), map.get(0xff), map.get(0x100)]), [[Some(0), Some(0xff), None]; 2]);
            let smmu = find(tree, "arm,smmu-v3").unwrap();
            assert_eq!(spans::<2>(smmu)[..], [0x905_0000..0x907_0000]);
            assert_eq!((intid(&cells(&smmu, "interrupts")), cells(&smmu, "interrupts")[2]), (Some(106), EDGE));
            assert_eq!(cells(&tree.find_node("/chosen").unwrap(), PROBE_ONLY)[..], [1]);
        });
    }

    #[test]
    fn the_its_is_that_of_the_functions() {
        let mut memory = machine();
        let its = |id: u8| fields(20, &[(0, &[0x0f, 20]), (4, &[id]), (8, &(0x808_0000 + u64::from(id) * 0x10_0000).to_le_bytes())]);
        put_table(&mut memory, 0x1000, b"APIC", &[std::vec![0; 8], its(0), its(3)].concat());
        let tables = |memory: &mut Flat, id| {
            let nodes = [its_group(&[id]), smmu(0x905_0000, 106, &[(0, 256, 0, 48)]), root_complex(0, 1, &[(0, 256, 0, 72)])];
            put_table(memory, 0x6900, b"IORT", &body(&nodes));
            ArmTables::read(memory, 0).unwrap()
        };
        let found = tables(&mut memory, 3);
        assert_eq!((found.its, found.pci.unwrap().route.devices.len()), (Some(0x838_0000), 1));
        // An unknown one.
        let found = tables(&mut memory, 4);
        assert_eq!((found.its, found.pci.unwrap().route.devices.len()), (Some(0x808_0000), 0));
    }

    #[test]
    fn tables_may_be_missing() {
        let mut memory = machine();
        put_table(&mut memory, 0x6900, b"OEM0", &[]);
        let pci = ArmTables::read(&memory, 0).unwrap().pci.unwrap();
        assert!(pci.route.smmu.is_none() && pci.route.streams.is_empty() && pci.route.devices.is_empty());
        // Bus 0 of another segment, and other buses of segment 0.
        for (at, value) in [(16, 1), (18, 1)] {
            let space = fields(24, &[(8, &0x40_1000_0000_u64.to_le_bytes()), (19, &[255]), (at, &[value])]);
            put_table(&mut memory, 0x6800, b"MCFG", &space);
            assert_eq!(ArmTables::read(&memory, 0).unwrap().pci, None);
        }
    }
}
