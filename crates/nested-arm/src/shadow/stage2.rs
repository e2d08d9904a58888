//! Decoding of L1's VTCR_EL2 and VTTBR_EL2.

/// HCR_EL2.VM: the second stage is on.
const HCR_VM: u64 = 1 << 0;
/// HCR_EL2.DC: the first stage is off, and HCR_EL2.VM is taken as 1.
const HCR_DC: u64 = 1 << 12;
/// SCTLR_EL2.EE: table walks of EL2 and of the second stage are big-endian.
const SCTLR_EE: u64 = 1 << 25;
/// VTCR_EL2.VS: VMIDs have 16 bits.
const VTCR_VS: u64 = 1 << 19;
/// VTTBR_EL2.BADDR, without bit 0, which is CnP (FEAT_TTCNP).
const BADDR: u64 = 0x0000_ffff_ffff_fffe;

/// A translation granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granule {
    /// 4 KiB.
    K4,
    /// 16 KiB.
    K16,
    /// 64 KiB.
    K64,
}

impl Granule {
    /// log2 of the page size.
    pub const fn shift(self) -> u32 {
        match self {
            Self::K4 => 12,
            Self::K16 => 14,
            Self::K64 => 16,
        }
    }

    /// Number of address bits that a table resolves.
    pub const fn stride(self) -> u32 {
        self.shift() - 3
    }

    /// The lowest bit that an entry of `level` (0 to 3) resolves.
    pub const fn level_shift(self, level: u8) -> u32 {
        self.shift() + self.stride() * 3u32.saturating_sub(level as u32)
    }

    /// Whether entries of `level` can be blocks. With 64 KiB, level 1 would need addresses of 52 bits.
    pub const fn has_blocks(self, level: u8) -> bool {
        match self {
            Self::K4 => matches!(level, 1 | 2),
            Self::K16 | Self::K64 => level == 2,
        }
    }

    /// Decodes VTCR_EL2.TG0. The reserved value is taken as 4 KiB.
    const fn from_tg0(tg0: u64) -> Self {
        match tg0 & 0b11 {
            0b01 => Self::K64,
            0b10 => Self::K16,
            _ => Self::K4,
        }
    }
}

/// A second stage as configured by L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage2 {
    pub(super) granule: Granule,
    /// Number of bits of the input address.
    pub(super) input_bits: u32,
    /// The level of the root; `None` if the configuration is invalid, which makes every walk fault.
    pub(super) start: Option<u8>,
    /// Number of bits of the output address.
    pub(super) output_bits: u32,
    /// The root, aligned to its size.
    pub(super) root: u64,
    pub(super) is_enabled: bool,
    pub(super) is_big_endian: bool,
    vmid: u16,
}

impl Stage2 {
    /// Decodes L1's registers: VTCR_EL2, VTTBR_EL2, HCR_EL2 and SCTLR_EL2. Its physical addresses have `pa_bits` bits (32 to
    /// 48, from its ID_AA64MMFR0_EL1.PARange). Defined for all values: with those that the architecture reserves, walks fault.
    ///
    /// Arm ARM pseudocode, `AArch64.S2InvalidSL`, `AArch64.S2InconsistentSL` and `AArch64.S2TxSZFaults`.
    pub const fn decode(vtcr: u64, vttbr: u64, hcr: u64, sctlr: u64, pa_bits: u8) -> Self {
        let pa_bits = if pa_bits > 48 { 48 } else { pa_bits as u32 };
        let granule = Granule::from_tg0(vtcr >> 14);
        let input_bits = 64 - (vtcr & 0x3f) as u32;
        let start = start_level(granule, vtcr >> 6 & 0b11, input_bits, pa_bits);
        let ps = match vtcr >> 16 & 0b111 {
            0b000 => 32,
            0b001 => 36,
            0b010 => 40,
            0b011 => 42,
            0b100 => 44,
            _ => 48,
        };
        let root_bytes = match start {
            Some(level) => 8u64 << (input_bits - granule.level_shift(level)),
            None => 0,
        };
        // Tables are aligned to at least 64 bytes.
        let align = if root_bytes < 64 { 64 } else { root_bytes };
        Self {
            granule,
            input_bits,
            start,
            output_bits: if ps < pa_bits { ps } else { pa_bits },
            root: vttbr & BADDR & !(align - 1),
            is_enabled: hcr & (HCR_VM | HCR_DC) != 0,
            is_big_endian: sctlr & SCTLR_EE != 0,
            vmid: vmid(vtcr, vttbr),
        }
    }

    /// Whether L1 has enabled the second stage. If not, L2's addresses are L1's.
    pub const fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Granule of the tables.
    pub const fn granule(&self) -> Granule {
        self.granule
    }

    /// L1's VMID.
    pub const fn vmid(&self) -> u16 {
        self.vmid
    }
}

/// The VMID in L1's VTTBR_EL2: 8 bits, or 16 with VTCR_EL2.VS.
pub(super) const fn vmid(vtcr: u64, vttbr: u64) -> u16 {
    let vmid = (vttbr >> 48) as u16;
    if vtcr & VTCR_VS != 0 { vmid } else { vmid & 0xff }
}

/// The initial lookup level, if the configuration is valid.
const fn start_level(granule: Granule, sl0: u64, input_bits: u32, pa_bits: u32) -> Option<u8> {
    let level = match (granule, sl0) {
        (Granule::K4, 0b00) => 2,
        (Granule::K4, 0b01) => 1,
        (Granule::K4, 0b10) if pa_bits >= 44 => 0,
        (Granule::K16 | Granule::K64, 0b00) => 3,
        (Granule::K16 | Granule::K64, 0b01) => 2,
        (Granule::K16, 0b10) if pa_bits >= 42 => 1,
        (Granule::K64, 0b10) if pa_bits >= 44 => 1,
        _ => return None,
    };
    // The first level resolves at least one bit, and at most four more than a table: 16 concatenated tables.
    let least = granule.level_shift(level) + 1;
    let most = granule.level_shift(level) + granule.stride() + 4;
    // T0SZ is at most 39, so that the input has at least 25 bits, and the input is no wider than physical addresses.
    let is_in_range = input_bits >= 25 && input_bits <= pa_bits && input_bits >= least && input_bits <= most;
    if is_in_range { Some(level) } else { None }
}
