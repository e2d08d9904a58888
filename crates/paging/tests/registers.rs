//! Register values, and the table geometries from which they are made.

use stile_paging::registers::{MAIR_EL2, PaRange, tcr_el2, vtcr_el2, vttbr_el2};
use stile_paging::table::{El2, Geometry, Level};
use stile_paging::vmid::VmidBits;

#[test]
fn pa_range() {
    let bits = |field: u64| PaRange::from_mmfr0(0xffff_fff0 | field).bits();
    assert_eq!([0, 1, 2, 3, 4, 5].map(bits), [32, 36, 40, 42, 44, 48]);
    assert!((6..16).all(|field| bits(field) == 48));
    assert_eq!(PaRange::Bits36.limit(), 0x10_0000_0000);
}

#[test]
fn vmid_bits() {
    assert_eq!(VmidBits::from_mmfr1(0x10212122), VmidBits::Sixteen);
    assert_eq!(VmidBits::from_mmfr1(0xffff_ff0f), VmidBits::Eight);
}

#[test]
fn stage2_geometry() {
    let start = |bits, pa_range| Geometry::stage2(bits, pa_range).map(|geometry| (geometry.start(), geometry.root_size()));
    assert_eq!(start(30, PaRange::Bits48), None);
    assert_eq!(start(31, PaRange::Bits48), Some((Level::L1, 4096)));
    assert_eq!(start(39, PaRange::Bits40), Some((Level::L1, 4096)));
    assert_eq!(start(40, PaRange::Bits40), Some((Level::L1, 2 * 4096)));
    assert_eq!(start(41, PaRange::Bits40), None);
    assert_eq!(start(43, PaRange::Bits44), Some((Level::L1, 16 * 4096)));
    assert_eq!(start(44, PaRange::Bits44), Some((Level::L0, 4096)));
    assert_eq!(start(48, PaRange::Bits48), Some((Level::L0, 4096)));
    assert_eq!(start(49, PaRange::Bits48), None);
    let from = |start, bits| {
        let geometry = Geometry::stage2_from(start, bits, PaRange::Bits44);
        geometry.map(|geometry| geometry.root_size() / 4096)
    };
    assert_eq!([21, 22, 30, 31, 34, 35].map(|bits| from(Level::L2, bits)), [None, Some(1), Some(1), Some(2), Some(16), None]);
    assert_eq!([39, 40, 44].map(|bits| from(Level::L0, bits)), [None, Some(1), Some(1)]);
    assert_eq!(Geometry::stage2_from(Level::L0, 40, PaRange::Bits42), None);
    assert_eq!(from(Level::L3, 25), None);
}

#[test]
fn stage1_geometry() {
    let start = |bits| Geometry::stage1(bits, PaRange::Bits40).map(|geometry| geometry.start());
    assert_eq!([30, 49].map(start), [None; 2]);
    assert_eq!([31, 39].map(start), [Some(Level::L1); 2]);
    assert_eq!([40, 48].map(start), [Some(Level::L0); 2]);
}

#[test]
fn vtcr() {
    let geometry = Geometry::stage2(40, PaRange::Bits40).unwrap();
    assert_eq!(vtcr_el2(&geometry, VmidBits::Eight), 0x8002_3558);
    assert_eq!(vtcr_el2(&geometry, VmidBits::Sixteen), 0x800a_3558);
    let geometry = Geometry::stage2(48, PaRange::Bits48).unwrap();
    assert_eq!(vtcr_el2(&geometry, VmidBits::Sixteen), 0x800d_3590);
    let geometry = Geometry::stage2_from(Level::L2, 32, PaRange::Bits36).unwrap();
    assert_eq!(vtcr_el2(&geometry, VmidBits::Eight), 0x8001_3520);
}

#[test]
fn vttbr() {
    assert_eq!(vttbr_el2(0x4_5678_9000, 0xbeef), 0xbeef_0004_5678_9000);
}

#[test]
fn tcr() {
    let geometry = Geometry::stage1(48, PaRange::Bits44).unwrap();
    assert_eq!(tcr_el2(&geometry, El2::Nvhe), 0x8084_3510);
    assert_eq!(tcr_el2(&geometry, El2::Vhe), 0x4_8090_3510);
}

#[test]
fn mair() {
    assert_eq!(MAIR_EL2, 0x44_04ff);
}
