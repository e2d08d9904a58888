//! Maps of the routing IDs of a host bridge's functions to StreamIDs of an SMMU or DeviceIDs of an ITS (Devicetree bindings `pci-iommu` and
//! `pci-msi`).

use dtoolkit::fdt::FdtNode;
use heapless::Vec;

use crate::nodes::cells;

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
pub struct PciMap(Vec<MapEntry, MOST_ENTRIES>);

impl PciMap {
    /// Reads the entries of a host bridge's map (`iommu-map`, `msi-map`) that lead to the node `target`.
    pub fn read(bridge: &FdtNode<'_>, name: &str, target: Option<&FdtNode<'_>>) -> Self {
        let Some(target) = target.and_then(|target| cells(target, "phandle").first().copied()) else { return Self::default() };
        let cells = cells(bridge, name);
        let entry = |cells: &[u32]| match *cells {
            [from, to_node, to, count] if to_node == target => Some(MapEntry { from, to, count }),
            _ => None,
        };
        PciMap(cells.chunks_exact(4).filter_map(entry).collect())
    }

    /// Returns the StreamID or DeviceID of a routing ID.
    pub fn get(&self, id: u16) -> Option<u32> {
        self.0.iter().find_map(|entry| {
            let index = u32::from(id).checked_sub(entry.from).filter(|&index| index < entry.count)?;
            entry.to.checked_add(index)
        })
    }
}

#[cfg(test)]
mod tests {
    use dtoolkit::fdt::Fdt;

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
}
