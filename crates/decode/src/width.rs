//! How wide operands and code are.

/// The width of an operand or of an address. Kept as the bits of a register that it leaves unused, as that is what
/// masks are made from.
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

    /// Ones in all its bits.
    #[inline]
    pub const fn mask(self) -> u64 {
        u64::MAX >> self as u32
    }

    /// `value`, of this width, with its sign in all higher bits.
    #[inline]
    pub const fn sign_extend(self, value: u64) -> u64 {
        let unused = self as u32;
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
        const MASKS: [u64; 3] = [0xffff, 0xffff_ffff, u64::MAX];
        rip.wrapping_add(length as u64) & MASKS[self as usize]
    }
}
