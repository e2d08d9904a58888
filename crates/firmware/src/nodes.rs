//! Reading nodes and properties of a board's device tree.

use core::ops::Range;

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};
use heapless::Vec;

/// Physical addresses.
pub type Span = Range<u64>;

/// INTID of a GIC interrupt specifier: type (0 is an SPI, 1 a PPI), number.
pub fn intid(cells: &[u32]) -> Option<u32> {
    match *cells {
        [0, number, ..] => number.checked_add(32),
        [1, number, ..] => number.checked_add(16),
        _ => None,
    }
}

/// The node itself and all nodes below it, in the order of the tree.
pub fn walk<'a>(node: FdtNode<'a>, visit: &mut impl FnMut(FdtNode<'a>)) {
    visit(node);
    node.children().for_each(|child| walk(child, visit));
}

/// The first node below `node`, or `node` itself, that satisfies a condition.
pub fn first<'a>(node: FdtNode<'a>, condition: &impl Fn(&FdtNode<'a>) -> bool) -> Option<FdtNode<'a>> {
    if condition(&node) { Some(node) } else { node.children().find_map(|child| first(child, condition)) }
}

/// The cells of a property.
pub fn cells<'a>(node: &FdtNode<'a>, name: &str) -> Vec<u32, 32> {
    let property = node.property(name);
    let value = property.as_ref().map_or(&[][..], |property| property.value());
    value.chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).take(32).collect()
}

/// The MPIDR affinities of a `cpu` node of an Arm board: the one or two cells of its `reg`.
pub fn affinity(cpu: &FdtNode<'_>) -> u64 {
    cells(cpu, "reg").iter().fold(0, |value, &cell| value << 32 | u64::from(cell))
}

/// The property with a CPU's performance relative to other CPUs (Devicetree binding "CPU capacity").
pub const CAPACITY: &str = "capacity-dmips-mhz";

/// Performance of a `cpu` node's CPU in relation to other CPUs, if the board states it.
pub fn capacity(cpu: &FdtNode<'_>) -> Option<u32> {
    cells(cpu, CAPACITY).first().copied()
}

/// The text of a property.
pub fn text<'a>(node: &FdtNode<'a>, name: &str) -> Option<&'a str> {
    node.property(name)?.value_as().ok()
}

/// The register regions of a node. A region with more than 64 bits of address or size is left out.
pub fn spans<'a, const N: usize>(node: FdtNode<'a>) -> Vec<Span, N> {
    let mut found = Vec::new();
    for region in node.reg().ok().flatten().into_iter().flatten() {
        let (Ok(start), Ok(size)) = (region.address::<u64>(), region.size::<u64>()) else { continue };
        let span = start..start.saturating_add(size);
        if !span.is_empty() && found.push(span).is_err() {
            break;
        }
    }
    found
}

/// Whether a node is enabled: its `status` is absent, or says so.
pub fn is_enabled<'a>(node: &FdtNode<'a>) -> bool {
    text(node, "status").is_none_or(|status| status == "okay" || status == "ok")
}

/// Whether `with` is among a node's `compatible` names.
pub fn is_compatible<'a>(node: &FdtNode<'a>, with: &str) -> bool {
    node.compatible().is_some_and(|mut names| names.any(|name| name == with))
}

/// The first node that is enabled and compatible with `compatible`.
pub fn find<'a>(tree: &Fdt<'a>, compatible: &str) -> Option<FdtNode<'a>> {
    first(tree.root(), &|node| is_compatible(node, compatible) && is_enabled(node))
}

/// The usable part of a bank of RAM beside those that are known: whole pages. `None` if it overlaps one of them, or ends beyond 2^48.
pub fn bank(known: &[Span], span: &Span) -> Option<Span> {
    const PAGE: u64 = 4096;
    let span = span.start.checked_next_multiple_of(PAGE)?..span.end / PAGE * PAGE;
    let is_free = known.iter().all(|other| other.end <= span.start || span.end <= other.start);
    (span.start < span.end && span.end <= 1 << 48 && is_free).then_some(span)
}

/// Removes the pages of `hole` from banks of RAM. Parts that do not fit into the list are dropped.
pub fn exclude<const N: usize>(banks: &mut Vec<Span, N>, hole: &Span) {
    const PAGE: u64 = 4096;
    let hole = hole.start / PAGE * PAGE..hole.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    let parts = |bank: &Span| [bank.start..bank.end.min(hole.start), bank.start.max(hole.end)..bank.end];
    *banks = banks.iter().flat_map(parts).filter(|part| !part.is_empty()).take(N).collect();
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges")]
mod tests {
    use super::*;

    #[test]
    fn a_hole_divides_banks() {
        let banks: Vec<Span, 3> = Vec::from_slice(&[0x1000..0x5000, 0x8000..0x9000]).unwrap();
        let without = |hole: Span| {
            let mut rest = banks.clone();
            exclude(&mut rest, &hole);
            rest
        };
        assert_eq!(without(0x2001..0x2fff)[..], [0x1000..0x2000, 0x3000..0x5000, 0x8000..0x9000]);
        assert_eq!(without(0..0x1800)[..], [0x2000..0x5000, 0x8000..0x9000]);
        assert_eq!(without(0x4000..0x8800)[..], [0x1000..0x4000][..]);
        assert_eq!(without(0x6000..0x7000), banks);
        assert_eq!(without(0..u64::MAX)[..], []);
        // Of four parts, three have room.
        let mut three: Vec<Span, 3> = Vec::from_slice(&[0..0x4000, 0x8000..0x9000, 0xa000..0xb000]).unwrap();
        exclude(&mut three, &(0x1000..0x2000));
        assert_eq!(three[..], [0..0x1000, 0x2000..0x4000, 0x8000..0x9000]);
    }

    #[test]
    fn unusable_ram_is_left_out() {
        let known = 0x4000_0000..0x4800_0000;
        let known = core::slice::from_ref(&known);
        assert_eq!(bank(known, &(0x4800_0800..0x4800_2fff)), Some(0x4800_1000..0x4800_2000));
        for wrong in [0x47ff_f000..0x4800_1000, 0..0xfff, 0x5000_0000..u64::MAX, u64::MAX - 1..u64::MAX, 1 << 48..(1 << 48) + 4096] {
            assert_eq!(bank(known, &wrong), None, "{wrong:x?}");
        }
    }

    #[test]
    fn specifiers_of_the_gic() {
        assert_eq!((intid(&[0, 1, 4]), intid(&[1, 9]), intid(&[2, 0]), intid(&[0])), (Some(33), Some(25), None, None));
        assert_eq!(intid(&[0, u32::MAX]), None);
    }
}
