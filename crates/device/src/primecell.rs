//! The identification registers that every PrimeCell has in the last 32 bytes of its frame.

/// Offset of the first identification register, `PeriphID0`.
pub(crate) const ID_BASE: u32 = 0xfe0;

/// The part's identification: `PeriphID0..=3`, then `PCellID0..=3`, one byte each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Id([u8; 8]);

impl Id {
    /// `part` is the 12-bit part number, `revision` is the 4-bit revision in `PeriphID2`.
    /// The designer is Arm (0x41); the configuration byte is 0.
    pub(crate) const fn arm(part: u16, revision: u8) -> Self {
        const DESIGNER: u8 = 0x41;
        Self([
            part as u8,
            (part >> 8) as u8 & 0xf | DESIGNER << 4,
            DESIGNER >> 4 | revision << 4,
            0,
            // PCellID: the same word in every PrimeCell, 0xB105F00D.
            0x0d,
            0xf0,
            0x05,
            0xb1,
        ])
    }

    /// The register at `offset`, which is a multiple of 4; 0 outside the identification registers.
    pub(crate) fn read(&self, offset: u32) -> u32 {
        offset.checked_sub(ID_BASE).and_then(|from_base| self.0.get(from_base as usize / 4)).map_or(0, |&byte| byte.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identification_is_made_of_part_designer_and_revision() {
        // The PL031's values, DDI 0224 "Peripheral Identification Registers".
        let id = Id::arm(0x031, 1);
        let bytes: std::vec::Vec<u32> = (0..8).map(|i| id.read(ID_BASE + 4 * i)).collect();
        assert_eq!(bytes, [0x31, 0x10, 0x14, 0x00, 0x0d, 0xf0, 0x05, 0xb1]);
    }

    #[test]
    fn other_offsets_read_zero() {
        let id = Id::arm(0x011, 3);
        assert_eq!(id.read(ID_BASE - 4), 0);
        assert_eq!(id.read(0), 0);
        assert_eq!(id.read(0x1000), 0);
        assert_eq!(id.read(!3), 0);
    }
}
