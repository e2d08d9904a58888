//! Enumeration of functions.

use core::ops::Range;

use crate::Address;

/// Header type: the device has more functions than function 0 (PCI Local Bus Specification, 6.2.1), as in the register
/// [`HEADER`](crate::register::HEADER).
const MULTI_FUNCTION: u32 = 1 << 23;

/// Addresses of the functions that the devices on `buses` may have; others have none, as a device has function 0. `header`: the register
/// [`HEADER`](crate::register::HEADER) of a function, `None` without the function.
pub fn functions(buses: Range<u16>, header: impl Fn(Address) -> Option<u32>) -> impl Iterator<Item = Address> {
    let devices = buses.flat_map(|bus| (0..32).map(move |device| bus << 8 | device << 3));
    devices.flat_map(move |device| {
        let count = header(Address::from_routing_id(device)).map_or(0, |header| if header & MULTI_FUNCTION != 0 { 8 } else { 1 });
        (0..count).map(move |function| Address::from_routing_id(device | function))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn devices_of_each_bus() {
        let reads = Cell::new(0);
        let header = |address: Address| {
            reads.set(reads.get() + 1);
            match address.routing_id() {
                0x008 | 0x180 => Some(0),
                0xfff8 => Some(MULTI_FUNCTION | 1 << 16),
                _ => None,
            }
        };
        let found = |buses| functions(buses, header).map(Address::routing_id).collect::<Vec<_>>();
        assert_eq!(found(1..256), [&[0x180][..], &(0xfff8..=0xffff).collect::<Vec<_>>()].concat());
        assert_eq!(reads.take(), 255 * 32);
        assert_eq!([found(0..1), found(2..255), found(1..1)], [std::vec![8], Vec::new(), Vec::new()]);
    }
}
