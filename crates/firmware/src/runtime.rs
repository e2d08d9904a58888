//! UEFI's runtime services, as far as Stile calls them: SetVariable, and the addresses that services use (UEFI Specification, 8.2
//! Variable Services, and EFI_BOOT_SERVICES.GetMemoryMap).

use core::ops::Range;

use heapless::Vec;

use crate::efi;

/// Maximum number of runs of addresses of a kind. EDK2 has some 10.
const MOST: usize = 64;
/// Maximum size of all addresses in bytes: more than any firmware's, and a bound on the tables that map them.
const LARGEST: u64 = 1 << 30;
const PAGE: u64 = 4096;

/// A service, and what firmware's services use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Address of SetVariable.
    pub set_variable: u64,
    /// Pages of cacheable memory with code and data, and ACPI's.
    pub memory: Vec<Range<u64>, MOST>,
    /// Pages of devices, such as flash.
    pub devices: Vec<Range<u64>, MOST>,
}

impl Runtime {
    /// Reads the final memory map, whose descriptors have `descriptor` bytes. `None` if firmware's services can't be called: the function
    /// is in none of their memory, or they use too much, too many parts of it, or parts of pages.
    pub fn new(set_variable: u64, map: &[u8], descriptor: usize) -> Option<Runtime> {
        let read = |devices| {
            let mut found = Vec::new();
            efi::runtime(map, descriptor, devices).try_for_each(|range| found.push(range)).ok()?;
            Some(found)
        };
        let runtime = Runtime { set_variable, memory: read(false)?, devices: read(true)? };
        let mut size = 0_u64;
        for range in runtime.memory.iter().chain(&runtime.devices) {
            size = size.saturating_add(range.end - range.start);
            if !range.start.is_multiple_of(PAGE) || !range.end.is_multiple_of(PAGE) {
                return None;
            }
        }
        let is_code = runtime.memory.iter().any(|range| range.contains(&set_variable));
        (is_code && size <= LARGEST).then_some(runtime)
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RUNTIME: u64 = 1 << 63;

    fn map(of: &[(u64, u64, u64, u64)]) -> std::vec::Vec<u8> {
        let fields = of.iter().flat_map(|&(kind, start, pages, attributes)| [kind, start, 0, pages, attributes]);
        fields.flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn services_have_memory_and_devices() {
        let map =
            map(&[(5, 0x1000, 2, RUNTIME | 0xf), (6, 0x3000, 1, RUNTIME | 0xf), (11, 0x400_0000, 16, RUNTIME | 1), (7, 0x8000, 9, 0xf)]);
        let runtime = Runtime::new(0x2fff, &map, 40).unwrap();
        assert_eq!((&runtime.memory[..], &runtime.devices[..]), (&[0x1000..0x4000][..], &[0x400_0000..0x401_0000][..]));
        assert_eq!(Runtime::new(0x4000, &map, 40), None, "outside");
        assert_eq!(Runtime::new(0x400_0000, &map, 40), None, "a device");
    }

    #[test]
    fn services_may_use_memory_of_acpi() {
        let map = map(&[
            (5, 0x1000, 1, RUNTIME | 8),
            (10, 0x2000, 1, 0xf),
            (9, 0x4000, 2, 8),
            (10, 0x8000, 1, 7),
            (10, 0xa000, 1, RUNTIME | 1),
            (4, 0xc000, 1, 8),
            (0, 0xe000, 1, 8),
        ]);
        let runtime = Runtime::new(0x1000, &map, 40).unwrap();
        assert_eq!((&runtime.memory[..], &runtime.devices[..]), (&[0x1000..0x3000, 0x4000..0x6000][..], &[0xa000..0xb000][..]));
    }

    #[test]
    fn unusable_maps_are_refused() {
        let code = (5, 0x1000, 1, RUNTIME | 8);
        assert!(Runtime::new(0x1000, &map(&[code]), 40).is_some());
        for other in [(5, 0x3001, 1, RUNTIME | 8), (11, 0x3000, 1 << 18, RUNTIME), (11, 0x3000, u64::MAX, RUNTIME)] {
            assert_eq!(Runtime::new(0x1000, &map(&[code, other]), 40), None);
        }
        let many: std::vec::Vec<_> = (0..=MOST as u64).map(|n| (5, 0x2000 * n, 1, RUNTIME | 8)).collect();
        assert_eq!(Runtime::new(0, &map(&many), 40), None);
        assert!(Runtime::new(0, &map(&many[1..]), 40).is_none() && Runtime::new(0, &map(&many[..MOST]), 40).is_some());
    }

    proptest! {
        #[test]
        fn any_map_is_no_panic(address: u64, map: std::vec::Vec<u8>, descriptor: usize) {
            let _ = Runtime::new(address, &map, descriptor);
        }
    }
}
