//! Maps of the routing IDs of a host bridge's functions to StreamIDs of an SMMU or DeviceIDs of an ITS (Devicetree bindings `pci-iommu` and
//! `pci-msi`).

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};
use heapless::Vec;

use crate::nodes::{cells, first, is_compatible, is_enabled};

/// Maximum number of entries of a map that are read.
pub const MOST_ENTRIES: usize = 8;

/// Consecutive routing IDs, and their StreamIDs or DeviceIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The first routing ID.
    pub from: u32,
    /// Its StreamID or DeviceID.
    pub to: u32,
    /// Number of routing IDs.
    pub count: u32,
}

/// A map of routing IDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciMap {
    entries: Vec<MapEntry, MOST_ENTRIES>,
    /// Bits of routing IDs that are mapped (`iommu-map-mask`, `msi-map-mask`): functions that differ in others only have one ID.
    mask: u32,
}

impl PciMap {
    /// Reads the entries of a host bridge's map (`iommu-map`, `msi-map`) that lead to the node `target`, and the map's mask.
    pub fn read(bridge: &FdtNode<'_>, name: &str, target: Option<&FdtNode<'_>>) -> Self {
        let Some(target) = target.and_then(phandle) else { return Self::default() };
        let map = cells(bridge, name);
        let entry = |cells: &[u32]| match *cells {
            [from, to_node, to, count] if to_node == target => Some(MapEntry { from, to, count }),
            _ => None,
        };
        let mask = bridge.properties().find(|property| property.name().strip_prefix(name) == Some("-mask"));
        let mask = mask.and_then(|mask| cells(bridge, mask.name()).first().copied()).unwrap_or(u32::MAX);
        PciMap { entries: map.chunks_exact(4).filter_map(entry).collect(), mask }
    }

    /// Returns the StreamID or DeviceID of a routing ID.
    pub fn get(&self, id: u16) -> Option<u32> {
        self.entries.iter().find_map(|entry| {
            let index = (u32::from(id) & self.mask).checked_sub(entry.from).filter(|&index| index < entry.count)?;
            entry.to.checked_add(index)
        })
    }
}

/// Returns the node that a host bridge's map leads to, by its first entry. `found`: the first node that is compatible with `compatible`, which
/// most boards have once.
pub fn target<'a>(tree: &Fdt<'a>, bridge: &FdtNode<'_>, name: &str, compatible: &str, found: Option<FdtNode<'a>>) -> Option<FdtNode<'a>> {
    let Some(&wanted) = cells(bridge, name).get(1) else { return found };
    if found.as_ref().and_then(phandle) == Some(wanted) {
        return found;
    }
    first(tree.root(), &|node| phandle(node) == Some(wanted) && is_compatible(node, compatible) && is_enabled(node)).or(found)
}

fn phandle(node: &FdtNode<'_>) -> Option<u32> {
    cells(node, "phandle").first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_for_another_node_do_not_count() {
        let mut fdt = vm_fdt::FdtWriter::new().unwrap();
        let root = fdt.begin_node("").unwrap();
        fdt.property_array_u32("map", &[0, 7, 0x100, 8, 8, 6, 0x200, 8, 16, 7, 0xffff_fff0, 32, 64, 7, 1]).unwrap();
        let target = fdt.begin_node("target").unwrap();
        fdt.property_phandle(7).unwrap();
        fdt.end_node(target).unwrap();
        let other = fdt.begin_node("other").unwrap();
        fdt.end_node(other).unwrap();
        fdt.end_node(root).unwrap();
        let bytes = fdt.finish().unwrap();
        let tree = Fdt::new(&bytes).unwrap();
        let map = |target: Option<&str>| PciMap::read(&tree.root(), "map", target.map(|path| tree.find_node(path).unwrap()).as_ref());
        let found = map(Some("/target"));
        let ids = [0, 7, 8, 16, 31, 32, 64].map(|id| found.get(id));
        assert_eq!(ids, [Some(0x100), Some(0x107), None, Some(0xffff_fff0), Some(0xffff_ffff), None, None]);
        assert_eq!([map(Some("/other")), map(None)], [PciMap::default(), PciMap::default()]);
    }

    #[test]
    fn masked_bits_do_not_tell_functions_apart() {
        let mut fdt = vm_fdt::FdtWriter::new().unwrap();
        let root = fdt.begin_node("").unwrap();
        fdt.property_phandle(7).unwrap();
        fdt.property_array_u32("iommu-map", &[0, 7, 0x100, 0x1_0000]).unwrap();
        fdt.property_u32("iommu-map-mask", 0xfff8).unwrap();
        fdt.property_array_u32("msi-map", &[0, 7, 0, 0x1_0000]).unwrap();
        fdt.property_u32("msi-map-mask", 0xff).unwrap();
        fdt.property_array_u32("map", &[0, 7, 0, 0x1_0000]).unwrap();
        fdt.end_node(root).unwrap();
        let bytes = fdt.finish().unwrap();
        let tree = Fdt::new(&bytes).unwrap();
        let ids = |name, ids: [u16; 3]| {
            let map = PciMap::read(&tree.root(), name, Some(&tree.root()));
            ids.map(|id| map.get(id).unwrap())
        };
        assert_eq!(ids("iommu-map", [8, 9, 0x10]), [0x108, 0x108, 0x110]);
        assert_eq!(ids("msi-map", [8, 9, 0x108]), [8, 9, 8]);
        assert_eq!(ids("map", [8, 9, 0x108]), [8, 9, 0x108], "no mask");
    }

    #[test]
    fn one_of_several_smmus_is_the_bridges() {
        let mut fdt = vm_fdt::FdtWriter::new().unwrap();
        let root = fdt.begin_node("").unwrap();
        fdt.property_array_u32("map", &[0, 7, 0, 256]).unwrap();
        fdt.property_array_u32("elsewhere", &[0, 9, 0, 256]).unwrap();
        for (name, phandle, compatible) in [("one", 6, "smmu"), ("two", 7, "smmu"), ("three", 9, "other")] {
            let node = fdt.begin_node(name).unwrap();
            fdt.property_string("compatible", compatible).unwrap();
            fdt.property_phandle(phandle).unwrap();
            fdt.end_node(node).unwrap();
        }
        fdt.end_node(root).unwrap();
        let bytes = fdt.finish().unwrap();
        let tree = Fdt::new(&bytes).unwrap();
        let of = |name, found: &str| target(&tree, &tree.root(), name, "smmu", tree.find_node(found)).map(|node| node.name());
        assert_eq!([of("map", "/one"), of("map", "/two"), of("map", "/none")], [Some("two"); 3]);
        // Without a map, and with one that leads to another kind of node.
        assert_eq!([of("none", "/one"), of("elsewhere", "/one"), of("none", "/none")], [Some("one"), Some("one"), None]);
    }
}
