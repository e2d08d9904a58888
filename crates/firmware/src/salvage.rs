//! Repair of a malformed device tree, as far as needed to find the console, on which the caller reports it.

use crate::device_tree::{BEGIN_NODE, END, END_NODE, HEADER, MAGIC, MAX_DEPTH, NOP, PROPERTY, VERSION, aligned, word};

/// Replacement of bytes in names that are not ASCII.
const UNREADABLE: u8 = b'?';

/// End of an empty list of memory reservations at its usual place, behind the header.
const RESERVATIONS_END: usize = HEADER + 16;

/// Changes a device tree that [`crate::device_tree::parse_start`] refuses so that it accepts it, if the header is usable. Names that are
/// not text are changed, properties without a name are removed, and the tree ends where something else is wrong. Memory reservations are
/// lost: memory that such a tree describes must not be used.
pub fn salvage(memory: &mut [u8]) {
    let field = |at| word(memory, at).map_or(usize::MAX, |value| value as usize);
    let range = |start: usize, size: usize| {
        let end = start.saturating_add(size).min(memory.len());
        (start >= RESERVATIONS_END && start <= end).then_some(start..end)
    };
    let (Some(structure), Some(strings)) = (range(field(8), field(36)), range(field(12), field(32))) else { return };
    let is_usable = field(0) == MAGIC as usize
        && structure.start.is_multiple_of(4)
        && (structure.end <= strings.start || strings.end <= structure.start);
    if !is_usable {
        return;
    }
    put(memory, 20, VERSION);
    put(memory, 24, VERSION);
    put(memory, 16, HEADER as u32);
    memory[HEADER..RESERVATIONS_END].fill(0);
    put(memory, 36, (structure.end - structure.start) as u32);
    put(memory, 32, (strings.end - strings.start) as u32);
    put(memory, 4, structure.end.max(strings.end) as u32);

    let (start, names) = (structure.start, strings.clone());
    make_readable(&mut memory[strings.clone()]);
    // The last name ends.
    if let Some(last) = memory[strings].last_mut() {
        *last = 0;
    }
    end_where_wrong(memory, start, structure.end, names.end - names.start);
}

/// Walks the tokens of the structure block, and ends all open nodes at the first one that is wrong. `names`: length of the strings block.
fn end_where_wrong(memory: &mut [u8], mut at: usize, end: usize, names: usize) {
    let mut depth = 0;
    let mut in_properties = false;
    // The last place with room for the end of all nodes, and their number there.
    let mut last = (at, 0);
    loop {
        if at.saturating_add(4 * (depth + 1)) <= end {
            last = (at, depth);
        }
        let Some(next) = step(memory, at, end, names, &mut depth, &mut in_properties) else { break };
        at = next;
        if depth == 0 {
            // The root node has ended.
            if at + 4 <= end {
                last = (at, 0);
            }
            break;
        }
    }
    let (at, depth) = last;
    for n in 0..depth {
        put(memory, at + 4 * n, END_NODE);
    }
    put(memory, at + 4 * depth, END);
}

/// Returns the offset behind the token at `at`; `None` if the token is invalid. Changes names that are not text, and replaces a property
/// without a name by NOPs.
fn step(memory: &mut [u8], at: usize, end: usize, names: usize, depth: &mut usize, in_properties: &mut bool) -> Option<usize> {
    let next = at.checked_add(4).filter(|&next| next <= end)?;
    match word(memory, at)? {
        BEGIN_NODE if *depth < MAX_DEPTH => {
            let length = memory.get(next..end)?.iter().position(|&byte| byte == 0)?;
            make_readable(&mut memory[next..next + length]);
            *depth += 1;
            *in_properties = true;
            Some(aligned(next + length + 1)).filter(|&next| next <= end)
        }
        PROPERTY if *in_properties => {
            let (length, name) = (word(memory, next)? as usize, word(memory, next + 4)? as usize);
            let behind = (next + 8).checked_add(length)?.checked_next_multiple_of(4).filter(|&behind| behind <= end)?;
            if name >= names {
                (at..behind).step_by(4).for_each(|at| put(memory, at, NOP));
            }
            Some(behind)
        }
        END_NODE if *depth > 0 => {
            *depth -= 1;
            *in_properties = false;
            Some(next)
        }
        NOP if *depth > 0 => Some(next),
        _ => None,
    }
}

/// Replaces bytes that are not ASCII: names are texts.
fn make_readable(text: &mut [u8]) {
    text.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = UNREADABLE);
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut()) {
        *place = value.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;
    use vm_fdt::FdtWriter;

    use super::*;
    use crate::device_tree::parse_start;
    use crate::serial::SerialPort;

    /// A tree with a console before another node.
    fn tree() -> Vec<u8> {
        let mut fdt = FdtWriter::new_with_mem_reserv(&[vm_fdt::FdtReserveEntry::new(0x1000, 0x1000).unwrap()]).unwrap();
        let root = fdt.begin_node("").unwrap();
        fdt.property_u32("#address-cells", 1).unwrap();
        fdt.property_u32("#size-cells", 1).unwrap();
        let port = fdt.begin_node("port@1000").unwrap();
        fdt.property_string("compatible", "arm,pl011").unwrap();
        fdt.property_array_u32("reg", &[0x1000, 0x1000]).unwrap();
        fdt.property_string("label", "console").unwrap();
        fdt.end_node(port).unwrap();
        let other = fdt.begin_node("other@2000").unwrap();
        fdt.property_string("status", "okay").unwrap();
        fdt.end_node(other).unwrap();
        fdt.end_node(root).unwrap();
        fdt.finish().unwrap()
    }

    /// Whether the console is found in a malformed tree.
    fn finds_console(change: impl FnOnce(&mut [u8])) -> bool {
        let mut bytes = tree();
        change(&mut bytes);
        assert!(parse_start(&bytes).is_err(), "the change does no harm");
        salvage(&mut bytes);
        parse_start(&bytes).is_ok_and(|tree| SerialPort::find_all(&tree).first().is_some_and(|port| port.registers == (0x1000..0x2000)))
    }

    fn find(bytes: &[u8], text: &[u8]) -> usize {
        bytes.windows(text.len()).position(|part| part == text).unwrap()
    }

    #[test]
    fn a_name_may_be_unreadable() {
        for name in [&b"port@1000"[..], b"other@2000", b"label\0"] {
            assert!(finds_console(|bytes| bytes[find(bytes, name) + 2] = 0xff), "{name:?}");
        }
    }

    #[test]
    fn the_tree_ends_where_it_is_wrong() {
        // A token, a name's place, a length, and no end.
        assert!(finds_console(|bytes| bytes[find(bytes, b"other@2000") - 1] = 7));
        assert!(finds_console(|bytes| bytes[find(bytes, b"console\0") - 4] = 0xff));
        assert!(finds_console(|bytes| bytes[find(bytes, b"okay\0") - 8] = 0xff));
        assert!(finds_console(|bytes| {
            let size = word(bytes, 36).unwrap() - 16;
            put(bytes, 36, size);
        }));
        // The list of reservations has no end, or is elsewhere.
        assert!(finds_console(|bytes| put(bytes, 16, 4)));
        assert!(!finds_console(|bytes| bytes[find(bytes, b"port@1000") - 1] = 7), "the console is lost");
        assert!(!finds_console(|bytes| bytes[0] = 0), "this is no tree");
    }

    proptest! {
        /// Corruption anywhere leaves a tree that can be read, or none.
        #[test]
        fn corrupt_trees_do_not_panic(at in 0usize..600, length in 0usize..64, value: u8, cut in 0usize..600) {
            let mut bytes = tree();
            let end = bytes.len().min(at + length);
            if let Some(part) = bytes.get_mut(at..end) {
                part.fill(value);
            }
            bytes.truncate(bytes.len().max(cut).min(cut.max(40)));
            salvage(&mut bytes);
            if let Ok(tree) = parse_start(&bytes) {
                let _ = SerialPort::find_all(&tree);
            }
        }

        /// A tree is left if only the structure block is wrong.
        #[test]
        fn wrong_structure_leaves_a_tree(at in 0usize..200, value: u8) {
            let mut bytes = tree();
            let structure = word(&bytes, 8).unwrap() as usize;
            // Behind the root's name.
            let at = structure + 8 + at % (word(&bytes, 36).unwrap() as usize - 8);
            bytes[at] = value;
            salvage(&mut bytes);
            prop_assert!(parse_start(&bytes).is_ok());
        }
    }
}
