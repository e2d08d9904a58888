//! Accesses on a bus, and its layout.

use std::ops::Range;

use stile_bus::{Bus, Region, Widths};

use crate::input::Input;
use crate::marks::reach;
use crate::target::{Target, none};

/// Buses of any regions, accessed at any address with any width, compared with a search of the list of regions.
pub const BUS: Target =
    Target { name: "bus", run: bus, seeds: none, mutations: 4000, marks: &["built", "refused", "hit", "miss", "cut off"] };

const ROOM: usize = 16;

fn bus(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut list: Vec<(Range<u64>, u64, u8)> = Vec::new();
    let mut bus = Bus::<u8, ROOM>::new([]).expect("an empty bus");
    while !input.is_empty() {
        if input.bit() {
            let start = if input.bit() { input.value() } else { input.below(64).try_into().unwrap_or(0) };
            let end = start.wrapping_add(input.byte().into());
            let base = if input.bit() { start } else { input.value() };
            let widths = input.byte();
            let candidate = (start..end, base, widths);
            let built = Bus::new(list.iter().chain([&candidate]).enumerate().map(|(n, region)| region_of(n as u8, region)));
            let is_free = list.iter().all(|(other, ..)| other.end <= start || end <= other.start);
            assert_eq!(built.is_ok(), start < end && base <= start && is_free && list.len() < ROOM - 1, "{candidate:x?} beside {list:x?}");
            match built {
                Ok(built) => {
                    reach("built");
                    bus = built;
                    list.push(candidate);
                }
                Err(_) => reach("refused"),
            }
            continue;
        }
        let near = list.get(input.below(ROOM)).map_or(0, |(range, ..)| range.start);
        let address = if input.bit() { input.value() } else { near.wrapping_add(input.byte().into()).wrapping_sub(8) };
        let bytes = u64::from(input.byte() % 10);
        let found = bus.find(address, bytes).map(|hit| (hit.device, hit.offset));
        let region = list.iter().enumerate().find(|(_, (range, ..))| range.contains(&address));
        let expected = region.and_then(|(n, (range, base, widths))| {
            let fits = range.end - address >= bytes && widths_of(*widths).contains(bytes);
            fits.then_some((n as u8, address - base))
        });
        assert_eq!(found, expected, "{address:#x}, {bytes} bytes");
        reach(if found.is_some() {
            "hit"
        } else if region.is_some() {
            "cut off"
        } else {
            "miss"
        });
        let slot = bus.at(address);
        assert_eq!(slot.and_then(|slot| bus.device(slot)), region.map(|(n, _)| n as u8));
        assert_eq!(slot.and_then(|slot| bus.access(slot, address, bytes)), bus.find(address, bytes));
    }
}

fn widths_of(bits: u8) -> Widths {
    let all = [Widths::BYTE, Widths::HALF, Widths::WORD, Widths::DOUBLE];
    let chosen = all.into_iter().enumerate().filter(|(n, _)| bits >> n & 1 != 0).map(|(_, width)| width);
    chosen.reduce(Widths::or).unwrap_or(Widths::ALL)
}

fn region_of(device: u8, (range, base, widths): &(Range<u64>, u64, u8)) -> Region<u8> {
    Region::new(range.clone(), widths_of(*widths), device).with_base(*base)
}
