//! Conversion of virtual EL2 registers whose layout depends on HCR_EL2.E2H, from the E2H = 0 to the
//! equivalent E2H = 1 layout. The latter is also the layout of the EL1 register that represents it on the
//! processor.
//!
//! Arm ARM, the registers' pages, which have both layouts.

/// Moves a field of `width` bits.
const fn moved(value: u64, from: u32, to: u32, width: u32) -> u64 {
    (value >> from & ((1 << width) - 1)) << to
}

/// CPTR_EL2: TFP, TZ, TSM and TTA trap when set; FPEN, ZEN and SMEN don't when 0b11.
pub const fn cptr(cptr: u64) -> u64 {
    const TCPAC_TAM: u64 = 0b11 << 30;
    const fn enable(cptr: u64, trap: u32, to: u32) -> u64 {
        if cptr >> trap & 1 == 0 { 0b11 << to } else { 0 }
    }
    cptr & TCPAC_TAM | moved(cptr, 20, 28, 1) | enable(cptr, 12, 24) | enable(cptr, 10, 20) | enable(cptr, 8, 16)
}

/// CNTHCTL_EL2: EL1PCTEN, EL1PCEN (called EL1PTEN with E2H), and FEAT_ECV's fields.
pub const fn cnthctl(cnthctl: u64) -> u64 {
    const ECV: u64 = 0x1f << 13;
    cnthctl & ECV | moved(cnthctl, 0, 10, 2)
}

/// TCR_EL2 as TCR_EL1: the upper range is disabled.
pub const fn tcr(tcr: u64) -> u64 {
    /// T0SZ, IRGN0, ORGN0, SH0, TG0.
    const COMMON: u64 = 0xff3f;
    const EPD1: u64 = 1 << 23;
    /// TG1 of 4 KiB and T1SZ of 48 bits: reserved values are not guaranteed to be ignored.
    const VALID_UPPER: u64 = 0b10 << 30 | 16 << 16;
    // PS, TBI, HA, HD, HPD, TBID, DS.
    let moves = [(16, 32, 3), (20, 37, 1), (21, 39, 1), (22, 40, 1), (24, 41, 1), (29, 51, 1), (32, 59, 1)];
    let mut value = tcr & COMMON | EPD1 | VALID_UPPER;
    let mut n = 0;
    while n < moves.len() {
        let (from, to, width) = moves[n];
        value |= moved(tcr, from, to, width);
        n += 1;
    }
    value
}

/// TTBR0_EL2 as TTBR0_EL1: no ASIDs, i.e. ASID 0.
pub const fn ttbr0(ttbr0: u64) -> u64 {
    const ASID: u64 = 0xffff << 48;
    ttbr0 & !ASID
}

/// SCTLR_EL2 as SCTLR_EL1: same positions, but no fields for EL0.
pub const fn sctlr(sctlr: u64) -> u64 {
    /// M, A, C, SA, nAA, EOS, I, EnDB, WXN, IESB, EIS, EE, EnDA, EnIB, EnIA, BT, ITFSB, TCF, ATA, DSSBS.
    const COMMON: u64 =
        0b1111 | 1 << 6 | 0b111 << 11 | 1 << 19 | 0b11 << 21 | 1 << 25 | 1 << 27 | 0b11 << 30 | 0b11 << 36 | 0b11 << 40 | 0b11 << 43;
    /// SA0, CP15BEN, nTWI, nTWE, SPAN, nTLSMD, LSMAOE: their neutral values.
    const NEUTRAL: u64 = 0b11 << 4 | 1 << 16 | 1 << 18 | 1 << 23 | 0b11 << 28;
    sctlr & COMMON | NEUTRAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traps_become_enables() {
        assert_eq!(cptr(0), 0b11 << 16 | 0b11 << 20 | 0b11 << 24);
        assert_eq!(cptr(u64::MAX), 1 << 31 | 1 << 30 | 1 << 28);
        // The bits that are RES1 without SVE and SME trap both; TFP is not among them.
        assert_eq!([cptr(0x33ff), cptr(0x37ff)], [0b11 << 20, 0]);
    }

    #[test]
    fn timers_of_el1() {
        assert_eq!([cnthctl(0b01), cnthctl(0b10), cnthctl(1 << 13 | 0b1100)], [1 << 10, 1 << 11, 1 << 13]);
    }

    #[test]
    fn a_single_range() {
        // 39 bits, 4 KiB granule, cacheable inner shareable walks, 40 bits of output, RES1: as written by Xen
        // and KVM.
        let value = tcr(25 | 0b01 << 8 | 0b01 << 10 | 0b11 << 12 | 2 << 16 | 1 << 23 | 1 << 31);
        assert_eq!(value, 25 | 0b01 << 8 | 0b01 << 10 | 0b11 << 12 | 2 << 32 | 1 << 23 | 16 << 16 | 0b10 << 30);
        // TBI, HA, HD, HPD, TBID.
        assert_eq!(tcr(1 << 20 | 3 << 21 | 1 << 24 | 1 << 29) ^ tcr(0), 1 << 37 | 3 << 39 | 1 << 41 | 1 << 51);
        // Bits with another meaning in TCR_EL1 are dropped.
        assert_eq!(tcr(0b11 << 6 | 1 << 19 | 1 << 23), tcr(0));
    }

    #[test]
    fn no_asids() {
        assert_eq!(ttbr0(u64::MAX), u64::MAX >> 16);
    }

    #[test]
    fn controls_of_el0_are_neutral() {
        // M, A, C, SA, I and the bits that are RES1 at EL2.
        let el2 = 0x30c5_0830 | 0b1111 | 1 << 12;
        assert_eq!(sctlr(el2), el2);
        // UCT, DZE, UCI, UMA: don't exist without EL0.
        assert_eq!(sctlr(el2 | 1 << 9 | 0b11 << 14 | 1 << 26), el2);
        assert_eq!(sctlr(0), 0x3085_0030);
    }
}
