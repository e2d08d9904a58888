//! ACPI's System Resource Affinity Table (ACPI Specification 6.5, section 5.2.16).

use core::ops::Range;

use crate::bytes::{u8_at, u16_at, u32_at, u64_at};
use crate::table::HEADER;

/// An enabled entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// Memory.
    Memory(Range<u64>),
    /// CPU of a PC, by APIC ID.
    Apic(u32),
    /// CPU of an Arm machine, by ACPI processor UID.
    Uid(u32),
}

/// Calls `visit` with each enabled entry of a table, and its node (proximity domain). Entries of other kinds, and
/// malformed ones, are skipped.
pub fn visit(table: &[u8], mut visit: impl FnMut(Affinity, u32)) {
    let mut rest = table.get(HEADER + 12..).unwrap_or(&[]);
    while let [kind, length, ..] = *rest
        && length >= 2
        && let Some((entry, after)) = rest.split_at_checked(length.into())
    {
        if let Some((affinity, node)) = read(kind, entry) {
            visit(affinity, node);
        }
        rest = after;
    }
}

fn read(kind: u8, entry: &[u8]) -> Option<(Affinity, u32)> {
    let (flags, found) = match kind {
        // Processor Local APIC/SAPIC Affinity: the node's bytes are apart.
        0 => {
            let node = u32::from(u8_at(entry, 2)?) | u32::from(u16_at(entry, 9)?) << 8 | u32::from(u8_at(entry, 11)?) << 24;
            (u32_at(entry, 4)?, (Affinity::Apic(u8_at(entry, 3)?.into()), node))
        }
        // Memory Affinity
        1 => {
            let start = u64_at(entry, 8)?;
            (u32_at(entry, 28)?, (Affinity::Memory(start..start.checked_add(u64_at(entry, 16)?)?), u32_at(entry, 2)?))
        }
        // Processor Local x2APIC Affinity
        2 => (u32_at(entry, 12)?, (Affinity::Apic(u32_at(entry, 8)?), u32_at(entry, 4)?)),
        // GICC Affinity
        3 => (u32_at(entry, 10)?, (Affinity::Uid(u32_at(entry, 6)?), u32_at(entry, 2)?)),
        _ => return None,
    };
    const ENABLED: u32 = 1;
    (flags & ENABLED != 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn entry(length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; length];
        bytes[1] = length as u8;
        for (at, field) in fields {
            bytes[*at..*at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    fn visited(table: &[u8]) -> Vec<(Affinity, u32)> {
        let mut found = vec![];
        visit(table, |affinity, node| found.push((affinity, node)));
        found
    }

    #[test]
    fn entries_of_each_kind() {
        let memory = |base: u64, size: u64, flags: u8| {
            let fields: [(usize, &[u8]); 5] =
                [(0, &[1]), (2, &[7, 1]), (8, &base.to_le_bytes()), (16, &size.to_le_bytes()), (28, &[flags])];
            entry(40, &fields)
        };
        let table = [
            vec![0; HEADER + 12],
            entry(16, &[(0, &[0]), (2, &[2, 5]), (4, &[1]), (9, &[3, 4, 5])]),
            memory(0x1000, 0x2000, 1),
            memory(0x1000, 0x2000, 2),
            memory(u64::MAX, 2, 1),
            entry(24, &[(0, &[2]), (4, &[9]), (8, &[0, 1]), (12, &[1])]),
            entry(18, &[(0, &[3]), (2, &[6]), (6, &[8]), (10, &[1])]),
            entry(20, &[(0, &[4]), (10, &[1])]),
            entry(4, &[(0, &[1])]),
        ]
        .concat();
        let expected = [
            (Affinity::Apic(5), 0x0504_0302),
            (Affinity::Memory(0x1000..0x3000), 0x107),
            (Affinity::Apic(0x100), 9),
            (Affinity::Uid(8), 6),
        ];
        assert_eq!(visited(&table), expected);
    }

    proptest! {
        #[test]
        fn any_bytes(table in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(visited(&table).len() <= table.len() / 2);
        }
    }
}
