//! EXITINFO1 of IN and OUT ("IOIO Intercepts").

const IN: u64 = 1 << 0;
const STRING: u64 = 1 << 2;
const REPEATED: u64 = 1 << 3;

/// Bits of EXITINFO1 that do not say what is accessed: the size of addresses, and the segment of string instructions.
pub const IO_ADDRESS: u64 = 0b111 << 7 | 0b111 << 10;

/// EXITINFO1, less [`IO_ADDRESS`], of an instruction that reads a byte from a port to AL.
pub const fn io_info_of_read(port: u16) -> u64 {
    (port as u64) << 16 | 1 << 4 | IN
}

/// Converts EXITINFO1 of an access to a port to VMX's exit qualification: size less one, direction, string, repeated,
/// port.
#[inline(always)]
pub const fn io_qualification(info: u64) -> u64 {
    // Bits 6:4 are one of 1, 2 and 4 bytes.
    let size = info >> 4 & 0b111;
    size.wrapping_sub(1) & 0b111 | (info & IN) << 3 | (info & STRING) << 2 | (info & REPEATED) << 2 | info & 0xffff_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_those_of_vmx() {
        // IN AL, 0x3fd, 64-bit addresses.
        assert_eq!(io_qualification(0x03fd_0000 | 1 << 9 | 1 << 4 | 1), 0x03fd_0000 | 1 << 3);
        assert_eq!(io_info_of_read(0x3fd), (0x03fd_0000 | 1 << 9 | 1 << 4 | 1) & !IO_ADDRESS);
        // REP OUTSW to 0x1f0.
        assert_eq!(io_qualification(0x01f0_0000 | 1 << 5 | 0b1100), 0x01f0_0000 | 0b11 << 4 | 1);
        // OUT 0x80, EAX.
        assert_eq!(io_qualification(0x0080_0000 | 1 << 6), 0x0080_0000 | 3);
    }
}
