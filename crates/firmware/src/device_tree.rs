//! Flattened device trees (Devicetree Specification 0.4, chapter 5), checked before use: the crate `dtoolkit` panics on a malformed tree
//! unless its own check is used, which refuses node names of more than 31 characters, and real boards have such.

use core::ops::Range;

use dtoolkit::fdt::Fdt;

use crate::configuration::{self, BootMedium};
use crate::frame_buffer::FrameBuffer;
use crate::nodes::cells;
use crate::tree_writer::TreeWriter;

/// Nodes inside each other. Real trees have fewer than 10; readers recurse.
pub const MAX_DEPTH: usize = 32;

pub(crate) const MAGIC: u32 = 0xd00d_feed;
pub(crate) const HEADER: usize = 40;
/// The version whose header has the lengths of both blocks.
pub(crate) const VERSION: u32 = 17;

pub(crate) const BEGIN_NODE: u32 = 1;
pub(crate) const END_NODE: u32 = 2;
pub(crate) const PROPERTY: u32 = 3;
pub(crate) const NOP: u32 = 4;
pub(crate) const END: u32 = 9;

/// Reason for which a device tree can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It lacks the magic number, has another version, or its length is wrong.
    Header,
    /// A block is outside of the tree, or not aligned.
    Block,
    /// The list of reserved memory has no end.
    Reservations,
    /// A token that does not belong there, or nothing where one must be.
    Token,
    /// A name is not terminated, or a property extends beyond its block.
    Property,
    /// More than [`MAX_DEPTH`] nodes inside each other.
    Depth,
}

/// Returns the device tree at the start of `memory`, which may be longer.
///
/// # Errors
/// [`Malformed`]: reading it would panic or not end.
pub fn parse(memory: &[u8]) -> Result<Fdt<'_>, Malformed> {
    let length = word(memory, 4).ok_or(Malformed::Header)? as usize;
    check(memory.get(..length).ok_or(Malformed::Header)?)
}

/// Parses a device tree as [`parse`] does, of which `memory` may lack space behind the blocks: tools leave some for properties to come. Such
/// a tree ends with its last block.
///
/// # Errors
/// See [`parse`].
pub fn parse_start(memory: &[u8]) -> Result<Fdt<'_>, Malformed> {
    match length(memory) {
        Some(length) if length > memory.len() => {
            let end = |start, size| Some((word(memory, start)? as usize).saturating_add(word(memory, size)? as usize));
            let end = end(8, 36).max(end(12, 32)).unwrap_or(usize::MAX);
            check(memory.get(..end).ok_or(Malformed::Header)?)
        }
        _ => parse(memory),
    }
}

/// Checks a whole tree.
fn check(tree: &[u8]) -> Result<Fdt<'_>, Malformed> {
    if tree.len() < HEADER {
        return Err(Malformed::Header);
    }
    // The header is there.
    let field = |at| word(tree, at).unwrap_or(0);
    if field(0) != MAGIC || field(20) < VERSION || field(24) > VERSION {
        return Err(Malformed::Header);
    }
    let structure = block(tree, field(8), field(36), 4)?;
    let strings = block(tree, field(12), field(32), 1)?;
    check_reservations(tree, field(16) as usize)?;
    check_structure(tree.get(..structure.end).unwrap_or(tree), structure.start, tree.get(strings).unwrap_or(&[]))?;
    Ok(Fdt::new_unchecked(tree))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A block of the tree, by its offset and length.
fn block(tree: &[u8], start: u32, len: u32, align: usize) -> Result<Range<usize>, Malformed> {
    let (start, len) = (start as usize, len as usize);
    let end = start.checked_add(len).filter(|&end| end <= tree.len()).ok_or(Malformed::Block)?;
    if start < HEADER || !start.is_multiple_of(align) { Err(Malformed::Block) } else { Ok(start..end) }
}

/// The length of the device tree that begins with these bytes, as its header says.
pub fn length(header: &[u8]) -> Option<usize> {
    word(header, 0).filter(|&magic| magic == MAGIC).and_then(|_| word(header, 4)).map(|length| length as usize)
}

/// Writes a [checked](parse) device tree to `to`, with further memory reservations, a node for a frame buffer, which is
/// left out if the root's addresses and sizes do not have two cells each, and the boot medium's files. Returns
/// the new length; `None` without room.
pub fn extend(
    tree: &[u8],
    ranges: impl Iterator<Item = Range<u64>>,
    frame_buffer: Option<&FrameBuffer>,
    medium: Option<&BootMedium<'_>>,
    to: &mut [u8],
) -> Option<usize> {
    let field = |at| word(tree, at).map(|value| value as usize);
    let structure = tree.get(field(8)?..)?.get(..field(36)?)?;
    let strings = tree.get(field(12)?..)?.get(..field(32)?)?;
    let (old, _) = tree.get(field(16)?..)?.as_chunks::<16>();
    let old = old.iter().take_while(|pair| **pair != [0; 16]).map(|pair| {
        let pair = u128::from_be_bytes(*pair);
        let (start, size) = ((pair >> 64) as u64, pair as u64);
        start..start.wrapping_add(size)
    });
    let root = structure.get(..end_of_root(structure)?)?;
    let node = Fdt::new_unchecked(tree).root();
    // No table of names: pointers in constants are wrong before the image is where it was linked to be (Stile's EFI program).
    let has_two_cells = cells(&node, "#address-cells")[..] == [2] && cells(&node, "#size-cells")[..] == [2];
    let mut tree = TreeWriter::extending(root, strings, old.chain(ranges), to);
    if let Some(frame_buffer) = frame_buffer.filter(|_| has_two_cells) {
        frame_buffer.write(&mut tree);
    }
    if let Some(medium) = medium {
        configuration::write(medium, &mut tree);
    }
    tree.end();
    tree.finish()
}

/// Offset of the token that ends the root node, in a checked structure block.
fn end_of_root(structure: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0);
    loop {
        let token = word(structure, at)?;
        match token {
            BEGIN_NODE => {
                depth += 1;
                at = aligned(at + 4 + text_len(structure, at + 4).ok()? + 1);
            }
            PROPERTY => at = aligned(at + 12 + word(structure, at + 4)? as usize),
            END_NODE if depth == 1 => return Some(at),
            _ => {
                depth -= u32::from(token == END_NODE);
                at += 4;
            }
        }
    }
}

/// Memory reservations are pairs of eight bytes; a pair of zeros is the last one.
fn check_reservations(tree: &[u8], start: usize) -> Result<(), Malformed> {
    if start < HEADER || !start.is_multiple_of(8) {
        return Err(Malformed::Block);
    }
    let mut pairs = tree.get(start..).unwrap_or(&[]).chunks_exact(16);
    if pairs.any(|pair| pair == [0; 16]) { Ok(()) } else { Err(Malformed::Reservations) }
}

/// Checks the tokens from `at` to the end of `tree`: one root node, whose nodes have properties first and nodes then.
fn check_structure(tree: &[u8], mut at: usize, strings: &[u8]) -> Result<(), Malformed> {
    let mut depth = 0;
    // Whether the last token was a property or began a node.
    let mut in_properties = false;
    loop {
        let token = word(tree, at).ok_or(Malformed::Token)?;
        at += 4;
        match token {
            BEGIN_NODE => {
                if depth == MAX_DEPTH {
                    return Err(Malformed::Depth);
                }
                depth += 1;
                in_properties = true;
                at = aligned(at + text_len(tree, at)? + 1);
            }
            PROPERTY if in_properties => {
                let (Some(len), Some(name)) = (word(tree, at), word(tree, at + 4)) else { return Err(Malformed::Property) };
                text_len(strings, name as usize)?;
                at = (at + 8).checked_add(len as usize).filter(|&end| end <= tree.len()).map(aligned).ok_or(Malformed::Property)?;
            }
            END_NODE if depth > 0 => {
                depth -= 1;
                in_properties = false;
                if depth == 0 {
                    break;
                }
            }
            NOP if depth > 0 => {}
            _ => return Err(Malformed::Token),
        }
    }
    while word(tree, at) == Some(NOP) {
        at += 4;
    }
    if word(tree, at) == Some(END) { Ok(()) } else { Err(Malformed::Token) }
}

pub(crate) const fn aligned(at: usize) -> usize {
    at.next_multiple_of(4)
}

/// Length of the text at `at`, which a NUL ends and which is UTF-8.
fn text_len(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    let bytes = bytes.get(at..).unwrap_or(&[]);
    let len = bytes.iter().position(|&byte| byte == 0).ok_or(Malformed::Property)?;
    core::str::from_utf8(bytes.get(..len).unwrap_or(&[])).map_err(|_| Malformed::Property)?;
    Ok(len)
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use dtoolkit::Node;
    use proptest::prelude::*;
    use vm_fdt::FdtWriter;

    use super::*;
    use crate::boot_files::Block;
    use crate::frame_buffer::COMPATIBLE;

    fn tree() -> Vec<u8> {
        let mut fdt = FdtWriter::new_with_mem_reserv(&[vm_fdt::FdtReserveEntry::new(0x1000, 0x1000).unwrap()]).unwrap();
        let root = fdt.begin_node("").unwrap();
        fdt.property_string("model", "board").unwrap();
        fdt.property_u32("#address-cells", 2).unwrap();
        fdt.property_u32("#size-cells", 2).unwrap();
        let node = fdt.begin_node("node@1").unwrap();
        fdt.property_u32("reg", 7).unwrap();
        fdt.end_node(node).unwrap();
        fdt.end_node(root).unwrap();
        fdt.finish().unwrap()
    }

    fn malformed(change: impl FnOnce(&mut Vec<u8>)) -> Option<Malformed> {
        let mut bytes = tree();
        change(&mut bytes);
        parse(&bytes).err()
    }

    fn put(bytes: &mut [u8], at: usize, value: u32) {
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    #[test]
    fn trees_are_read() {
        let mut bytes = tree();
        let len = bytes.len();
        bytes.extend([0xff; 100]);
        let fdt = parse(&bytes).unwrap();
        assert_eq!((fdt.data().len(), fdt.root().children().count(), fdt.memory_reservations().count()), (len, 1, 1));
    }

    #[test]
    fn space_behind_a_tree_may_be_absent() {
        let mut bytes = tree();
        let len = bytes.len();
        put(&mut bytes, 4, 64 << 20);
        assert_eq!(parse(&bytes).err(), Some(Malformed::Header));
        assert_eq!(parse_start(&bytes).unwrap().root().children().count(), 1);
        // Its last block is cut.
        for short in 0..len {
            assert!(parse_start(&bytes[..short]).is_err(), "{short}");
        }
        put(&mut bytes, 4, len as u32);
        assert_eq!(parse_start(&bytes).unwrap().data().len(), len);
    }

    #[test]
    fn trees_are_extended() {
        let (old, mut to) = (tree(), [0xee; 4096]);
        let ranges = [0x4000..0x5000, u64::MAX - 1..u64::MAX];
        let buffer = FrameBuffer { address: 0x8_0000_1000, width: 800, height: 600, stride: 4096 };
        let length = extend(
            &old,
            ranges.iter().cloned(),
            Some(&buffer),
            Some(&BootMedium { text: Some(b"# text"), files: Some(Block::At(1 << 32 | 5..1 << 33)) }),
            &mut to,
        )
        .unwrap();
        let fdt = parse(&to).unwrap();
        let found: Vec<_> = fdt.memory_reservations().map(|entry| (entry.address(), entry.size())).collect();
        assert_eq!(found, [(0x1000, 0x1000), (0x4000, 0x1000), (u64::MAX - 1, 1)]);
        assert_eq!((fdt.data().len(), to[length]), (length, 0xee));
        assert_eq!(crate::nodes::cells(&fdt.find_node("/node@1").unwrap(), "reg")[..], [7]);
        assert_eq!(crate::nodes::text(&fdt.root(), "model"), Some("board"));
        assert_eq!(crate::nodes::find(&fdt, COMPATIBLE).and_then(FrameBuffer::read), Some(buffer));
        assert_eq!(extend(&to[..length], [].into_iter(), None, None, &mut [0; 4096]), Some(length));
        assert_eq!(configuration::read(&fdt), Some(BootMedium { text: Some(b"# text"), files: Some(Block::At(1 << 32 | 5..1 << 33)) }));
        assert_eq!(configuration::read(&parse(&old).unwrap()), None);
        for medium in [BootMedium { text: None, files: None }, BootMedium { text: Some(b""), files: Some(Block::Unreadable) }] {
            let mut to = [0; 4096];
            extend(&old, [].into_iter(), None, Some(&medium), &mut to).unwrap();
            assert_eq!(configuration::read(&parse(&to).unwrap()), Some(medium));
        }
        for room in 0..length {
            assert_eq!(
                extend(
                    &old,
                    ranges.iter().cloned(),
                    Some(&buffer),
                    Some(&BootMedium { text: Some(b"# text"), files: Some(Block::At(1 << 32 | 5..1 << 33)) }),
                    &mut vec![0; room]
                ),
                None
            );
        }
        assert_eq!(super::length(&old), Some(old.len()));
        assert_eq!(super::length(&[0; 40]), None);
    }

    #[test]
    fn malformed_trees_are_refused() {
        let structure = word(&tree(), 8).unwrap() as usize;
        assert_eq!(malformed(|_| ()), None);
        assert_eq!(malformed(|bytes| bytes.truncate(39)), Some(Malformed::Header));
        assert_eq!(malformed(|bytes| put(bytes, 0, 0)), Some(Malformed::Header));
        assert_eq!(malformed(|bytes| put(bytes, 4, 1 << 20)), Some(Malformed::Header));
        assert_eq!(malformed(|bytes| put(bytes, 20, 16)), Some(Malformed::Header));
        assert_eq!(malformed(|bytes| put(bytes, 8, 1 << 20)), Some(Malformed::Block));
        assert_eq!(malformed(|bytes| put(bytes, 12, u32::MAX)), Some(Malformed::Block));
        assert_eq!(malformed(|bytes| put(bytes, 36, u32::MAX)), Some(Malformed::Block));
        assert_eq!(malformed(|bytes| put(bytes, 16, 44)), Some(Malformed::Block));
        assert_eq!(malformed(|bytes| put(bytes, 16, 1 << 20)), Some(Malformed::Reservations));
        assert_eq!(malformed(|bytes| put(bytes, structure, END_NODE)), Some(Malformed::Token));
        assert_eq!(malformed(|bytes| put(bytes, structure, 77)), Some(Malformed::Token));
        // The length of the first property, and its name.
        assert_eq!(malformed(|bytes| put(bytes, structure + 12, u32::MAX)), Some(Malformed::Property));
        assert_eq!(malformed(|bytes| put(bytes, structure + 16, 1000)), Some(Malformed::Property));
        // The structure's last two tokens end the root node and the tree.
        let end = word(&tree(), 36).unwrap() as usize + structure;
        assert_eq!(malformed(|bytes| put(bytes, end - 4, NOP)), Some(Malformed::Token));
        assert_eq!(malformed(|bytes| put(bytes, end - 8, NOP)), Some(Malformed::Token));
    }

    #[test]
    fn nodes_nest_to_a_limit() {
        let nested = |depth: usize| {
            let mut fdt = FdtWriter::new().unwrap();
            let nodes: Vec<_> = (0..depth).map(|n| fdt.begin_node(if n == 0 { "" } else { "n" }).unwrap()).collect();
            nodes.into_iter().rev().for_each(|node| fdt.end_node(node).unwrap());
            parse(&fdt.finish().unwrap()).err()
        };
        assert_eq!((nested(MAX_DEPTH), nested(MAX_DEPTH + 1)), (None, Some(Malformed::Depth)));
    }

    proptest! {
        #[test]
        fn any_bytes_after_a_header(at in 0usize..300, bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut tree = tree();
            let end = (at + bytes.len()).min(tree.len());
            tree.splice(at.min(end)..end, bytes);
            let len = tree.len() as u32;
            put(&mut tree, 4, len);
            if let Ok(fdt) = parse(&tree) {
                let mut to = [0; 4096];
                let buffer = FrameBuffer { address: 0, width: 1, height: 1, stride: 4 };
                let length = extend(fdt.data(), core::iter::once(0..4096), Some(&buffer), None, &mut to).unwrap();
                prop_assert!(parse(&to[..length]).is_ok());
                crate::nodes::walk(fdt.root(), &mut |node| drop(crate::nodes::spans::<8>(node)));
            }
        }

        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            let mut tree = vec![0; HEADER];
            tree.extend(bytes);
            prop_assert!(parse(&tree).is_err());
        }
    }
}
