//! Conversion of ticks to nanoseconds in the form of KVM's paravirtual clock.

/// Factor with 32 fractional bits, applied after a shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The factor.
    pub multiplier: u32,
    /// Left shift of the ticks; right if negative.
    pub shift: i8,
}

const NANOSECONDS: u64 = 1_000_000_000;

impl Scale {
    /// The conversion for a counter of this frequency in ticks per second, which is not 0.
    pub const fn of(frequency: u64) -> Scale {
        let (mut hertz, mut shift) = (if frequency == 0 { 1 } else { frequency }, 0);
        while hertz > 2 * NANOSECONDS {
            hertz >>= 1;
            shift -= 1;
        }
        while hertz <= NANOSECONDS {
            hertz <<= 1;
            shift += 1;
        }
        Scale { multiplier: ((NANOSECONDS << 32) as u128 / hertz as u128) as u32, shift }
    }

    /// Converts ticks.
    pub const fn nanoseconds(self, ticks: u64) -> u64 {
        let shifted = if self.shift < 0 { ticks >> -self.shift } else { ticks << self.shift };
        ((shifted as u128 * self.multiplier as u128) >> 32) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frequencies_have_their_scales() {
        assert_eq!(Scale::of(2_000_000_000), Scale { multiplier: 1 << 31, shift: 0 });
        assert_eq!(Scale::of(1_000_000_000), Scale { multiplier: 1 << 31, shift: 1 });
        assert_eq!(Scale::of(4_000_000_000), Scale { multiplier: 1 << 31, shift: -1 });
    }

    proptest! {
        #[test]
        fn an_hour_is_an_hour(frequency in 1_000_000..10_000_000_000_u64) {
            let hour = Scale::of(frequency).nanoseconds(3600 * frequency);
            // One part in a million.
            prop_assert!(hour.abs_diff(3600 * NANOSECONDS) < 3600 * 1000, "{hour}");
        }
    }
}
