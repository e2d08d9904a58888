//! ACPI's table of memory-mapped configuration spaces (PCI Firmware Specification 3.3, section 4.1.2 "MCFG Table").

use core::ops::Range;

use heapless::Vec;

use crate::bytes::{u8_at, u16_at, u64_at};
use crate::table::HEADER;

/// Maximum number of configuration spaces that are read.
pub const MOST_SPACES: usize = 8;

/// Bytes of a bus's configuration space.
const BUS: u64 = 1 << 20;

/// Configuration space (ECAM) of a range of buses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigurationSpace {
    /// Physical address at which bus 0 is, or would be: a multiple of 1 MiB.
    pub address: u64,
    /// PCI segment group.
    pub segment: u16,
    /// First and last bus that it has.
    pub buses: (u8, u8),
}

impl ConfigurationSpace {
    /// Physical addresses of all of its buses.
    pub fn span(&self) -> Range<u64> {
        self.address + u64::from(self.buses.0) * BUS..self.address + (u64::from(self.buses.1) + 1) * BUS
    }

    /// Physical address of a bus's 1 MiB. `None` if the space does not have the bus.
    pub fn bus(&self, bus: u8) -> Option<u64> {
        (self.buses.0..=self.buses.1).contains(&bus).then(|| self.address + u64::from(bus) * BUS)
    }
}

/// Returns the spaces of a table. Malformed entries, and those beyond [`MOST_SPACES`], are skipped.
pub fn read(table: &[u8]) -> Vec<ConfigurationSpace, MOST_SPACES> {
    table.get(HEADER + 8..).unwrap_or(&[]).chunks_exact(16).filter_map(entry).take(MOST_SPACES).collect()
}

fn entry(bytes: &[u8]) -> Option<ConfigurationSpace> {
    let (address, segment, buses) = (u64_at(bytes, 0)?, u16_at(bytes, 8)?, (u8_at(bytes, 10)?, u8_at(bytes, 11)?));
    let end = address.checked_add((u64::from(buses.1) + 1) * BUS)?;
    let is_valid = address != 0 && address.is_multiple_of(BUS) && end <= 1 << 48 && buses.0 <= buses.1;
    is_valid.then_some(ConfigurationSpace { address, segment, buses })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn table(entries: &[(u64, u16, u8, u8)]) -> std::vec::Vec<u8> {
        let mut bytes = vec![0; HEADER + 8];
        for (address, segment, first, last) in entries {
            bytes.extend(address.to_le_bytes());
            bytes.extend(segment.to_le_bytes());
            bytes.extend([*first, *last, 0, 0, 0, 0]);
        }
        bytes
    }

    #[test]
    fn spaces_are_read() {
        let found = read(&table(&[
            (0xb000_0000, 0, 0, 255),
            (0, 0, 0, 1),
            (0xb008_0000, 0, 0, 1),
            (0xffff_ffff_fff0_0000, 0, 0, 1),
            (1 << 48, 0, 0, 0),
            (0xc000_0000, 0, 3, 2),
            (0x40_0000_0000, 1, 2, 3),
        ]));
        let first = ConfigurationSpace { address: 0xb000_0000, segment: 0, buses: (0, 255) };
        let second = ConfigurationSpace { address: 0x40_0000_0000, segment: 1, buses: (2, 3) };
        assert_eq!(found, [first, second]);
        assert_eq!([0, 255].map(|bus| first.bus(bus)), [Some(0xb000_0000), Some(0xbff0_0000)]);
        assert_eq!([1, 2, 4].map(|bus| second.bus(bus)), [None, Some(0x40_0020_0000), None]);
        assert_eq!(read(&table(&[(0xb000_0000, 0, 0, 0); 20])).len(), MOST_SPACES);
        assert!(read(&table(&[(0xb000_0000, 0, 0, 0)])[..HEADER + 23]).is_empty(), "cut short");
        assert!(read(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes(table in proptest::collection::vec(any::<u8>(), 0..200)) {
            for space in read(&table) {
                prop_assert!(space.bus(space.buses.1).unwrap() + BUS <= 1 << 48);
            }
        }
    }
}
