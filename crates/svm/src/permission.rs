//! Permission maps: a bit that is set intercepts ("I/O Permissions Map", "MSR Intercepts").

/// Bytes of the I/O permission map: one bit for each port, and those of accesses beyond the last one.
pub const IO_MAP_SIZE: u64 = 3 * 4096;
/// Bytes of the MSR permission map.
pub const MSR_MAP_SIZE: u64 = 2 * 4096;

/// First number, and offset in bytes, of the ranges of MSRs that have bits: 8,192 MSRs each.
const RANGES: [(u32, usize); 3] = [(0, 0), (0xc000_0000, 0x800), (0xc001_0000, 0x1000)];

/// The place of an MSR's bits: the byte, and the mask of the read and the write bit in it. Others always exit.
pub const fn msr_bits(register: u32) -> Option<(usize, u8, u8)> {
    let mut at = 0;
    while at < RANGES.len() {
        let (first, offset) = RANGES[at];
        if register >= first && register - first < 0x2000 {
            let (byte, bit) = ((register - first) as usize / 4, (register - first) % 4 * 2);
            return Some((offset + byte, 1 << bit, 2 << bit));
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn places_are_those_of_the_manual() {
        assert_eq!(msr_bits(0x174), Some((0x5d, 1, 2)));
        assert_eq!(msr_bits(0xc000_0081), Some((0x820, 4, 8)));
        assert_eq!(msr_bits(0xc001_0015), Some((0x1005, 4, 8)));
        assert_eq!(msr_bits(0x2000), None);
        assert_eq!(msr_bits(0xc001_2000), None);
        assert_eq!(msr_bits(0x4b56_4d03), None);
    }

    #[test]
    fn each_bit_is_of_one_register() {
        let registers = RANGES.iter().flat_map(|(first, _)| *first..first + 0x2000);
        let mut seen = HashSet::new();
        for (byte, read, write) in registers.filter_map(msr_bits) {
            assert!(byte < MSR_MAP_SIZE as usize && write == 2 * read);
            assert!(seen.insert((byte, read)) && seen.insert((byte, write)));
        }
    }
}
