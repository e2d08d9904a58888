//! Decoding of guest-physical addresses into devices and RAM.

use crate::{MAX_VCPUS, map};

/// The part of the guest board at an IPA. Offsets are bytes from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The interrupt controller's distributor.
    Gicd {
        /// Less than [`map::GICD_SIZE`].
        offset: u32,
    },
    /// The redistributor of one virtual CPU.
    Gicr {
        /// The redistributor's vCPU: less than [`MAX_VCPUS`]. The virtual machine may have fewer CPUs.
        vcpu: u8,
        /// Less than [`map::GICR_STRIDE`]; the `SGI_base` frame starts at 64 KiB.
        offset: u32,
    },
    /// The UART.
    Pl011 {
        /// Less than [`map::PL011_SIZE`].
        offset: u32,
    },
    /// The real-time clock.
    Pl031 {
        /// Less than [`map::PL031_SIZE`].
        offset: u32,
    },
    /// Possible RAM: the virtual machine may have less of it ([`map::ram_contains`]).
    Ram {
        /// Less than [`map::RAM_MAX`].
        offset: u64,
    },
    /// Unassigned.
    None,
}

impl Region {
    /// Returns the region of `ipa`.
    ///
    /// Compiles to a few compares without a table. The caller checks the end of the access; an access of a power-of-two size that is
    /// aligned to it never leaves its region.
    #[inline]
    pub const fn of(ipa: u64) -> Region {
        // The interrupt controller first: running guests access it most.
        let gicd = ipa.wrapping_sub(map::GICD_BASE);
        if gicd < map::GICD_SIZE {
            return Region::Gicd { offset: gicd as u32 };
        }
        let gicr = ipa.wrapping_sub(map::GICR_BASE);
        if gicr < map::GICR_STRIDE * MAX_VCPUS as u64 {
            return Region::Gicr { vcpu: (gicr / map::GICR_STRIDE) as u8, offset: (gicr % map::GICR_STRIDE) as u32 };
        }
        let pl011 = ipa.wrapping_sub(map::PL011_BASE);
        if pl011 < map::PL011_SIZE {
            return Region::Pl011 { offset: pl011 as u32 };
        }
        let pl031 = ipa.wrapping_sub(map::PL031_BASE);
        if pl031 < map::PL031_SIZE {
            return Region::Pl031 { offset: pl031 as u32 };
        }
        let ram = ipa.wrapping_sub(map::RAM_BASE);
        if ram < map::RAM_MAX {
            return Region::Ram { offset: ram };
        }
        Region::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edges() {
        assert_eq!(Region::of(map::GICD_BASE - 1), Region::None);
        assert_eq!(Region::of(map::GICD_BASE), Region::Gicd { offset: 0 });
        assert_eq!(Region::of(map::GICD_BASE + 0xffff), Region::Gicd { offset: 0xffff });
        assert_eq!(Region::of(map::GICD_BASE + 0x1_0000), Region::None);
        assert_eq!(Region::of(map::GICR_BASE - 1), Region::None);
        for vcpu in 0..MAX_VCPUS {
            let base = crate::gicr_base(vcpu);
            let vcpu = vcpu as u8;
            assert_eq!(Region::of(base), Region::Gicr { vcpu, offset: 0 });
            assert_eq!(Region::of(base + 0x1_ffff), Region::Gicr { vcpu, offset: 0x1_ffff });
        }
        assert_eq!(Region::of(crate::gicr_base(MAX_VCPUS)), Region::None);
        assert_eq!(Region::of(map::PL011_BASE + 0x18), Region::Pl011 { offset: 0x18 });
        assert_eq!(Region::of(map::PL011_BASE + 0x1000), Region::None);
        assert_eq!(Region::of(map::PL031_BASE + 4), Region::Pl031 { offset: 4 });
        assert_eq!(Region::of(map::PL031_BASE + 0x1000), Region::None);
        assert_eq!(Region::of(map::RAM_BASE - 1), Region::None);
        assert_eq!(Region::of(map::RAM_BASE), Region::Ram { offset: 0 });
        assert_eq!(Region::of(map::RAM_BASE + map::RAM_MAX), Region::None);
        assert_eq!(Region::of(u64::MAX), Region::None);
    }

    proptest! {
        /// A device region's offset added to its base is the address again, and stays in range.
        #[test]
        fn offsets_lead_back(ipa in 0u64..0x4100_0000) {
            match Region::of(ipa) {
                Region::Gicd { offset } => {
                    prop_assert!(u64::from(offset) < map::GICD_SIZE);
                    prop_assert_eq!(map::GICD_BASE + u64::from(offset), ipa);
                }
                Region::Gicr { vcpu, offset } => {
                    prop_assert!(usize::from(vcpu) < MAX_VCPUS && u64::from(offset) < map::GICR_STRIDE);
                    prop_assert_eq!(crate::gicr_base(vcpu.into()) + u64::from(offset), ipa);
                }
                Region::Pl011 { offset } => prop_assert_eq!(map::PL011_BASE + u64::from(offset), ipa),
                Region::Pl031 { offset } => prop_assert_eq!(map::PL031_BASE + u64::from(offset), ipa),
                Region::Ram { offset } => prop_assert_eq!(map::RAM_BASE + offset, ipa),
                Region::None => {}
            }
        }
    }
}
