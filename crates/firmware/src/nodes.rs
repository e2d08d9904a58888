//! Reading nodes and properties of a board's device tree.

use core::ops::Range;

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};
use heapless::Vec;

/// Physical addresses.
pub type Span = Range<u64>;

/// The end of the physical addresses that Stile uses.
const ADDRESSES: u64 = 1 << 48;

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

/// Address at which the CPU of a `cpu` node finds the one where it starts (Devicetree Specification, "cpu-release-addr"), if it
/// does not start by PSCI. A release address that is not aligned, or beyond 2^48, is none.
pub fn spin_table(cpu: &FdtNode<'_>) -> Option<u64> {
    let address = cells(cpu, "cpu-release-addr").iter().fold(0, |value, &cell| value << 32 | u64::from(cell));
    let is_usable = address != 0 && address < ADDRESSES && address.is_multiple_of(8);
    (text(cpu, "enable-method") == Some("spin-table") && is_usable).then_some(address)
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

/// The register regions of a device as the CPUs address it: `ranges` of the buses between the root and the node translate them
/// (Devicetree Specification, "ranges"). A region that a bus does not pass on whole, or that ends beyond 2^48, is left out.
pub fn registers<'a, const N: usize>(tree: &Fdt<'a>, node: FdtNode<'a>) -> Vec<Span, N> {
    let mut found = spans(node);
    // First at the root, where most devices are: a search of the whole tree takes some 100,000 instructions.
    if !tree.root().children().any(|child| is_same(&child, &node)) {
        let mut ascend = |bus: FdtNode<'a>| found = found.iter().filter_map(|span| translate(bus, span)).collect();
        tree.root().children().any(|child| visit_buses(child, &node, &mut ascend));
    }
    found.retain(|span| span.end <= ADDRESSES);
    found
}

/// Whether two nodes are one: a node's name is part of the tree, so that its place tells nodes apart.
fn is_same(a: &FdtNode<'_>, b: &FdtNode<'_>) -> bool {
    core::ptr::eq(a.name(), b.name())
}

/// Visits the nodes above `target`, from the nearest one up to `top`. Returns whether `target` is at or below `top`.
fn visit_buses<'a>(top: FdtNode<'a>, target: &FdtNode<'a>, visit: &mut impl FnMut(FdtNode<'a>)) -> bool {
    if is_same(&top, target) {
        return true;
    }
    let is_above = top.children().any(|child| visit_buses(child, target, visit));
    if is_above {
        visit(top);
    }
    is_above
}

/// Addresses on a bus as its parent addresses them.
fn translate(bus: FdtNode<'_>, span: &Span) -> Option<Span> {
    // Without the property nothing is passed on; without a value, all is, unchanged.
    if bus.property("ranges")?.value().is_empty() {
        return Some(span.clone());
    }
    bus.ranges().ok()??.find_map(|range| {
        let (from, to, length) =
            (range.child_bus_address::<u64>().ok()?, range.parent_bus_address::<u64>().ok()?, range.length::<u64>().ok()?);
        let offset = span.start.checked_sub(from)?;
        let start = to.checked_add(offset)?;
        (span.end - from <= length).then_some(start..start.checked_add(span.end - span.start)?)
    })
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

/// Returns the first node that is enabled and compatible with each of several names, by one walk: a walk takes hundreds of thousands of instructions.
pub fn find_each<'a, const N: usize>(tree: &Fdt<'a>, compatible: [&str; N]) -> [Option<FdtNode<'a>>; N] {
    find_each_and(tree, compatible, |_, _| ())
}

/// [`find_each`], with a call of `visit` for each node and each name in its `compatible`.
pub fn find_each_and<'a, const N: usize>(
    tree: &Fdt<'a>,
    compatible: [&str; N],
    mut visit: impl FnMut(FdtNode<'a>, &str),
) -> [Option<FdtNode<'a>>; N] {
    let mut found = [const { None }; N];
    walk(tree.root(), &mut |node| {
        for name in node.compatible().into_iter().flatten() {
            visit(node, name);
            let place = compatible.iter().position(|other| *other == name).and_then(|at| found.get_mut(at));
            if let Some(place @ None) = place
                && is_enabled(&node)
            {
                *place = Some(node);
            }
        }
    });
    found
}

/// The usable part of a bank of RAM beside those that are known: whole pages. `None` if it overlaps one of them, or ends beyond 2^48.
pub fn bank(known: &[Span], span: &Span) -> Option<Span> {
    const PAGE: u64 = 4096;
    let span = span.start.checked_next_multiple_of(PAGE)?..span.end / PAGE * PAGE;
    let is_free = known.iter().all(|other| other.end <= span.start || span.end <= other.start);
    (span.start < span.end && span.end <= ADDRESSES && is_free).then_some(span)
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

    /// A device on two buses: the second has several ranges, as on the Raspberry Pi 4.
    fn on_buses(inner: Option<&[u32]>, registers: [u32; 2]) -> Vec<Span, 4> {
        let mut fdt = vm_fdt::FdtWriter::new().unwrap();
        let cells = |fdt: &mut vm_fdt::FdtWriter, address, size| {
            fdt.property_u32("#address-cells", address).unwrap();
            fdt.property_u32("#size-cells", size).unwrap();
        };
        let root = fdt.begin_node("").unwrap();
        cells(&mut fdt, 2, 1);
        let outer = fdt.begin_node("soc").unwrap();
        cells(&mut fdt, 1, 1);
        fdt.property_array_u32("ranges", &[0x7e00_0000, 0, 0xfe00_0000, 0x180_0000, 0x4000_0000, 1, 0xff80_0000, 0x80_0000]).unwrap();
        let bus = fdt.begin_node("bus").unwrap();
        cells(&mut fdt, 1, 1);
        if let Some(ranges) = inner {
            fdt.property_array_u32("ranges", ranges).unwrap();
        }
        let device = fdt.begin_node("device").unwrap();
        fdt.property_string("compatible", "device").unwrap();
        fdt.property_array_u32("reg", &registers).unwrap();
        for node in [device, bus, outer, root] {
            fdt.end_node(node).unwrap();
        }
        let bytes = fdt.finish().unwrap();
        let tree = Fdt::new(&bytes).unwrap();
        registers_of(&tree)
    }

    fn registers_of(tree: &Fdt<'_>) -> Vec<Span, 4> {
        registers(tree, find(tree, "device").unwrap())
    }

    #[test]
    fn one_walk_finds_what_several_searches_do() {
        let mut fdt = vm_fdt::FdtWriter::new().unwrap();
        let root = fdt.begin_node("").unwrap();
        let nodes: [(&str, &[&str], &str); 5] = [
            ("a", &["one"], "disabled"),
            ("b", &["other", "one"], "okay"),
            ("c", &["one", "two"], "ok"),
            ("d", &["two"], "okay"),
            ("e", &["three", "three"], "okay"),
        ];
        for (name, compatible, status) in nodes {
            let node = fdt.begin_node(name).unwrap();
            fdt.property_string_list("compatible", compatible.iter().map(|&name| name.into()).collect()).unwrap();
            fdt.property_string("status", status).unwrap();
            fdt.end_node(node).unwrap();
        }
        fdt.end_node(root).unwrap();
        let bytes = fdt.finish().unwrap();
        let tree = Fdt::new(&bytes).unwrap();
        let names = ["two", "none", "one", "three"];
        let found = find_each(&tree, names).map(|node| node.map(|node| node.name()));
        assert_eq!(found, [Some("c"), None, Some("b"), Some("e")]);
        assert_eq!(found, names.map(|name| find(&tree, name).map(|node| node.name())));
    }

    #[test]
    fn buses_translate_addresses() {
        assert_eq!(on_buses(Some(&[]), [0x7e20_1000, 0x200])[..], [0xfe20_1000..0xfe20_1200][..]);
        assert_eq!(on_buses(Some(&[]), [0x4004_1000, 0x1000])[..], [0x1_ff84_1000..0x1_ff84_2000][..]);
        assert_eq!(on_buses(Some(&[0, 0x7e00_0000, 0x1000]), [0xff0, 0x10])[..], [0xfe00_0ff0..0xfe00_1000][..]);
        // Beyond a range, outside of all, on a bus that passes nothing on, and where the end wraps.
        assert_eq!(on_buses(Some(&[0, 0x7e00_0000, 0x1000]), [0xff0, 0x11])[..], []);
        assert_eq!(on_buses(Some(&[]), [0x1000, 0x10])[..], []);
        assert_eq!(on_buses(None, [0x7e20_1000, 0x200])[..], []);
        assert_eq!(on_buses(Some(&[0, 0xffff_ffff, 0x1000]), [0, 0x10])[..], []);
    }

    #[test]
    fn specifiers_of_the_gic() {
        assert_eq!((intid(&[0, 1, 4]), intid(&[1, 9]), intid(&[2, 0]), intid(&[0])), (Some(33), Some(25), None, None));
        assert_eq!(intid(&[0, u32::MAX]), None);
    }
}
