//! ACPI's I/O Virtualization Reporting Structure: a PC's AMD IOMMUs (AMD I/O Virtualization Technology Specification,
//! 48882, section 5.2).

use heapless::Vec;

use crate::bytes::{u8_at, u16_at, u64_at};
use crate::table::HEADER;

/// Maximum number of IOMMUs that are read.
pub const MOST_IOMMUS: usize = 8;
/// Maximum number of device entries of all IOMMUs that are read. Firmware of large servers has some 40.
pub const MOST_RANGES: usize = 128;
/// Maximum number of special devices that are read: I/O APICs and timers.
pub const MOST_SPECIAL: usize = 16;
/// Maximum number of memory definitions that are read.
pub const MOST_MEMORY: usize = 16;

/// Bytes of an IOMMU's registers, without its counters.
pub(crate) const REGISTERS: u64 = 16 << 10;

/// Offset of the first block in the table.
const BLOCKS: usize = HEADER + 12;

/// An IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iommu {
    /// Type of the block that describes it: 10h, 11h or 40h.
    kind: u8,
    /// PCI segment group of the IOMMU and its devices.
    pub segment: u16,
    /// Routing ID of its own PCI function.
    pub id: u16,
    /// Offset of its capability in that function's configuration space.
    pub capability: u8,
    /// Physical address of its registers: a multiple of 16 KiB.
    pub address: u64,
    /// HtTunEn: requests that arrive by the HyperTransport tunnel bypass the IOMMU unless it is told to translate them.
    pub has_tunnel: bool,
}

/// A range of routing IDs of segment 0 behind an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Devices {
    first: u16,
    last: u16,
    /// Routing ID that the IOMMU sees instead.
    alias: Option<u16>,
}

/// A device that is no PCI function, as seen by an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// Routing ID of its requests.
    pub id: u16,
    /// ID of an I/O APIC, or number of a HPET.
    pub handle: u8,
    /// Whether it is an I/O APIC.
    pub is_io_apic: bool,
}

/// Routing IDs with memory that firmware wants their functions to reach, or to reach without translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reserved {
    first: u16,
    last: u16,
}

/// Contents of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ivrs {
    /// The IOMMUs.
    pub iommus: Vec<Iommu, MOST_IOMMUS>,
    /// Special devices.
    pub special: Vec<Special, MOST_SPECIAL>,
    devices: Vec<Devices, MOST_RANGES>,
    reserved: Vec<Reserved, MOST_MEMORY>,
    /// A list was too short for the table.
    is_incomplete: bool,
}

/// Blocks of a table, each with its type. The walk ends at a block with an impossible length.
fn blocks(table: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = table.get(BLOCKS..).unwrap_or(&[]);
    core::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 2)?);
        let (block, after) = rest.split_at_checked(length).filter(|_| length >= 4)?;
        rest = after;
        Some((block[0], block))
    })
}

/// Returns the contents of a table. Malformed blocks are skipped; device entries after a malformed one of the same block, too.
pub fn read(table: &[u8]) -> Ivrs {
    let mut ivrs = Ivrs::default();
    // Several types may describe one IOMMU; software uses the newest that it knows ("I/O Virtualization Hardware
    // Definition (IVHD) Block").
    for (kind, block) in blocks(table) {
        match kind {
            0x10 | 0x11 | 0x40 => ivrs.add_iommu(kind, block),
            0x20..=0x22 => ivrs.add_memory(kind, block),
            _ => {}
        }
    }
    for (kind, block) in blocks(table) {
        let Some(found) = iommu(kind, block).filter(|found| found.segment == 0) else { continue };
        if ivrs.iommus.contains(&found) {
            ivrs.add_devices(block.get(if kind == 0x10 { 24 } else { 40 }..).unwrap_or(&[]));
        }
    }
    ivrs
}

/// The IOMMU of a block, if it is valid.
fn iommu(kind: u8, block: &[u8]) -> Option<Iommu> {
    let (id, capability, address) = (u16_at(block, 4)?, u16_at(block, 6)?, u64_at(block, 8)?);
    let is_valid = matches!(kind, 0x10 | 0x11 | 0x40)
        && address != 0
        && address.is_multiple_of(REGISTERS)
        && address <= (1 << 48) - REGISTERS
        && (0x40..0x100).contains(&capability)
        && capability.is_multiple_of(4);
    let (segment, has_tunnel) = (u16_at(block, 16)?, u8_at(block, 1)? & 1 != 0);
    is_valid.then_some(Iommu { kind, segment, id, capability: capability as u8, address, has_tunnel })
}

impl Ivrs {
    /// Whether requests of the function with this routing ID in segment 0 reach an IOMMU under that ID, and the ID is no
    /// special device's, and firmware uses none of its memory: it can be given to a VM.
    ///
    /// # Errors
    /// A description of why not.
    pub fn check(&self, id: u16) -> Result<(), &'static str> {
        if self.is_incomplete {
            return Err("the firmware's IVRS has more entries than Stile reads");
        }
        // The last entry wins ("IVHD Device Entries").
        let devices = self.devices.iter().rev().find(|devices| (devices.first..=devices.last).contains(&id));
        let devices = devices.ok_or("no IOMMU translates its requests (the firmware's IVRS)")?;
        if devices.alias.is_some_and(|alias| alias != id) {
            return Err("its requests have the ID of another function (the firmware's IVRS)");
        }
        if self.devices.iter().any(|other| other.alias == Some(id) && !(other.first == id && other.last == id)) {
            return Err("other functions' requests have its ID (the firmware's IVRS)");
        }
        if self.special.iter().any(|special| special.id == id) || self.iommus.iter().any(|iommu| iommu.id == id) {
            return Err("its ID is that of an interrupt controller, a timer or an IOMMU (the firmware's IVRS)");
        }
        if self.reserved.iter().any(|reserved| (reserved.first..=reserved.last).contains(&id)) {
            return Err("the firmware needs memory of its own for it (the firmware's IVRS)");
        }
        Ok(())
    }

    fn add_iommu(&mut self, kind: u8, block: &[u8]) {
        let Some(new) = iommu(kind, block) else { return };
        if let Some(known) = self.iommus.iter_mut().find(|known| (known.id, known.segment) == (new.id, new.segment)) {
            if known.kind < new.kind {
                *known = new;
            }
            return;
        }
        self.is_incomplete |= self.iommus.push(new).is_err();
    }

    /// Adds an I/O Virtualization Memory Definition.
    fn add_memory(&mut self, kind: u8, block: &[u8]) {
        let Some((first, auxiliary)) = u16_at(block, 4).zip(u16_at(block, 6)) else { return };
        let last = match kind {
            0x20 => u16::MAX,
            0x21 => first,
            _ => auxiliary,
        };
        let first = if kind == 0x20 { 0 } else { first };
        self.is_incomplete |= self.reserved.push(Reserved { first, last }).is_err();
    }

    /// Adds the device entries of a block.
    fn add_devices(&mut self, entries: &[u8]) {
        // A range that has begun: its first ID, and its alias.
        let mut range: Option<(u16, Option<u16>)> = None;
        let mut rest = entries;
        while let Some((kind, length)) = length(rest)
            && let Some((entry, after)) = rest.split_at_checked(length)
        {
            rest = after;
            let Some(id) = u16_at(entry, 1) else { return };
            // An alias entry has the other ID from its byte 5 on.
            let alias = u16_at(entry, 5);
            let mut add = |first, last, alias| {
                self.is_incomplete |= self.devices.push(Devices { first, last, alias }).is_err();
            };
            match kind {
                1 => add(0, u16::MAX, None),
                2 | 70 => add(id, id, None),
                66 => add(id, id, alias),
                3 | 71 => range = Some((id, None)),
                67 => range = Some((id, alias)),
                4 => {
                    if let Some((first, alias)) = range.take().filter(|&(first, _)| first <= id) {
                        add(first, id, alias);
                    }
                }
                72 => {
                    let special = alias.zip(u8_at(entry, 4)).zip(u8_at(entry, 7));
                    if let Some(((id, handle), variety)) = special {
                        self.is_incomplete |= self.special.push(Special { id, handle, is_io_apic: variety == 1 }).is_err();
                    }
                }
                // An ACPI device.
                240 => add(id, id, None),
                _ => {}
            }
        }
    }
}

/// Type and length of the first device entry.
fn length(entries: &[u8]) -> Option<(u8, usize)> {
    let kind = u8_at(entries, 0)?;
    let length = match kind {
        0..64 => 4,
        64..128 => 8,
        128..192 => 16,
        // The length of its name is in the entry's last fixed byte.
        240 => 22 + usize::from(u8_at(entries, 21)?),
        192.. => 32,
    };
    Some((kind, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    /// A block that describes an IOMMU.
    fn block(kind: u8, id: u16, address: u64, entries: &[&[u8]]) -> std::vec::Vec<u8> {
        let mut bytes = vec![0; if kind == 0x10 { 24 } else { 40 }];
        bytes[0] = kind;
        bytes[4..6].copy_from_slice(&id.to_le_bytes());
        bytes[6] = 0x40;
        bytes[8..16].copy_from_slice(&address.to_le_bytes());
        bytes.extend(entries.concat());
        let length = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn memory(kind: u8, first: u16, last: u16) -> std::vec::Vec<u8> {
        let mut bytes = vec![0; 32];
        (bytes[0], bytes[2]) = (kind, 32);
        bytes[4..6].copy_from_slice(&first.to_le_bytes());
        bytes[6..8].copy_from_slice(&last.to_le_bytes());
        bytes
    }

    fn table(blocks: &[std::vec::Vec<u8>]) -> std::vec::Vec<u8> {
        [vec![0; BLOCKS], blocks.concat()].concat()
    }

    const ADDRESS: u64 = 0xfed8_0000;
    const ALL: [u8; 4] = [1, 0, 0, 0];
    const IO_APIC: [u8; 8] = [72, 0, 0, 0, 0, 0xa0, 0, 1];

    #[test]
    fn an_iommu_for_all_functions() {
        let ivrs = read(&table(&[block(0x10, 8, ADDRESS, &[&ALL, &IO_APIC])]));
        let iommu = Iommu { kind: 0x10, segment: 0, id: 8, capability: 0x40, address: ADDRESS, has_tunnel: false };
        assert_eq!(ivrs.iommus, [iommu]);
        assert_eq!(ivrs.special, [Special { id: 0xa0, handle: 0, is_io_apic: true }]);
        assert_eq!([0, 0x10, 0xffff].map(|id| ivrs.check(id)), [Ok(()); 3]);
        assert!(ivrs.check(8).is_err(), "the IOMMU itself");
        assert!(ivrs.check(0xa0).is_err(), "the I/O APIC");
    }

    #[test]
    fn a_tunnel_is_reported() {
        let mut block = block(0x10, 8, ADDRESS, &[&ALL]);
        for (flags, has_tunnel) in [(0, false), (1, true), (0xfe, false), (0xff, true)] {
            block[1] = flags;
            assert_eq!(read(&table(core::slice::from_ref(&block))).iommus[0].has_tunnel, has_tunnel, "{flags:#x}");
        }
    }

    #[test]
    fn the_newest_type_describes_an_iommu() {
        let old = block(0x10, 8, ADDRESS, &[&ALL]);
        let new = block(0x11, 8, ADDRESS, &[&[2, 0x10, 0, 0]]);
        let newest = block(0x40, 8, ADDRESS + (16 << 10), &[&[2, 0x18, 0, 0]]);
        let ivrs = read(&table(&[old.clone(), newest.clone(), new.clone()]));
        assert_eq!(ivrs.iommus[0].address, ADDRESS + (16 << 10));
        assert_eq!([0x10, 0x18].map(|id| ivrs.check(id).is_ok()), [false, true]);
        let ivrs = read(&table(&[old, new]));
        assert_eq!([0x10, 0x18].map(|id| ivrs.check(id).is_ok()), [true, false]);
    }

    #[test]
    fn entries_select_ranges_and_aliases() {
        let entries: [&[u8]; 9] = [
            &[3, 0x10, 0, 0],
            &[4, 0x1f, 0, 0],
            // An alias of one function, and of a range.
            &[66, 0x18, 0, 0, 0, 0x30, 0, 0],
            &[67, 0, 1, 0, 0, 0x40, 0, 0],
            &[4, 0xff, 1, 0],
            &[0, 0, 0, 0],
            // An ACPI device with a name of two bytes.
            &[240, 0x50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, b'U', b'A'],
            &[70, 0x30, 0, 0, 0, 0, 0, 0],
            &[2, 0x60, 0, 0],
        ];
        let ivrs = read(&table(&[block(0x11, 8, ADDRESS, &entries)]));
        for (id, is_free) in [(0xf, false), (0x10, true), (0x1f, true), (0x20, false), (0x50, true), (0x60, true)] {
            assert_eq!(ivrs.check(id).is_ok(), is_free, "{id:#x}");
        }
        assert!(ivrs.check(0x18).unwrap_err().contains("the ID of another"), "an alias");
        assert!(ivrs.check(0x30).unwrap_err().contains("other functions'"), "the other's");
        assert!(ivrs.check(0x1ab).is_err(), "behind a bridge");
    }

    #[test]
    fn memory_of_firmware_is_left_to_it() {
        let all = block(0x10, 8, ADDRESS, &[&ALL]);
        let ivrs = read(&table(&[all.clone(), memory(0x21, 0x10, 0), memory(0x22, 0x20, 0x2f)]));
        for (id, is_free) in [(0xf, true), (0x10, false), (0x11, true), (0x20, false), (0x2f, false), (0x30, true)] {
            assert_eq!(ivrs.check(id).is_ok(), is_free, "{id:#x}");
        }
        assert!(read(&table(&[all, memory(0x20, 0, 0)])).check(0x30).is_err(), "all functions");
    }

    #[test]
    fn malformed_blocks_are_skipped() {
        for bad in [block(0x10, 8, 0, &[&ALL]), block(0x10, 8, ADDRESS + 8, &[&ALL]), block(0x12, 8, ADDRESS, &[&ALL])] {
            assert!(read(&table(core::slice::from_ref(&bad))).iommus.is_empty());
            assert_eq!(read(&table(&[bad, block(0x10, 8, ADDRESS, &[&ALL])])).iommus.len(), 1);
        }
        // A length of 0 would repeat the block forever.
        assert_eq!(read(&table(&[vec![0x10, 0, 0, 0]])), Ivrs::default());
        assert_eq!(read(&[]), Ivrs::default());
        // An end without a begin, and before its begin.
        let ends: [&[u8]; 3] = [&[4, 0x10, 0, 0], &[3, 0x20, 0, 0], &[4, 0x10, 0, 0]];
        assert!(read(&table(&[block(0x10, 8, ADDRESS, &ends)])).check(0x10).is_err());
    }

    #[test]
    fn a_table_with_too_many_entries_gives_nothing_away() {
        let many = vec![&[2, 0x10, 0, 0][..]; MOST_RANGES];
        assert!(read(&table(&[block(0x10, 8, ADDRESS, &many)])).check(0x10).is_ok());
        let more = vec![&[2, 0x10, 0, 0][..]; MOST_RANGES + 1];
        assert!(read(&table(&[block(0x10, 8, ADDRESS, &more)])).check(0x10).is_err());
    }

    proptest! {
        /// Random bytes cause no panic, and a function that may be assigned is behind an IOMMU and has an ID of its own.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), id: u16) {
            let ivrs = read(&table(&[block(0x10, 8, ADDRESS, &[&bytes])]));
            if ivrs.check(id).is_ok() {
                prop_assert!(id != 8 && ivrs.special.iter().all(|special| special.id != id));
            }
            let _ = read(&bytes);
            let _ = read(&table(&[bytes]));
        }
    }
}
