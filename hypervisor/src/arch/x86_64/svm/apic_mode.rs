//! Mode of the CPUs' APICs: always x2APIC.

use crate::address_space::Span;
use crate::arch::x86_64::host::board::Board;

/// Nothing to choose.
pub fn choose(_board: &Board, _blob: &Span) {}

/// Every CPU that [`detect`](super::extension::detect) accepts has an x2APIC.
///
/// # Errors
/// None.
pub fn check_cpu() -> Result<(), &'static str> {
    Ok(())
}
