//! The encoding of a VMCS field (SDM, "VMCS Component Encoding").

/// A field's encoding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct Field(pub u32);

/// The width of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// 16 bits.
    Bits16,
    /// 64 bits, with a second encoding for bits 63:32.
    Bits64,
    /// 32 bits.
    Bits32,
    /// Natural width: 64 bits.
    Natural,
}

impl Width {
    /// The bits that a field of this width holds.
    pub const fn mask(self) -> u64 {
        match self {
            Self::Bits16 => 0xffff,
            Self::Bits32 => 0xffff_ffff,
            Self::Bits64 | Self::Natural => u64::MAX,
        }
    }
}

/// The type of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A control.
    Control,
    /// VM-exit information: read-only data.
    ReadOnly,
    /// Guest state.
    Guest,
    /// Host state.
    Host,
}

impl Field {
    /// Bits that are 0 in each encoding.
    const RESERVED: u32 = !0x6fff;

    /// Decodes a VMCS component encoding: the field and whether only bits 63:32 of it are accessed. `None` for an encoding with reserved
    /// bits, or of the high half of a field that has none.
    pub const fn decode(encoding: u64) -> Option<(Self, bool)> {
        if encoding & (!0xffff_ffff | Self::RESERVED as u64) != 0 {
            return None;
        }
        let field = Self(encoding as u32 & !1);
        let is_high = encoding & 1 != 0;
        if is_high && !matches!(field.width(), Width::Bits64) {
            return None;
        }
        Some((field, is_high))
    }

    /// The field's width.
    pub const fn width(self) -> Width {
        match self.0 >> 13 & 0b11 {
            0 => Width::Bits16,
            1 => Width::Bits64,
            2 => Width::Bits32,
            _ => Width::Natural,
        }
    }

    /// The field's type.
    pub const fn kind(self) -> Kind {
        match self.0 >> 10 & 0b11 {
            0 => Kind::Control,
            1 => Kind::ReadOnly,
            2 => Kind::Guest,
            _ => Kind::Host,
        }
    }

    /// The field's index among those of its width and type.
    pub const fn index(self) -> u32 {
        self.0 >> 1 & 0x1ff
    }

    /// The encoding that accesses bits 63:32 of a 64-bit field.
    #[must_use]
    pub const fn high(self) -> Self {
        Self(self.0 | 1)
    }
}
