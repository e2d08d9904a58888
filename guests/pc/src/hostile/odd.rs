//! Register values.

use common::random::Random;

/// Sixteen registers of values that break things.
pub fn odd(random: &mut Random) -> [u64; 16] {
    core::array::from_fn(|_| random.odd())
}
