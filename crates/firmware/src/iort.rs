//! ACPI's I/O Remapping Table (Arm DEN 0049, "I/O Remapping Table"): how requests and messages of PCI functions go through an SMMUv3
//! to an ITS.

use core::ops::Range;

use heapless::Vec;

use crate::bytes::{u8_at, u16_at, u32_at, u64_at};
use crate::pci_map::{MOST_ENTRIES, MapEntry};

/// Routing IDs of bus 0.
const BUS: Range<u64> = 0..256;

/// Types of nodes.
const ITS_GROUP: u8 = 0;
const ROOT_COMPLEX: u8 = 2;
const SMMU_V3: u8 = 4;
/// Of a mapping's flags: all IDs have one output. Devices other than root complexes have such mappings.
const SINGLE: u32 = 1;
/// Bytes of a node's header, and of a mapping.
const HEADER: usize = 16;
const MAPPING: usize = 20;
/// End of the physical addresses that Stile uses.
const ADDRESSES: u64 = 1 << 48;

/// An SMMUv3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smmu {
    /// Physical address of its registers: a multiple of 4 KiB, not 0, below 2^48.
    pub address: u64,
    /// INTID of its event queue's interrupt, if that is an SPI.
    pub event: Option<u32>,
    /// Its accesses to tables and queues are cache-coherent, even if IDR0.COHACC is 0 (COHACC Override).
    pub is_coherent: bool,
}

/// The path of requests and messages of the functions on bus 0 of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The SMMU before them.
    pub smmu: Option<Smmu>,
    /// StreamIDs in that SMMU.
    pub streams: Vec<MapEntry, MOST_ENTRIES>,
    /// Identifier (as in the MADT) of the ITS that their messages go to.
    pub its: Option<u32>,
    /// DeviceIDs in that ITS.
    pub devices: Vec<MapEntry, MOST_ENTRIES>,
    /// Their memory accesses are cache-coherent.
    pub is_coherent: bool,
}

/// A node: its offset in the table, and its bytes.
#[derive(Clone, Copy)]
struct Node<'a> {
    at: usize,
    bytes: &'a [u8],
}

impl<'a> Node<'a> {
    /// The node at an offset.
    fn new(table: &'a [u8], at: usize) -> Option<Self> {
        let rest = table.get(at..)?;
        let length = usize::from(u16_at(rest, 1)?);
        let bytes = rest.get(..length).filter(|_| length >= HEADER)?;
        Some(Node { at, bytes })
    }

    fn kind(&self) -> Option<u8> {
        u8_at(self.bytes, 0)
    }

    fn mappings(&self) -> impl Iterator<Item = Mapping> + use<'a> {
        let (count, at) = (u32_at(self.bytes, 8).unwrap_or(0), u32_at(self.bytes, 12).unwrap_or(0));
        let all = self.bytes.get(at as usize..).unwrap_or(&[]).chunks_exact(MAPPING);
        all.take(count as usize).filter_map(Mapping::new)
    }

    fn smmu(&self) -> Option<Smmu> {
        const COHACC_OVERRIDE: u32 = 1;
        let (address, flags, event) = (u64_at(self.bytes, 16)?, u32_at(self.bytes, 24)?, u32_at(self.bytes, 44)?);
        let is_usable = address != 0 && address.is_multiple_of(4096) && address < ADDRESSES;
        let event = (32..1020).contains(&event).then_some(event);
        is_usable.then_some(Smmu { address, event, is_coherent: flags & COHACC_OVERRIDE != 0 })
    }

    /// The first ITS of a group.
    fn its(&self) -> Option<u32> {
        u32_at(self.bytes, 20).filter(|_| self.kind() == Some(ITS_GROUP) && u32_at(self.bytes, 16).is_some_and(|count| count != 0))
    }

    fn is_root_complex(&self, segment: u16) -> bool {
        self.kind() == Some(ROOT_COMPLEX) && u32_at(self.bytes, 28) == Some(segment.into())
    }
}

/// A range of IDs, the ID of the first one in the next node, and that node's offset.
struct Mapping {
    from: Range<u64>,
    to: u64,
    next: usize,
}

impl Mapping {
    /// Reads a mapping of more IDs than one.
    fn new(bytes: &[u8]) -> Option<Self> {
        let word = |at| u32_at(bytes, at).map(u64::from);
        let (start, others, to) = (word(0)?, word(4)?, word(8)?);
        let is_range = u32_at(bytes, 16)? & SINGLE == 0 && to + others <= u32::MAX.into();
        is_range.then_some(Mapping { from: start..start + others + 1, to, next: u32_at(bytes, 12)? as usize })
    }

    /// Returns the part of `ids` that it maps, and the ID of its first one in the next node.
    fn map(&self, ids: &Range<u64>) -> Option<(Range<u64>, u64)> {
        let part = self.from.start.max(ids.start)..self.from.end.min(ids.end);
        (!part.is_empty()).then(|| (part.clone(), self.to + (part.start - self.from.start)))
    }
}

/// Returns the path of the functions on bus 0 of a segment. Mappings to another SMMU or ITS than the first mapping's, malformed ones and
/// those beyond [`MOST_ENTRIES`] are left out: the functions that they are for have no StreamID or no DeviceID.
pub fn route(table: &[u8], segment: u16) -> Route {
    let mut route = Route { is_coherent: true, ..Route::default() };
    let mut smmu_at = None;
    for bridge in nodes(table).filter(|node| node.is_root_complex(segment)) {
        // Memory access properties: fully coherent.
        route.is_coherent &= u32_at(bridge.bytes, 16) == Some(1);
        let mappings = bridge.mappings().filter_map(|mapping| Some((mapping.map(&BUS)?, mapping.next)));
        // A broken table may have many.
        for ((ids, to), next) in mappings.take(MOST_ENTRIES) {
            let Some(node) = Node::new(table, next) else { continue };
            match (node.kind(), node.smmu()) {
                (Some(SMMU_V3), Some(smmu)) if *smmu_at.get_or_insert(node.at) == node.at => {
                    route.smmu = Some(smmu);
                    push(&mut route.streams, &ids, to);
                    let streams = to..to + (ids.end - ids.start);
                    for mapping in node.mappings() {
                        let Some((part, device)) = mapping.map(&streams) else { continue };
                        let first = ids.start + (part.start - to);
                        route.arrive(table, mapping.next, &(first..first + (part.end - part.start)), device);
                    }
                }
                // Messages alone: requests bypass SMMUs.
                (Some(ITS_GROUP), _) => route.arrive(table, next, &ids, to),
                _ => {}
            }
        }
    }
    route
}

impl Route {
    /// Messages of the functions `ids` arrive at the ITS group at an offset.
    fn arrive(&mut self, table: &[u8], at: usize, ids: &Range<u64>, device: u64) {
        if let Some(its) = Node::new(table, at).and_then(|node| node.its())
            && *self.its.get_or_insert(its) == its
        {
            push(&mut self.devices, ids, device);
        }
    }
}

fn push(entries: &mut Vec<MapEntry, MOST_ENTRIES>, ids: &Range<u64>, to: u64) {
    // IDs of bus 0, and 32-bit ones: mappings that exceed these were refused.
    let _ = entries.push(MapEntry { from: ids.start as u32, to: to as u32, count: (ids.end - ids.start) as u32 });
}

fn nodes(table: &[u8]) -> impl Iterator<Item = Node<'_>> {
    let (count, mut at) = (u32_at(table, 36).unwrap_or(0), u32_at(table, 40).map(|at| at as usize));
    core::iter::from_fn(move || {
        let node = Node::new(table, at?)?;
        at = node.at.checked_add(node.bytes.len());
        Some(node)
    })
    .take(count as usize)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    /// A mapping: first ID, number of IDs, the first one's ID in the next node, the next node's offset.
    pub type Ids = (u32, u32, u32, usize);

    fn node(kind: u8, body: &[u8], mappings: &[Ids]) -> std::vec::Vec<u8> {
        let at = HEADER + body.len();
        let mut bytes = vec![kind];
        bytes.extend(((at + MAPPING * mappings.len()) as u16).to_le_bytes());
        bytes.extend([0; 5]);
        bytes.extend((mappings.len() as u32).to_le_bytes());
        bytes.extend((at as u32).to_le_bytes());
        bytes.extend(body);
        for (from, count, to, next) in mappings {
            [*from, *count - 1, *to, *next as u32, 0].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        }
        bytes
    }

    pub fn its_group(ids: &[u32]) -> std::vec::Vec<u8> {
        let words = [&[ids.len() as u32], ids].concat();
        node(ITS_GROUP, words.iter().flat_map(|word| word.to_le_bytes()).collect::<std::vec::Vec<_>>().as_slice(), &[])
    }

    pub fn smmu(address: u64, event: u32, mappings: &[Ids]) -> std::vec::Vec<u8> {
        let mut body = vec![0; 52];
        body[..8].copy_from_slice(&address.to_le_bytes());
        body[8] = 1;
        body[28..32].copy_from_slice(&event.to_le_bytes());
        node(SMMU_V3, &body, mappings)
    }

    pub fn root_complex(segment: u32, coherent: u8, mappings: &[Ids]) -> std::vec::Vec<u8> {
        let mut body = vec![0; 20];
        (body[0], body[7]) = (coherent, 3);
        body[12..16].copy_from_slice(&segment.to_le_bytes());
        node(ROOT_COMPLEX, &body, mappings)
    }

    /// The table's contents after its header, with these nodes. The first one is at 48.
    pub fn body(nodes: &[std::vec::Vec<u8>]) -> std::vec::Vec<u8> {
        let mut bytes = (nodes.len() as u32).to_le_bytes().to_vec();
        bytes.extend([48, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(nodes.concat());
        bytes
    }

    fn table(nodes: &[std::vec::Vec<u8>]) -> std::vec::Vec<u8> {
        [vec![0; 36], body(nodes)].concat()
    }

    /// As QEMU's `virt` has it: a group, an SMMU, and a root complex with all IDs.
    pub fn qemu() -> std::vec::Vec<std::vec::Vec<u8>> {
        vec![its_group(&[0]), smmu(0x905_0000, 106, &[(0, 0x1_0000, 0, 48)]), root_complex(0, 1, &[(0, 0x1_0000, 0, 72)])]
    }

    fn entry(from: u32, to: u32, count: u32) -> MapEntry {
        MapEntry { from, to, count }
    }

    #[test]
    fn functions_of_qemu_go_through_its_smmu() {
        let route = route(&table(&qemu()), 0);
        let smmu = Smmu { address: 0x905_0000, event: Some(106), is_coherent: true };
        let all = Vec::from_slice(&[entry(0, 0, 256)]).unwrap();
        assert_eq!(route, Route { smmu: Some(smmu), streams: all.clone(), its: Some(0), devices: all, is_coherent: true });
        assert_eq!(super::route(&table(&qemu()), 1), Route { is_coherent: true, ..Route::default() });
        assert_eq!(super::route(&table(&qemu())[..200], 0), Route { is_coherent: true, ..Route::default() }, "cut short");
    }

    #[test]
    fn offsets_add_up() {
        let nodes = [
            its_group(&[7, 8]),
            smmu(0x905_0000, 0, &[(0x40, 0x1000, 0x2_0000, 48), (0, 0x40, 0x3_0000, 48)]),
            root_complex(0, 1, &[(8, 0x80, 0x38, 76), (0x88, 8, 0x5000, 76), (0x100, 8, 0x5000, 76)]),
        ];
        let route = route(&table(&nodes), 0);
        assert_eq!(route.streams[..], [entry(8, 0x38, 0x80), entry(0x88, 0x5000, 8)]);
        assert_eq!(route.devices[..], [entry(0x10, 0x2_0000, 0x78), entry(8, 0x3_0038, 8)]);
        assert_eq!((route.its, route.smmu.unwrap().event), (Some(7), None));
    }

    #[test]
    fn other_ways_are_left_out() {
        // The second SMMU's streams are not the first one's, and a group of another ITS is not the first one.
        let nodes = [
            its_group(&[0]),
            its_group(&[1]),
            smmu(0x905_0000, 106, &[(0, 0x80, 0, 48), (0x80, 0x80, 0, 72)]),
            smmu(0x906_0000, 107, &[(0, 0x100, 0, 48)]),
            root_complex(0, 1, &[(0, 0x10, 0, 96), (0x10, 0x10, 0, 204), (0x20, 0x10, 0, 48), (0x80, 0x10, 0x80, 96)]),
        ];
        let first = route(&table(&nodes), 0);
        assert_eq!(first.smmu.unwrap().address, 0x905_0000);
        assert_eq!(first.streams[..], [entry(0, 0, 0x10), entry(0x80, 0x80, 0x10)]);
        assert_eq!(first.devices[..], [entry(0, 0, 0x10), entry(0x20, 0, 0x10)]);
        // Devices without caches' contents, an SMMU without an address, IDs that wrap, a next node that is none.
        let mut nodes = qemu();
        nodes[2] = root_complex(0, 0, &[(0, 0x1_0000, 0, 72)]);
        assert!(!route(&table(&nodes), 0).is_coherent);
        nodes[1] = smmu(0, 106, &[(0, 0x1_0000, 0, 48)]);
        assert_eq!(route(&table(&nodes), 0).smmu, None);
        for mapping in [(0, 0x1_0000, 0xffff_8000, 72), (0, 0x1_0000, 0, 50), (0, 0x1_0000, 0, usize::MAX >> 33)] {
            nodes = qemu();
            nodes[2] = root_complex(0, 1, &[mapping]);
            assert_eq!(route(&table(&nodes), 0), Route { is_coherent: true, ..Route::default() });
        }
        // Many mappings: the first ones count.
        nodes[2] = root_complex(0, 1, &(0..200).map(|id| (id, 1, id, 72)).collect::<std::vec::Vec<_>>());
        assert_eq!(route(&table(&nodes), 0).streams.len(), MOST_ENTRIES);
    }

    fn check(route: &Route) {
        for entry in route.streams.iter().chain(&route.devices) {
            assert!(entry.count != 0 && entry.from + entry.count <= 256 && entry.to.checked_add(entry.count - 1).is_some(), "{entry:?}");
        }
        assert_eq!(route.smmu.is_none(), route.streams.is_empty());
        assert!(route.its.is_some() || route.devices.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            check(&route(&bytes, 0));
        }

        /// QEMU's table with other bytes.
        #[test]
        fn corrupt_tables(changes in proptest::collection::vec((36usize..216, any::<u8>()), 1..8)) {
            let mut bytes = table(&qemu());
            changes.iter().for_each(|&(at, value)| bytes[at] = value);
            check(&route(&bytes, 0));
        }
    }
}
