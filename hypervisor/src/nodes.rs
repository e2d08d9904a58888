//! NUMA nodes: places the memory of CPUs and VMs near to the CPUs that use it.

use core::fmt;
use core::ops::Range;

use heapless::Vec;
use stile_board::MAX_CPUS;
use stile_firmware::numa::{MAX_RANGES, Numa};
use stile_paging::frames::{Piece, Region};
use stile_sched::{CpuId, CpuSet};

use crate::console::log;
use crate::once::Once;

/// Memory that is preferred for an allocation; empty without preference.
pub type Near = Vec<Region, MAX_RANGES>;

struct Nodes {
    numa: &'static Numa,
    /// The CPUs' nodes, by number: found once, since a search among all CPUs for each of a VM takes too long for an exit.
    cpus: Vec<Option<u32>, MAX_CPUS>,
}

static NODES: Once<Nodes> = Once::new();

/// Publishes the board's nodes, before memory is set up. `cpus`: hardware identifiers of the CPUs, in the order in which they are numbered.
pub fn setup(numa: &'static Numa, cpus: impl Iterator<Item = u64>) {
    let nodes = Nodes { numa, cpus: cpus.take(MAX_CPUS).map(|id| numa.of_cpu(id)).collect() };
    if numa.is_several() {
        for node in numa.nodes() {
            let size: u64 = numa.memory_of(node).map(|range| range.end - range.start).sum();
            log!("node {node}: {} MiB; {}", size >> 20, Members(nodes.of_node(node)));
        }
    }
    NODES.set(nodes);
}

/// The memory that is nearest to some CPUs.
pub fn near(cpus: &CpuSet) -> Near {
    NODES.try_get().map_or_else(Vec::new, |nodes| nodes.near(cpus))
}

/// Logs on which nodes a VM's RAM is, if there are several. `near` is what [`near`] returned for its CPUs.
pub fn log_placement(name: &str, near: &Near, pieces: &[Piece]) {
    let Some(nodes) = NODES.try_get().filter(|nodes| nodes.numa.is_several()) else { return };
    let is_near = |piece: &Piece| near.iter().any(|region| region.base <= piece.pa && piece.pa - region.base < region.size);
    let note = if near.is_empty() || pieces.iter().all(is_near) { "" } else { ", as those of its CPUs have too little left" };
    log!("{name}: RAM on {}{note}", Used(nodes.numa, pieces));
}

impl Nodes {
    fn near(&self, cpus: &CpuSet) -> Near {
        let nodes = cpus.iter().filter_map(|cpu| self.cpus.get(cpu.index()).copied());
        self.numa.near(nodes).iter().map(region).collect()
    }

    fn of_node(&self, node: u32) -> CpuSet {
        let mut set = CpuSet::EMPTY;
        for (index, &of) in self.cpus.iter().enumerate() {
            if let Some(cpu) = CpuId::new(index).filter(|_| of == Some(node)) {
                set.set(cpu, true);
            }
        }
        set
    }
}

fn region(range: &Range<u64>) -> Region {
    Region { base: range.start, size: range.end - range.start }
}

/// CPUs, for the log: `CPUs 0, 1, 5`.
pub struct Members(pub CpuSet);

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.len() {
            0 => return f.write_str("no CPU"),
            1 => "CPU ",
            _ => "CPUs ",
        })?;
        for (n, cpu) in self.0.iter().enumerate() {
            write!(f, "{}{}", if n > 0 { ", " } else { "" }, cpu.index())?;
        }
        Ok(())
    }
}

/// The nodes of pieces of memory, for the log: `node 0, 1`.
struct Used<'a>(&'static Numa, &'a [Piece]);

impl fmt::Display for Used<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let overlaps = |range: &Range<u64>| self.1.iter().any(|piece| piece.pa < range.end && range.start < piece.pa + piece.size);
        let mut used = self.0.nodes().filter(|&node| self.0.memory_of(node).any(overlaps));
        match used.next() {
            Some(first) => write!(f, "node {first}")?,
            None => f.write_str("no node")?,
        }
        used.try_for_each(|node| write!(f, ", {node}"))
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::string::ToString;

    use super::*;

    fn numa() -> &'static Numa {
        let mut numa = Numa::new();
        numa.add_memory(0x4000_0000..0x8000_0000, 0);
        numa.add_memory(0x8000_0000..0xc000_0000, 1);
        [(0x100, 1), (0, 0), (1, 0)].into_iter().for_each(|(id, node)| numa.add_cpu(id, node));
        Box::leak(Box::new(numa))
    }

    #[test]
    fn cpus_are_numbered_in_order() {
        let numa = numa();
        let nodes = Nodes { numa, cpus: [1, 0x100, 0].into_iter().map(|id| numa.of_cpu(id)).collect() };
        assert_eq!(nodes.near(&CpuSet::from_bits(0b101))[..], [Region { base: 0x4000_0000, size: 0x4000_0000 }]);
        assert_eq!(nodes.near(&CpuSet::from_bits(0b010))[..], [Region { base: 0x8000_0000, size: 0x4000_0000 }]);
        assert!(nodes.near(&CpuSet::from_bits(0b111)).is_empty());
        assert_eq!(Members(nodes.of_node(0)).to_string(), "CPUs 0, 2");
        assert_eq!(Members(nodes.of_node(1)).to_string(), "CPU 1");
        assert_eq!(Members(nodes.of_node(2)).to_string(), "no CPU");
    }

    #[test]
    fn the_log_names_the_nodes_of_memory() {
        let piece = |pa, size| Piece { gpa: 0, pa, size };
        let used = |pieces: &[Piece]| Used(numa(), pieces).to_string();
        assert_eq!(used(&[piece(0x7fff_f000, 0x1000)]), "node 0");
        assert_eq!(used(&[piece(0x7fff_f000, 0x2000)]), "node 0, 1");
        assert_eq!(used(&[piece(0xc000_0000, 0x1000)]), "no node");
    }
}
