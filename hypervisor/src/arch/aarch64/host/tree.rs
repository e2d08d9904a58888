//! Reading nodes and properties of the board's device tree.

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};
use heapless::Vec;

use crate::address_space::Span;

/// INTID of a GIC interrupt specifier: type (0 is an SPI, 1 a PPI), number.
pub fn intid(cells: &[u32]) -> Option<u32> {
    match *cells {
        [0, number, ..] => number.checked_add(32),
        [1, number, ..] => number.checked_add(16),
        _ => None,
    }
}

/// The node itself and all nodes below it, in the order of the tree.
pub fn walk(node: FdtNode<'static>, visit: &mut impl FnMut(FdtNode<'static>)) {
    visit(node);
    node.children().for_each(|child| walk(child, visit));
}

/// The first node below `node`, or `node` itself, that satisfies a condition.
pub fn first(node: FdtNode<'static>, condition: &impl Fn(&FdtNode<'static>) -> bool) -> Option<FdtNode<'static>> {
    if condition(&node) { Some(node) } else { node.children().find_map(|child| first(child, condition)) }
}

/// The cells of a property.
pub fn cells(node: &FdtNode<'static>, name: &str) -> Vec<u32, 32> {
    let property = node.property(name);
    let value = property.as_ref().map_or(&[][..], |property| property.value());
    value.chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).take(32).collect()
}

/// The text of a property.
pub fn text(node: &FdtNode<'static>, name: &str) -> Option<&'static str> {
    node.property(name)?.value_as().ok()
}

/// The register regions of a node. A region with more than 64 bits of address or size is left out.
pub fn spans<const N: usize>(node: FdtNode<'static>) -> Vec<Span, N> {
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

/// Whether its status is absent or says so.
pub fn is_enabled(node: &FdtNode<'static>) -> bool {
    text(node, "status").is_none_or(|status| status == "okay" || status == "ok")
}

/// Whether it has this name among its `compatible` ones.
pub fn is_compatible(node: &FdtNode<'static>, with: &str) -> bool {
    node.compatible().is_some_and(|mut names| names.any(|name| name == with))
}

/// The first node that is enabled and compatible with `compatible`.
pub fn find(tree: &Fdt<'static>, compatible: &str) -> Option<FdtNode<'static>> {
    first(tree.root(), &|node| is_compatible(node, compatible) && is_enabled(node))
}
