//! Operands of VMX instructions (SDM, "Information for VM Exits Due to Instruction Execution"): the VM-exit instruction-information field
//! and the exit qualification.

/// The VM-exit instruction-information field of a VMX instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstructionInformation(pub u32);

/// The size of addresses that an instruction computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressSize {
    /// 16 bits.
    Bits16,
    /// 32 bits.
    Bits32,
    /// 64 bits.
    Bits64,
}

impl AddressSize {
    pub(crate) const fn mask(self) -> u64 {
        match self {
            Self::Bits16 => 0xffff,
            Self::Bits32 => 0xffff_ffff,
            Self::Bits64 => u64::MAX,
        }
    }

    /// Merges a write of this size into a general register: one of 32 bits clears the upper half, one of 16 bits keeps the other bits.
    pub(crate) const fn merge(self, old: u64, value: u64) -> u64 {
        match self {
            Self::Bits16 => old & !0xffff | value & 0xffff,
            _ => value & self.mask(),
        }
    }
}

impl InstructionInformation {
    const fn bits(self, first: u32, count: u32) -> usize {
        (self.0 >> first & ((1 << count) - 1)) as usize
    }

    /// Whether the first operand is a register.
    pub const fn is_register(self) -> bool {
        self.0 & 1 << 10 != 0
    }

    /// The first operand, if it is a register: its number.
    pub const fn first(self) -> usize {
        self.bits(3, 4)
    }

    /// The second operand, which is a register: its number.
    pub const fn second(self) -> usize {
        self.bits(28, 4)
    }

    /// The segment of the memory operand, in the order ES, CS, SS, DS, FS, GS.
    pub const fn segment(self) -> usize {
        self.bits(15, 3)
    }

    /// The size of addresses.
    pub const fn address_size(self) -> AddressSize {
        match self.bits(7, 3) {
            0 => AddressSize::Bits16,
            1 => AddressSize::Bits32,
            _ => AddressSize::Bits64,
        }
    }

    /// The memory operand's offset in its segment. `register` returns a general register by its number.
    pub fn offset(self, displacement: u64, register: impl Fn(usize) -> u64) -> u64 {
        let base = if self.0 & 1 << 27 != 0 { 0 } else { register(self.bits(23, 4)) };
        let index = if self.0 & 1 << 22 != 0 { 0 } else { register(self.bits(18, 4)) << self.bits(0, 2) };
        base.wrapping_add(index).wrapping_add(displacement) & self.address_size().mask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets() {
        // [rbx + 8 * rcx + 0x10] with 64-bit addresses, in DS.
        let information = InstructionInformation(3 | 2 << 7 | 3 << 15 | 1 << 18 | 3 << 23 | 6 << 28);
        let register = |number| [0, 0x100, 0, 0xffff_ffff_ffff_ff00][number];
        assert!(!information.is_register());
        assert_eq!(information.offset(0x10, register), 0x710);
        assert_eq!((information.segment(), information.second()), (3, 6));
        // Neither base nor index: a RIP-relative or absolute address.
        let information = InstructionInformation(1 << 7 | 1 << 22 | 1 << 27);
        assert_eq!(information.offset(u64::MAX, |_| unreachable!()), 0xffff_ffff);
        assert_eq!(InstructionInformation(0).offset(0x1_0000, |_| 0), 0);
        let information = InstructionInformation(1 << 10 | 9 << 3);
        assert!(information.is_register());
        assert_eq!(information.first(), 9);
    }
}
