//! INS and OUTS, by what their VM exits report (SDM, "Exit Qualification for I/O Instructions", "Format of the VM-Exit
//! Instruction-Information Field as Used for INS and OUTS"). There is an exit for each element that a repeated one moves.

use crate::operand::{AddressSize, InstructionInformation};

/// One element of INS or OUTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StringIo {
    /// The port.
    pub port: u16,
    /// The element's size: 1, 2 or 4.
    pub bytes: u64,
    /// INS rather than OUTS.
    pub is_in: bool,
    /// The segment of the element, in the order ES, CS, SS, DS, FS, GS.
    pub segment: usize,
    /// The size of addresses, and of the registers that the instruction changes.
    pub address_size: AddressSize,
    repeats: bool,
}

impl StringIo {
    /// RCX, which counts repetitions.
    pub const COUNT: usize = 1;

    /// Decodes an exit by INS or OUTS.
    pub const fn new(qualification: u64, information: InstructionInformation) -> Self {
        const ES: usize = 0;
        let bytes = match qualification & 0b111 {
            0 => 1,
            1 => 2,
            _ => 4,
        };
        let is_in = qualification & 1 << 3 != 0;
        Self {
            port: (qualification >> 16) as u16,
            bytes,
            is_in,
            // The destination of INS cannot be overridden.
            segment: if is_in { ES } else { information.segment() },
            address_size: information.address_size(),
            repeats: qualification & 1 << 5 != 0,
        }
    }

    /// The number of the register with the element's offset: RDI or RSI.
    pub const fn index(self) -> usize {
        if self.is_in { 7 } else { 6 }
    }

    /// The offset of the element in its segment, by the index register.
    pub const fn offset(self, index: u64) -> u64 {
        index & self.address_size.mask()
    }

    /// Whether nothing is left to be moved, by RCX.
    pub const fn is_over(self, count: u64) -> bool {
        self.repeats && self.offset(count) == 0
    }

    /// Returns the index register after an element, with these RFLAGS.
    pub const fn next_index(self, index: u64, flags: u64) -> u64 {
        const DF: u64 = 1 << 10;
        let moved = if flags & DF == 0 { index.wrapping_add(self.bytes) } else { index.wrapping_sub(self.bytes) };
        self.address_size.merge(index, moved)
    }

    /// Returns RCX after an element, and whether that was the last one.
    pub const fn next_count(self, count: u64) -> (u64, bool) {
        if !self.repeats {
            return (count, true);
        }
        let left = self.address_size.merge(count, count.wrapping_sub(1));
        (left, self.is_over(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: u64 = 1 << 3;
    const REPEAT: u64 = 1 << 5;
    const DF: u64 = 1 << 10;

    fn decode(qualification: u64, size: u32, segment: u32) -> StringIo {
        StringIo::new(qualification | 1 << 4 | 0x3ff << 16, InstructionInformation(size << 7 | segment << 15))
    }

    #[test]
    fn fields() {
        let outs = decode(3, 2, 4);
        assert_eq!((outs.port, outs.bytes, outs.is_in, outs.segment, outs.index()), (0x3ff, 4, false, 4, 6));
        // The segment of INS is always ES: the information's field is undefined.
        let ins = decode(IN | 1, 1, 3);
        assert_eq!((ins.bytes, ins.is_in, ins.segment, ins.index()), (2, true, 0, 7));
        assert_eq!(ins.offset(0x1_2345_6789), 0x2345_6789);
    }

    #[test]
    fn one_element() {
        let once = decode(0, 2, 3);
        assert!(!once.is_over(0));
        assert_eq!(once.next_count(0), (0, true));
        assert_eq!(once.next_index(u64::MAX, 0), 0);
        assert_eq!(once.next_index(0, DF), u64::MAX);
    }

    #[test]
    fn repetitions_by_address_size() {
        const HIGH: u64 = 0x1234_5678_0000_0000;
        let wide = decode(REPEAT | 3, 2, 3);
        assert_eq!((wide.next_count(HIGH), wide.next_count(1)), ((HIGH - 1, false), (0, true)));
        assert_eq!(wide.next_index(HIGH, DF), HIGH - 4);
        // 32-bit registers are written with their upper halves.
        let narrow = decode(REPEAT | 3, 1, 3);
        assert!(narrow.is_over(HIGH));
        assert_eq!((narrow.next_count(HIGH | 2), narrow.next_count(HIGH | 1)), ((1, false), (0, true)));
        assert_eq!(narrow.next_index(HIGH | 0xffff_fffe, 0), 2);
        // Of 16-bit ones, the other bits stay.
        let small = decode(REPEAT | IN, 0, 0);
        assert!(small.is_over(HIGH | 0x5_0000));
        assert_eq!(small.next_count(HIGH | 0x5_0001), (HIGH | 0x5_0000, true));
        assert_eq!(small.next_index(HIGH | 0x5_ffff, 0), HIGH | 0x5_0000);
        assert_eq!(small.next_index(HIGH | 0x5_0000, DF), HIGH | 0x5_ffff);
    }
}
