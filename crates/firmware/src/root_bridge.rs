//! Memory that a PCI host bridge has by its EFI_PCI_ROOT_BRIDGE_IO_PROTOCOL (UEFI Specification 2.10, 14.2; Configuration() returns the
//! resource descriptors of table "QWORD Address Space Descriptor"). Firmware lists what it has given to functions.

use core::ops::Range;

use heapless::Vec;

use crate::Memory;
use crate::bytes::{u8_at, u16_at, u64_at};

/// Maximum number of windows that are read: two for 32-bit and 64-bit BARs each.
pub const MOST_WINDOWS: usize = 4;

/// Maximum number of descriptors that are read.
const MOST_DESCRIPTORS: usize = 16;
/// The first byte of a descriptor, and the length that follows it; the whole descriptor's length.
const QWORD: (u8, u16) = (0x8a, 0x2b);
const DESCRIPTOR: usize = 46;
/// Types of resources.
const MEMORY: u8 = 0;
const BUSES: u8 = 2;
/// End of the physical addresses that Stile uses.
const ADDRESSES: u64 = 1 << 48;

/// A window of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Addresses on the bus: the values of BARs.
    pub pci: Range<u64>,
    /// Physical address of the first byte.
    pub cpu: u64,
}

impl Window {
    /// The window of `size` bytes with these first addresses. `None` if it is empty or exceeds the addresses that there are.
    pub fn new(pci: u64, cpu: u64, size: u64) -> Option<Self> {
        let pci = pci..pci.checked_add(size)?;
        (size != 0 && cpu.checked_add(size)? <= ADDRESSES).then_some(Window { pci, cpu })
    }

    /// Physical address of `size` bytes on the bus, if the window has all of them.
    pub fn to_cpu(&self, address: u64, size: u64) -> Option<u64> {
        let offset = address.checked_sub(self.pci.start)?;
        (size <= self.pci.end - self.pci.start && offset <= self.pci.end - self.pci.start - size).then(|| self.cpu + offset)
    }
}

/// Reads the windows in the list of descriptors at an address. `None` if the bridge does not have bus 0.
pub fn windows(memory: &impl Memory, address: u64) -> Option<Vec<Window, MOST_WINDOWS>> {
    let mut windows = Vec::new();
    for number in 0..MOST_DESCRIPTORS {
        let at = address.checked_add((number * DESCRIPTOR) as u64)?;
        let head = memory.bytes(at, 3)?;
        if (u8_at(head, 0)?, u16_at(head, 1)?) != QWORD {
            break;
        }
        let bytes = memory.bytes(at, DESCRIPTOR)?;
        let (start, translation, size) = (u64_at(bytes, 14)?, u64_at(bytes, 30)?, u64_at(bytes, 38)?);
        match u8_at(bytes, 3)? {
            // Addresses are those of CPUs; the sum with the translation is that on the bus.
            MEMORY => {
                let window = Window::new(start.wrapping_add(translation), start, size);
                // Windows beyond those that are read are left out.
                let _ = window.map(|window| windows.push(window));
            }
            BUSES if start != 0 => return None,
            _ => {}
        }
    }
    Some(windows)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::flat::Flat;
    use proptest::prelude::*;

    fn descriptor(kind: u8, start: u64, translation: u64, size: u64) -> std::vec::Vec<u8> {
        let mut bytes = std::vec![0x8a, 0x2b, 0, kind, 0, 0];
        for field in [32, start, start.wrapping_add(size).wrapping_sub(1), translation, size] {
            bytes.extend(field.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn windows_of_bus_0() {
        let memory = descriptor(MEMORY, 0x1000_0000, 0, 0x5000);
        let wide = descriptor(MEMORY, 0x80_0000_0000, (-0x80_0000_0000_i64) as u64, 0x4000);
        let (io, empty, beyond) =
            (descriptor(1, 0, 0, 0x40), descriptor(MEMORY, 0x2000, 0, 0), descriptor(MEMORY, ADDRESSES - 0x1000, 0, 0x2000));
        let end = std::vec![0x79, 0];
        let list =
            |first_bus| Flat([&io[..], &memory, &empty, &wide, &beyond, &descriptor(BUSES, first_bus, 0, 1), &end, &memory].concat());
        let found = windows(&list(0), 0).unwrap();
        assert_eq!(found[..], [Window::new(0x1000_0000, 0x1000_0000, 0x5000).unwrap(), Window::new(0, 0x80_0000_0000, 0x4000).unwrap()]);
        assert_eq!(windows(&list(0x80), 0), None);
        assert_eq!(windows(&Flat(memory[..40].to_vec()), 0), None, "cut short");
        assert_eq!(found[1].to_cpu(0x3000, 0x1000), Some(0x80_0000_3000));
        assert_eq!([(0x3000, 0x1001), (0x4000, 1), (0, 0x4001), (u64::MAX, 1)].map(|(at, size)| found[1].to_cpu(at, size)), [None; 4]);
        assert_eq!(found[0].to_cpu(0, 1), None);
    }

    proptest! {
        #[test]
        fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), kinds in proptest::collection::vec(0u8..3, 8)) {
            for (number, kind) in kinds.into_iter().enumerate() {
                if let Some(head) = bytes.get_mut(number * DESCRIPTOR..number * DESCRIPTOR + 4) {
                    head.copy_from_slice(&[0x8a, 0x2b, 0, kind]);
                }
            }
            for window in windows(&Flat(bytes), 0).unwrap_or_default() {
                prop_assert!(window.cpu + (window.pci.end - window.pci.start) <= ADDRESSES);
            }
        }
    }
}
