//! The physical address size.

/// The physical address size, as in `ID_AA64MMFR0_EL1.PARange`; at most 48 bits, the limit of 4 KiB granule
/// descriptors without FEAT_LPA2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PaRange {
    /// 4 GiB.
    Bits32 = 0b000,
    /// 64 GiB.
    Bits36 = 0b001,
    /// 1 TiB.
    Bits40 = 0b010,
    /// 4 TiB.
    Bits42 = 0b011,
    /// 16 TiB.
    Bits44 = 0b100,
    /// 256 TiB.
    Bits48 = 0b101,
}

impl PaRange {
    /// Decodes `ID_AA64MMFR0_EL1` (`PARange` is bits 3 to 0). Larger and reserved sizes are taken as 48 bits.
    #[must_use]
    pub const fn from_mmfr0(id_aa64mmfr0: u64) -> Self {
        match id_aa64mmfr0 & 0xf {
            0b0000 => Self::Bits32,
            0b0001 => Self::Bits36,
            0b0010 => Self::Bits40,
            0b0011 => Self::Bits42,
            0b0100 => Self::Bits44,
            _ => Self::Bits48,
        }
    }

    /// The largest size of at most `bits` address bits (Intel's MAXPHYADDR); at least 32 bits.
    #[must_use]
    pub const fn of_bits(bits: u8) -> Self {
        match bits {
            0..36 => Self::Bits32,
            36..40 => Self::Bits36,
            40..42 => Self::Bits40,
            42..44 => Self::Bits42,
            44..48 => Self::Bits44,
            _ => Self::Bits48,
        }
    }

    /// Number of physical address bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Bits32 => 32,
            Self::Bits36 => 36,
            Self::Bits40 => 40,
            Self::Bits42 => 42,
            Self::Bits44 => 44,
            Self::Bits48 => 48,
        }
    }

    /// The exclusive end of physical addresses.
    #[must_use]
    pub const fn limit(self) -> u64 {
        1 << self.bits()
    }
}
