//! How wide operands and code are.

/// The width of an operand or of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Width {
    /// 8 bits.
    Byte = 1,
    /// 16 bits.
    Word = 2,
    /// 32 bits.
    Dword = 4,
    /// 64 bits.
    Qword = 8,
}

impl Width {
    /// Its size in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self as u64
    }

    /// Its size in bits.
    #[inline]
    pub const fn bits(self) -> u32 {
        self as u32 * 8
    }

    /// Ones in all its bits.
    #[inline]
    pub const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// `value`, of this width, with its sign in all higher bits.
    #[inline]
    pub const fn sign_extend(self, value: u64) -> u64 {
        let unused = 64 - self.bits();
        ((value << unused) as i64 >> unused) as u64
    }

    /// `old` with `value` written to its low bits of this width, as a general register takes it: 32 bits
    /// clear the upper half, fewer leave the rest alone.
    #[inline]
    pub const fn merge(self, old: u64, value: u64) -> u64 {
        match self {
            Self::Qword => value,
            Self::Dword => value & self.mask(),
            _ => old & !self.mask() | value & self.mask(),
        }
    }
}

/// The default size of code, which with the prefixes decides what bytes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CodeSize {
    /// Real mode, virtual-8086 mode, and protected mode with CS.D clear.
    Bits16,
    /// Protected and compatibility mode with CS.D set.
    Bits32,
    /// 64-bit mode: CS.L set, with IA32_EFER.LMA.
    Bits64,
}

impl CodeSize {
    /// What CS's attributes and IA32_EFER.LMA say.
    #[inline]
    pub const fn new(long_mode_active: bool, cs_long: bool, cs_default: bool) -> Self {
        match (long_mode_active && cs_long, cs_default) {
            (true, _) => Self::Bits64,
            (false, true) => Self::Bits32,
            (false, false) => Self::Bits16,
        }
    }

    /// The instruction pointer that follows `rip` after `length` bytes.
    #[inline]
    pub const fn advance(self, rip: u64, length: u8) -> u64 {
        let next = rip.wrapping_add(length as u64);
        match self {
            Self::Bits16 => next & 0xffff,
            Self::Bits32 => next & 0xffff_ffff,
            Self::Bits64 => next,
        }
    }
}
