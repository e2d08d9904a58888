//! Values of the registers that control translation. Pure functions: no register is accessed.

use crate::table::{Geometry, Level};
use crate::vmid::VmidBits;
use bitfield_struct::bitfield;

/// The physical address size, as in `ID_AA64MMFR0_EL1.PARange`; at most 48 bits, the limit of 4 KiB granule
/// descriptors without FEAT_LPA2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PaRange {
    /// 4 GiB.
    Bits32 = 0b000,
    /// 64 GiB.
    Bits36 = 0b001,
    /// 1 TiB.
    Bits40 = 0b010,
    /// 4 TiB.
    Bits42 = 0b011,
    /// 16 TiB.
    Bits44 = 0b100,
    /// 256 TiB.
    Bits48 = 0b101,
}

impl PaRange {
    /// Decodes `ID_AA64MMFR0_EL1` (`PARange` is bits 3 to 0). Larger and reserved sizes are taken as 48 bits.
    #[must_use]
    pub const fn from_mmfr0(id_aa64mmfr0: u64) -> Self {
        match id_aa64mmfr0 & 0xf {
            0b0000 => Self::Bits32,
            0b0001 => Self::Bits36,
            0b0010 => Self::Bits40,
            0b0011 => Self::Bits42,
            0b0100 => Self::Bits44,
            _ => Self::Bits48,
        }
    }

    /// The largest size within so many address bits (Intel's MAXPHYADDR); at least 32 bits.
    #[must_use]
    pub const fn of_bits(bits: u8) -> Self {
        match bits {
            0..36 => Self::Bits32,
            36..40 => Self::Bits36,
            40..42 => Self::Bits40,
            42..44 => Self::Bits42,
            44..48 => Self::Bits44,
            _ => Self::Bits48,
        }
    }

    /// Number of physical address bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Bits32 => 32,
            Self::Bits36 => 36,
            Self::Bits40 => 40,
            Self::Bits42 => 42,
            Self::Bits44 => 44,
            Self::Bits48 => 48,
        }
    }

    /// The exclusive end of physical addresses.
    #[must_use]
    pub const fn limit(self) -> u64 {
        1 << self.bits()
    }
}

/// Attributes in [`MAIR_EL2`], by the index that first-stage descriptors use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MairIndex {
    /// Normal memory, inner and outer write-back, allocating on reads and writes.
    Normal = 0,
    /// Device-nGnRE.
    Device = 1,
    /// Normal memory, inner and outer non-cacheable.
    NonCacheable = 2,
}

/// The value of `MAIR_EL2` that [`El2`](crate::table::El2) tables assume. Unused attributes are 0:
/// Device-nGnRnE.
pub const MAIR_EL2: u64 =
    0xff << (8 * MairIndex::Normal as u32) | 0x04 << (8 * MairIndex::Device as u32) | 0x44 << (8 * MairIndex::NonCacheable as u32);

/// `xRGNn`: write-back, read-allocate, write-allocate.
const WRITE_BACK: u8 = 0b01;
/// `SHn`: inner shareable.
const INNER_SHAREABLE: u8 = 0b11;
/// `TG1`: 4 KiB. (`TG0` encodes it as 0.)
const TG1_4K: u8 = 0b10;

/// See "VTCR_EL2, Virtualization Translation Control Register" in the manual.
#[bitfield(u64)]
struct Vtcr {
    #[bits(6)]
    t0sz: u8,
    #[bits(2)]
    sl0: u8,
    #[bits(2)]
    irgn0: u8,
    #[bits(2)]
    orgn0: u8,
    #[bits(2)]
    sh0: u8,
    #[bits(2)]
    tg0: u8,
    #[bits(3)]
    ps: u8,
    vs: bool,
    _res: bool,
    ha: bool,
    hd: bool,
    #[bits(8)]
    _unused: u8,
    /// Bit 31 is RES1.
    #[bits(default = true)]
    res1: bool,
    #[bits(32)]
    _high: u32,
}

/// `VTCR_EL2` for second-stage tables of `geometry` ([`Geometry::stage2`]): 4 KiB granule, walks
/// cacheable and inner shareable, no update of access flag or dirty state by hardware.
#[must_use]
pub fn vtcr_el2(geometry: &Geometry, vmid_bits: VmidBits) -> u64 {
    // With the 4 KiB granule SL0 counts down from level 2.
    let sl0 = match geometry.start() {
        Level::L0 => 0b10,
        Level::L1 => 0b01,
        Level::L2 | Level::L3 => 0b00,
    };
    Vtcr::new()
        .with_t0sz(64 - geometry.input_bits())
        .with_sl0(sl0)
        .with_irgn0(WRITE_BACK)
        .with_orgn0(WRITE_BACK)
        .with_sh0(INNER_SHAREABLE)
        .with_ps(geometry.pa_range() as u8)
        .with_vs(vmid_bits == VmidBits::Sixteen)
        .into()
}

/// `VTTBR_EL2` for the second-stage table at `root`. See "VTTBR_EL2, Virtualization Translation Table Base
/// Register" in the manual.
#[must_use]
pub const fn vttbr_el2(root: u64, vmid: u16) -> u64 {
    (vmid as u64) << 48 | root
}

/// `TCR_EL2` when `HCR_EL2.E2H` is 0. See "TCR_EL2, Translation Control Register (EL2)" in the manual.
#[bitfield(u64)]
struct TcrNvhe {
    #[bits(6)]
    t0sz: u8,
    #[bits(2)]
    _res: u8,
    #[bits(2)]
    irgn0: u8,
    #[bits(2)]
    orgn0: u8,
    #[bits(2)]
    sh0: u8,
    #[bits(2)]
    tg0: u8,
    #[bits(3)]
    ps: u8,
    _res0: bool,
    tbi: bool,
    ha: bool,
    hd: bool,
    /// Bit 23 is RES1.
    #[bits(default = true)]
    res1_23: bool,
    #[bits(7)]
    _unused: u8,
    /// Bit 31 is RES1.
    #[bits(default = true)]
    res1_31: bool,
    #[bits(32)]
    _high: u32,
}

/// `TCR_EL2` when `HCR_EL2.E2H` is 1: the layout of `TCR_EL1`.
#[bitfield(u64)]
struct TcrVhe {
    #[bits(6)]
    t0sz: u8,
    _res: bool,
    epd0: bool,
    #[bits(2)]
    irgn0: u8,
    #[bits(2)]
    orgn0: u8,
    #[bits(2)]
    sh0: u8,
    #[bits(2)]
    tg0: u8,
    #[bits(6)]
    t1sz: u8,
    a1: bool,
    epd1: bool,
    #[bits(2)]
    irgn1: u8,
    #[bits(2)]
    orgn1: u8,
    #[bits(2)]
    sh1: u8,
    #[bits(2)]
    tg1: u8,
    #[bits(3)]
    ips: u8,
    #[bits(29)]
    _high: u32,
}

/// `TCR_EL2` for tables of `geometry` ([`Geometry::stage1`]) in `TTBR0_EL2`: 4 KiB granule, walks
/// cacheable and inner shareable, no tags, no update of access flag or dirty state by hardware. With `El2::Vhe`
/// walks of the upper range (`TTBR1_EL2`) are off.
#[must_use]
pub fn tcr_el2(geometry: &Geometry, format: crate::table::El2) -> u64 {
    let t0sz = 64 - geometry.input_bits();
    let ps = geometry.pa_range() as u8;
    match format {
        crate::table::El2::Nvhe => {
            TcrNvhe::new().with_t0sz(t0sz).with_irgn0(WRITE_BACK).with_orgn0(WRITE_BACK).with_sh0(INNER_SHAREABLE).with_ps(ps).into()
        }
        crate::table::El2::Vhe => TcrVhe::new()
            .with_t0sz(t0sz)
            .with_irgn0(WRITE_BACK)
            .with_orgn0(WRITE_BACK)
            .with_sh0(INNER_SHAREABLE)
            // Walks of this range are disabled, but size and granule are valid all the same: reserved values
            // are not guaranteed to be ignored.
            .with_t1sz(t0sz)
            .with_tg1(TG1_4K)
            .with_epd1(true)
            .with_ips(ps)
            .into(),
    }
}
