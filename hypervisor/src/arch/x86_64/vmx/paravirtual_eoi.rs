//! Ends of interrupts by a bit in the guest's memory: absent. APIC virtualization ends them without an exit.

use core::convert::Infallible;

use crate::vm::Vm;

/// There are no such bits.
pub type Bit = Infallible;

/// Local APIC of a guest.
pub type LocalApic<'a> = stile_apic::LocalApic<'a, Bit>;

/// None.
pub struct ParavirtualEoi;

impl ParavirtualEoi {
    /// None.
    pub const fn new() -> ParavirtualEoi {
        ParavirtualEoi
    }

    /// Nothing to reset.
    pub fn reset(&self) {}

    /// Value of a register that does not exist, in snapshots.
    pub fn register(&self) -> u64 {
        0
    }

    /// There is no register.
    pub fn restore(&self, _value: u64) {}

    /// None.
    #[inline(always)]
    pub fn bit(&self, _vm: &'static Vm) -> Option<Bit> {
        None
    }
}
