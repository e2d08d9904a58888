//! Priorities as a physical GIC keeps them and shows them to the hypervisor. Arm GIC Architecture Specification,
//! Interrupt prioritization and Software accesses of interrupt priority.
//!
//! With two security states (GICD_CTLR.DS = 0) a non-secure access sees a priority shifted left by one bit: one bit
//! fewer is kept than the CPU interface has, and a binary point of group 1 splits one bit further left.

/// The priority masked only by a disabled group or an active priority: no guest's interrupt has it in hardware.
pub const HIGHEST: u8 = 0;

/// The priorities of a physical GIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPriorities {
    kept: u8,
    two_states: bool,
}

impl HostPriorities {
    /// `kept`: what is read after 0xff was written, the same for GICR_IPRIORITYR and ICC_PMR_EL1. `two_states`:
    /// GICD_CTLR.DS is clear. `None` if a GIC can't be like that, or keeps no priority below the highest one.
    pub const fn new(kept: u8, two_states: bool) -> Option<Self> {
        if kept == 0 || kept.leading_ones() + kept.trailing_zeros() != u8::BITS {
            return None;
        }
        Some(Self { kept, two_states })
    }

    /// Number of implemented bits of a priority.
    pub const fn bits(self) -> u32 {
        self.kept.count_ones()
    }

    /// The highest priority of a guest's interrupt in hardware: the next below [`HIGHEST`].
    pub const fn first(self) -> u8 {
        1 << self.kept.trailing_zeros()
    }

    /// Converts a guest's priority, or priority mask, to the hardware's: below [`HIGHEST`].
    pub const fn of_guest(self, priority: u8) -> u8 {
        let kept = priority & self.kept;
        if kept == HIGHEST { self.first() } else { kept }
    }

    /// ICC_RPR_EL1 once an interrupt of a guest's priority is active. `mask`:
    /// [`Vmcr::group_priority_mask`](crate::Vmcr::group_priority_mask) of the binary point.
    pub const fn running(self, priority: u8, mask: u8) -> u8 {
        self.of_guest(priority) & if self.two_states { mask << 1 } else { mask }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GIC with `bits` of a priority, as a non-secure access sees it.
    #[derive(Clone, Copy)]
    struct Gic {
        bits: u8,
        two_states: bool,
    }

    impl Gic {
        fn implemented(self) -> u8 {
            (0xff00u16 >> self.bits) as u8
        }

        fn write(self, value: u8) -> u8 {
            (if self.two_states { 0x80 | value >> 1 } else { value }) & self.implemented()
        }

        fn read(self, stored: u8) -> u8 {
            if self.two_states { stored << 1 } else { stored }
        }

        /// ICC_RPR_EL1 with an interrupt of this stored priority active, for ICC_BPR1_EL1.
        fn running(self, stored: u8, binary_point: u8) -> u8 {
            self.read(stored & (0xffu16 << binary_point) as u8)
        }

        fn priorities(self) -> HostPriorities {
            HostPriorities::new(self.read(self.write(0xff)), self.two_states).unwrap()
        }
    }

    fn all() -> impl Iterator<Item = Gic> {
        (4..=8).flat_map(|bits| [false, true].map(|two_states| Gic { bits, two_states })).filter(|gic| !gic.two_states || gic.bits >= 5)
    }

    #[test]
    fn the_kick_is_higher_than_all_that_a_guest_has() {
        for gic in all() {
            let kick = gic.write(HIGHEST);
            for priority in 0..=255 {
                let stored = gic.write(gic.priorities().of_guest(priority));
                assert!(kick < stored, "{} bits, two states: {}, priority {priority}", gic.bits, gic.two_states);
            }
        }
    }

    #[test]
    fn a_priority_mask_lets_the_kick_through_and_masks_what_it_did() {
        for gic in all() {
            let priorities = gic.priorities();
            for mask in 0..=255 {
                let stored = gic.write(priorities.of_guest(mask));
                assert!(gic.write(HIGHEST) < stored);
                // Priorities that the mask, with as many bits, masks.
                for masked in (0..=255u8).filter(|priority| priority & priorities.kept >= mask & priorities.kept) {
                    assert!(gic.write(priorities.of_guest(masked)) >= stored);
                }
            }
        }
    }

    #[test]
    fn the_running_priority_is_that_of_hardware() {
        for gic in all() {
            for binary_point in 1..8u8 {
                let mask = (0xffu16 << binary_point) as u8;
                for priority in 0..=255 {
                    let stored = gic.write(gic.priorities().of_guest(priority));
                    assert_eq!(gic.priorities().running(priority, mask), gic.running(stored, binary_point));
                }
            }
        }
    }

    #[test]
    fn what_no_gic_keeps_is_refused() {
        let usable = (0..=255).filter(|&kept| HostPriorities::new(kept, false).is_some());
        assert!(usable.eq([0x80, 0xc0, 0xe0, 0xf0, 0xf8, 0xfc, 0xfe, 0xff]));
    }
}
