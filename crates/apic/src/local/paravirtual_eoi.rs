//! Ends of interrupts by a bit in the guest's memory, without an access to the APIC (MSR_KVM_PV_EOI_EN; Linux,
//! Documentation/virt/kvm/x86/msr.rst).
//!
//! The APIC sets the bit when it puts an interrupt into service whose end concerns nothing else: it is edge-triggered, and no other one
//! is requested. The guest ends it by clearing the bit, instead of a write of EOI. While the bit is lent, the vector is not in ISR: the next
//! function that needs ISR takes the bit back, and puts the vector there if it was still set. An interrupt that arrives meanwhile
//! notifies the processor as ever, so that a request is never left behind a bit that is set.

use core::convert::Infallible;

/// The bit. Anyone in the guest may change it at any time, which affects this guest only.
pub trait EoiBit: Copy {
    /// Sets the bit.
    fn set(self);

    /// Clears the bit. Returns whether it was set: the guest has not ended the interrupt.
    fn take(self) -> bool;
}

/// No guest has such bits.
impl EoiBit for Infallible {
    fn set(self) {
        match self {}
    }

    fn take(self) -> bool {
        match self {}
    }
}

/// State of an APIC's bit. Without bits its functions have no instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParavirtualEoi<B> {
    /// The bit, if the guest has named one.
    bit: Option<B>,
    /// The bit while it is lent.
    lent: Option<B>,
    /// The vector in service while the bit is lent.
    vector: u8,
}

impl<B: EoiBit> ParavirtualEoi<B> {
    /// No bit.
    pub(super) const NONE: Self = Self { bit: None, lent: None, vector: 0 };

    /// Returns the bit.
    pub(super) const fn bit(&self) -> Option<B> {
        self.bit
    }

    /// Replaces the bit, which must not be lent.
    pub(super) const fn set_bit(&mut self, bit: Option<B>) {
        self.bit = bit;
    }

    /// Lends the bit, which is not lent, for an interrupt that is put into service. Returns false, without effect, if there is none, or
    /// `is_edge` is false.
    #[inline(always)]
    pub(super) fn lend(&mut self, vector: u8, is_edge: impl FnOnce() -> bool) -> bool {
        debug_assert!(self.lent.is_none(), "the bit was not taken back");
        let Some(bit) = self.bit.filter(|_| is_edge()) else { return false };
        bit.set();
        (self.lent, self.vector) = (Some(bit), vector);
        true
    }

    /// Takes the bit back. Returns the vector in service, if the guest has not ended it.
    #[inline(always)]
    pub(super) fn take_back(&mut self) -> Option<u8> {
        let bit = self.lent?;
        self.lent = None;
        bit.take().then_some(self.vector)
    }

    /// Takes the bit back from an interrupt that was not delivered, so that its guest can't have ended it. Returns whether it was lent
    /// for this one.
    pub(super) fn revoke(&mut self, vector: u8) -> bool {
        let Some(bit) = self.lent.filter(|_| self.vector == vector) else { return false };
        self.lent = None;
        bit.take();
        true
    }
}
