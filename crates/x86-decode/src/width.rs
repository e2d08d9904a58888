//! Operand widths and code sizes.

/// The width of an operand or address. Represented by the number of unused bits of a 64-bit register, from which masks are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// 8 bits.
    Byte = 56,
    /// 16 bits.
    Word = 48,
    /// 32 bits.
    Dword = 32,
    /// 64 bits.
    Qword = 0,
}

impl Width {
    /// Returns the width of `bytes` bytes; [`Width::Qword`] if it is not one, two or four.
    #[inline]
    pub const fn of_bytes(bytes: u64) -> Self {
        match bytes {
            1 => Self::Byte,
            2 => Self::Word,
            4 => Self::Dword,
            _ => Self::Qword,
        }
    }

    /// Its size in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        (64 - self as u64) / 8
    }

    /// Its size in bits.
    #[inline]
    pub const fn bits(self) -> u32 {
        64 - self as u32
    }

    /// A mask of the width's bits.
    #[inline]
    pub const fn mask(self) -> u64 {
        u64::MAX >> self as u32
    }

    /// Sign-extends `value` from this width.
    #[inline]
    pub const fn sign_extend(self, value: u64) -> u64 {
        let unused = self as u32;
        ((value << unused) as i64 >> unused) as u64
    }

    /// Merges a write of this width into a general register: a 32-bit write clears the upper half, narrower ones preserve the other bits.
    #[inline]
    pub const fn merge(self, old: u64, value: u64) -> u64 {
        match self {
            Self::Qword => value,
            Self::Dword => value & self.mask(),
            _ => old & !self.mask() | value & self.mask(),
        }
    }
}

/// The code size: the default operand and address size.
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
    /// Returns the code size for CS's attributes and IA32_EFER.LMA.
    #[inline]
    pub const fn new(long_mode_active: bool, cs_long: bool, cs_default: bool) -> Self {
        match (long_mode_active && cs_long, cs_default) {
            (true, _) => Self::Bits64,
            (false, true) => Self::Bits32,
            (false, false) => Self::Bits16,
        }
    }

    /// Bits of the default address size.
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::Bits16 => 16,
            Self::Bits32 => 32,
            Self::Bits64 => 64,
        }
    }

    /// Returns `rip` advanced by `length` bytes, truncated to the code size.
    #[inline]
    pub const fn advance(self, rip: u64, length: u8) -> u64 {
        const MASKS: [u64; 3] = [0xffff, 0xffff_ffff, u64::MAX];
        rip.wrapping_add(length as u64) & MASKS[self as usize]
    }

    /// Returns the linear address of the instruction at `rip`. In 64-bit mode CS has no base; otherwise linear addresses
    /// have 32 bits.
    #[inline]
    pub fn linear(self, rip: u64, base: impl FnOnce() -> u64) -> u64 {
        if self == Self::Bits64 { rip } else { base().wrapping_add(rip) & 0xffff_ffff }
    }
}
