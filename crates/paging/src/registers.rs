//! Values of the registers that control translation. Pure functions: no register is accessed.

mod mair;
mod pa_range;

pub use mair::{MAIR_EL2, MairIndex};
pub use pa_range::PaRange;

use crate::table::{Geometry, Level};
use crate::vmid::VmidBits;
use bitfield_struct::bitfield;

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

/// `VTTBR_EL2` for the second-stage table at `root`, a physical address that is aligned to the size of the root table.
/// CnP is 0. See "VTTBR_EL2, Virtualization Translation Table Base Register" in the manual.
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
/// cacheable and inner shareable, no top-byte ignore, no update of access flag or dirty state by hardware. With
/// `El2::Vhe`, walks of the upper range (`TTBR1_EL2`) are disabled.
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
