//! Nodes of memory and CPUs (NUMA), from a device tree (Devicetree binding "NUMA") or ACPI's SRAT.

use core::ops::Range;

use dtoolkit::fdt::Fdt;
use heapless::Vec;

use crate::MAX_CPUS;
use crate::nodes::{affinity, cells, is_enabled, spans, text, walk};

/// Maximum number of memory ranges; further ones have no node.
pub const MAX_RANGES: usize = 32;

/// The property with a node's number.
pub const PROPERTY: &str = "numa-node-id";

/// The node of each memory range and CPU, by the numbers that firmware gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numa {
    memory: Vec<(Range<u64>, u32), MAX_RANGES>,
    cpus: Vec<(u64, u32), MAX_CPUS>,
}

impl Numa {
    /// A machine without nodes.
    pub const fn new() -> Self {
        Self { memory: Vec::new(), cpus: Vec::new() }
    }

    /// Reads a device tree. CPUs are identified by their MPIDR affinities.
    pub fn read(tree: &Fdt<'_>) -> Self {
        let mut numa = Self::new();
        walk(tree.root(), &mut |node| {
            let &[number] = &cells(&node, PROPERTY)[..] else { return };
            let is = |kind: &str| text(&node, "device_type") == Some(kind) && is_enabled(&node);
            if is("memory") {
                spans::<8>(node).into_iter().for_each(|range| numa.add_memory(range, number));
            } else if is("cpu") {
                numa.add_cpu(affinity(&node), number);
            }
        });
        numa
    }

    /// Adds a memory range.
    pub fn add_memory(&mut self, range: Range<u64>, node: u32) {
        if !range.is_empty() {
            let _ = self.memory.push((range, node));
        }
    }

    /// Adds a CPU by its hardware identifier: MPIDR affinities or APIC ID.
    pub fn add_cpu(&mut self, id: u64, node: u32) {
        let _ = self.cpus.push((id, node));
    }

    /// Whether there are several nodes with memory.
    pub fn is_several(&self) -> bool {
        self.memory.first().is_some_and(|(_, first)| self.memory.iter().any(|(_, node)| node != first))
    }

    /// The nodes that have memory or CPUs, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        let all = || self.memory.iter().map(|&(_, node)| node).chain(self.cpus.iter().map(|&(_, node)| node));
        core::iter::successors(all().min(), move |&last| all().filter(|&node| node > last).min())
    }

    /// The node of a CPU, by its hardware identifier.
    pub fn of_cpu(&self, id: u64) -> Option<u32> {
        self.cpus.iter().find(|&&(cpu, _)| cpu == id).map(|&(_, node)| node)
    }

    /// The memory of a node.
    pub fn memory_of(&self, node: u32) -> impl Iterator<Item = &Range<u64>> {
        self.memory.iter().filter(move |&&(_, of)| of == node).map(|(range, _)| range)
    }

    /// The node of an address.
    pub fn at(&self, address: u64) -> Option<u32> {
        self.memory.iter().find(|(range, _)| range.contains(&address)).map(|&(_, node)| node)
    }

    /// The memory on the nodes of some CPUs ([`Numa::of_cpu`]). Empty if all memory is equally near: on a machine without
    /// nodes, if a CPU has no node, and if the CPUs' nodes have all memory or none.
    pub fn near(&self, nodes: impl Iterator<Item = Option<u32>>) -> Vec<Range<u64>, MAX_RANGES> {
        let mut is_near = [false; MAX_RANGES];
        let mut last = None;
        for node in nodes {
            if node.is_none() {
                return Vec::new();
            }
            // Most CPUs are of the same node as the one before.
            if node != last {
                is_near.iter_mut().zip(&self.memory).for_each(|(is_near, &(_, of))| *is_near |= Some(of) == node);
            }
            last = node;
        }
        let near: Vec<_, MAX_RANGES> =
            self.memory.iter().zip(is_near).filter(|(_, is_near)| *is_near).map(|((range, _), _)| range.clone()).collect();
        if near.len() == self.memory.len() { Vec::new() } else { near }
    }

    /// Splits a bank of memory where its node changes.
    pub fn split(&self, bank: Range<u64>) -> impl Iterator<Item = (Range<u64>, Option<u32>)> {
        let mut start = bank.start;
        core::iter::from_fn(move || {
            if start >= bank.end {
                return None;
            }
            let edges = self.memory.iter().flat_map(|(range, _)| [range.start, range.end]);
            let end = edges.filter(|&edge| edge > start).min().unwrap_or(u64::MAX).min(bank.end);
            let part = start..end;
            start = end;
            Some((part.clone(), self.at(part.start)))
        })
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges")]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::device_tree;
    use crate::tree_writer::TreeWriter;

    fn two_nodes() -> Numa {
        let mut numa = Numa::new();
        numa.add_memory(0x1000..0x3000, 4);
        numa.add_memory(0x3000..0x4000, 1);
        numa.add_memory(0x8000..0x9000, 4);
        [(0x100, 4), (0x101, 1), (0x102, 1)].into_iter().for_each(|(id, node)| numa.add_cpu(id, node));
        numa
    }

    #[test]
    fn memory_is_near_to_the_cpus_of_its_node() {
        let numa = two_nodes();
        let near = |cpus: &[u64]| numa.near(cpus.iter().map(|&cpu| numa.of_cpu(cpu)));
        assert_eq!(near(&[0x101, 0x102])[..], [0x3000..0x4000]);
        assert_eq!(near(&[0x100])[..], [0x1000..0x3000, 0x8000..0x9000]);
        assert_eq!(near(&[0x101, 0x101, 0x102])[..], [0x3000..0x4000]);
        for no_preference in [&[0x100, 0x101][..], &[0x101, 7], &[7], &[]] {
            assert_eq!(near(no_preference)[..], [], "{no_preference:x?}");
        }
        assert_eq!(Numa::new().near([None].into_iter())[..], []);
        assert_eq!((numa.is_several(), Numa::new().is_several()), (true, false));
        assert_eq!(numa.nodes().collect::<Vec<_>>(), [1, 4]);
        assert_eq!(numa.memory_of(4).cloned().collect::<Vec<_>>(), [0x1000..0x3000, 0x8000..0x9000]);
    }

    #[test]
    fn banks_are_split_between_nodes() {
        let split: Vec<_> = two_nodes().split(0..0x8800).collect();
        let expected =
            [(0..0x1000, None), (0x1000..0x3000, Some(4)), (0x3000..0x4000, Some(1)), (0x4000..0x8000, None), (0x8000..0x8800, Some(4))];
        assert_eq!(split, expected);
        assert_eq!(Numa::new().split(5..9).collect::<Vec<_>>(), [(5..9, None)]);
        assert_eq!(two_nodes().split(9..9).count(), 0);
    }

    #[test]
    fn a_device_tree_has_nodes() {
        let mut to = [0; 1024];
        let mut tree = TreeWriter::new(core::iter::empty(), &mut to);
        tree.begin("");
        tree.cells("#address-cells", &[2]);
        tree.cells("#size-cells", &[2]);
        for (start, node) in [(0x4000_0000_u64, Some(1)), (0x5000_0000, Some(0)), (0x6000_0000, None)] {
            tree.begin_at("memory", Some(start));
            tree.text("device_type", "memory");
            tree.reg(core::iter::once(start..start + 0x1000_0000));
            if let Some(node) = node {
                tree.cells(PROPERTY, &[node]);
            }
            tree.end();
        }
        tree.begin("cpus");
        tree.cells("#address-cells", &[1]);
        tree.cells("#size-cells", &[0]);
        for (cpu, node) in [(0, 1), (0x101, 0)] {
            tree.begin_at("cpu", Some(u64::from(cpu)));
            tree.text("device_type", "cpu");
            tree.cells("reg", &[cpu]);
            tree.cells(PROPERTY, &[node]);
            tree.end();
        }
        tree.end();
        tree.end();
        let length = tree.finish().unwrap();
        let numa = Numa::read(&device_tree::parse(&to[..length]).unwrap());
        assert_eq!((numa.of_cpu(0), numa.of_cpu(0x101), numa.of_cpu(1)), (Some(1), Some(0), None));
        assert_eq!(numa.near([numa.of_cpu(0x101)].into_iter())[..], [0x5000_0000..0x6000_0000]);
        assert_eq!((numa.at(0x4000_0000), numa.at(0x6000_0000)), (Some(1), None));
    }

    proptest! {
        /// Parts are in order, complete, and of one node each; any number of ranges may be added.
        #[test]
        fn any_split(ranges in proptest::collection::vec((0..40u64, 0..20u64, 0..3u32), 0..40), bank in 0..40u64, length in 0..40u64) {
            let mut numa = Numa::new();
            for &(start, length, node) in &ranges {
                numa.add_memory(start..start + length, node);
            }
            let mut expected = bank;
            for (part, node) in numa.split(bank..bank + length) {
                prop_assert_eq!(part.start, expected);
                prop_assert!(!part.is_empty());
                expected = part.end;
                // The first range of overlapping ones decides.
                prop_assert!(part.clone().all(|at| numa.at(at) == node));
            }
            prop_assert_eq!(expected, bank + length);
            let _ = (numa.is_several(), numa.nodes().count(), vec![numa.near([numa.of_cpu(1)].into_iter())]);
        }
    }
}
