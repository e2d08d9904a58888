use proptest::prelude::*;
use std::vec::Vec;

use super::*;

fn region(addresses: Range<u64>, device: u8) -> Region<u8> {
    Region::new(addresses, Widths::ALL, device)
}

fn device<const N: usize>(bus: &Bus<u8, N>, address: u64, bytes: u64) -> Option<(u8, u64)> {
    bus.find(address, bytes).map(|hit| (hit.device, hit.offset))
}

#[test]
fn edges_of_regions() {
    let bus: Bus<u8, 4> = Bus::new([region(0x3000..0x4000, 3), region(0x1000..0x2000, 1), region(0x2000..0x2004, 2)]).unwrap();
    assert_eq!(device(&bus, 0, 1), None);
    assert_eq!(device(&bus, 0xfff, 1), None);
    assert_eq!(device(&bus, 0x1000, 8), Some((1, 0)));
    assert_eq!(device(&bus, 0x1fff, 1), Some((1, 0xfff)));
    assert_eq!(device(&bus, 0x2000, 4), Some((2, 0)));
    assert_eq!(device(&bus, 0x2003, 1), Some((2, 3)));
    assert_eq!(device(&bus, 0x2004, 1), None);
    assert_eq!(device(&bus, 0x3fff, 1), Some((3, 0xfff)));
    assert_eq!(device(&bus, 0x4000, 1), None);
    assert_eq!(device(&bus, u64::MAX, 1), None);
}

#[test]
fn an_access_ends_in_its_region() {
    let bus: Bus<u8, 4> = Bus::new([region(0x1000..0x1004, 1), region(0x1004..0x1008, 2)]).unwrap();
    assert_eq!(device(&bus, 0x1000, 8), None);
    assert_eq!(device(&bus, 0x1002, 4), None);
    assert_eq!(device(&bus, 0x1002, 2), Some((1, 2)));
    assert_eq!(device(&bus, 0x1005, 2), Some((2, 1)));
    assert_eq!(device(&bus, 0x1007, 2), None);
}

#[test]
fn widths_are_those_of_the_region() {
    let widths = Widths::BYTE.or(Widths::WORD);
    let bus: Bus<u8, 2> = Bus::new([Region::new(0..64, widths, 1)]).unwrap();
    let answered: Vec<u64> = (0..=64).filter(|&bytes| bus.find(0, bytes).is_some()).collect();
    assert_eq!(answered, [1, 4]);
}

#[test]
fn offsets_count_from_the_base() {
    let bus: Bus<u8, 4> = Bus::new([region(0x20..0x22, 1).with_base(0x20), region(0xa0..0xa2, 1).with_base(0x20)]).unwrap();
    assert_eq!(device(&bus, 0x21, 1), Some((1, 1)));
    assert_eq!(device(&bus, 0xa1, 1), Some((1, 0x81)));
    assert_eq!(Bus::<u8, 2>::new([region(0x20..0x22, 1).with_base(0x21)]).err(), Some(Error::Empty(1)));
}

#[test]
fn unusable_regions_are_refused() {
    type Four = Bus<u8, 4>;
    let error = |regions: &[Region<u8>]| Four::new(regions.iter().cloned()).err();
    assert_eq!(error(&[region(4..4, 1)]), Some(Error::Empty(1)));
    #[expect(clippy::reversed_empty_ranges, reason = "that is the point")]
    let reversed = region(5..4, 1);
    assert_eq!(error(&[reversed]), Some(Error::Empty(1)));
    assert_eq!(error(&[region(0..8, 1), region(7..9, 2)]), Some(Error::Overlap(1, 2)));
    assert_eq!(error(&[region(7..9, 1), region(0..8, 2)]), Some(Error::Overlap(1, 2)));
    assert_eq!(error(&[region(0..8, 1), region(2..3, 2)]), Some(Error::Overlap(1, 2)));
    assert_eq!(error(&[region(2..3, 1), region(0..8, 2)]), Some(Error::Overlap(1, 2)));
    assert_eq!(error(&[region(2..3, 1), region(2..3, 2)]), Some(Error::Overlap(1, 2)));
    let some = |count| (0..count).map(|n| region(n * 8..n * 8 + 8, n as u8)).collect::<Vec<_>>();
    assert_eq!(error(&some(3)), None);
    assert_eq!(error(&some(4)), Some(Error::Full));
}

#[test]
fn a_slot_answers_in_its_own_region_only() {
    let bus: Bus<u8, 4> = Bus::new([region(0x1000..0x2000, 1), region(0x2000..0x3000, 2)]).unwrap();
    let second = bus.at(0x2800).unwrap();
    assert_eq!(bus.access(second, 0x2000, 8), Some(Hit { device: 2, offset: 0 }));
    assert_eq!(bus.access(second, 0x1fff, 1), None);
    assert_eq!(bus.access(second, 0x3000, 1), None);
}

#[test]
fn an_empty_bus_answers_nothing() {
    let bus: Bus<u8, 8> = Bus::new([]).unwrap();
    assert!([0, 1, u64::MAX - 1, u64::MAX].into_iter().all(|address| bus.at(address).is_none()));
}

fn regions() -> impl Strategy<Value = Vec<Region<u8>>> {
    let one = (0u64..200, 1u64..20, any::<u16>());
    let region = |(n, (start, size, widths))| Region::new(start..start + size, Widths(widths & Widths::ALL.0), n as u8);
    proptest::collection::vec(one, 0..20).prop_map(move |all| all.into_iter().enumerate().map(region).collect())
}

proptest! {
    /// A bus is built of all regions that overlap none before, and each access leads where a search of the plain list leads.
    #[test]
    fn lookups_agree_with_a_plain_list(candidates in regions()) {
        let mut list: Vec<Region<u8>> = Vec::new();
        for candidate in candidates {
            let overlaps = |other: &Region<u8>| (other.addresses.clone()).any(|address| candidate.addresses.contains(&address));
            let expected = if list.len() == 15 { Err(Error::Full) } else { Ok(()) };
            let found = list.iter().cloned().chain([candidate.clone()]);
            let built = Bus::<u8, 16>::new(found).map(drop);
            if list.iter().any(overlaps) {
                prop_assert!(built.is_err());
            } else {
                prop_assert_eq!(built, expected);
                if list.len() < 15 {
                    list.push(candidate);
                }
            }
        }
        let bus = Bus::<u8, 16>::new(list.iter().cloned()).unwrap();
        for address in 0..240 {
            for bytes in 0..10 {
                let expected = list.iter().find(|region| region.addresses.contains(&address)).and_then(|region| {
                    let fits = address + bytes <= region.addresses.end && region.widths.contains(bytes);
                    fits.then_some((region.device, address - region.addresses.start))
                });
                prop_assert_eq!(device(&bus, address, bytes), expected, "{:#x}, {} bytes", address, bytes);
                let by_slot = bus.at(address).and_then(|slot| bus.access(slot, address, bytes));
                prop_assert_eq!(by_slot, bus.find(address, bytes));
            }
            let owner = list.iter().find(|region| region.addresses.contains(&address)).map(|region| region.device);
            prop_assert_eq!(bus.at(address).and_then(|slot| bus.device(slot)), owner);
        }
    }
}
