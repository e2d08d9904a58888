//! Registers beyond the general ones, which few instructions ask for.

use crate::{Descriptor, Fault, SegmentName, SelectorName, StateWord, SystemSegment, TableName};

/// A register that controls the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Control {
    Cr0,
    Cr4,
    Efer,
    /// Asked for only with CR4.OSXSAVE set.
    Xcr0,
}

/// How much of a vector register is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Bits 127:0; the rest stays.
    Low,
    /// Bits 127:0; the rest is cleared.
    LowAlone,
    /// Bits 255:0; the rest is cleared. Only if XCR0 has AVX's state.
    Wide,
}

/// The registers of a processor that few instructions ask for. The defaults are a processor that has none of them, in real mode.
pub trait OtherRegisters {
    /// The current privilege level.
    fn privilege(&self) -> u8 {
        0
    }

    /// A control register, as the guest sees it.
    fn control(&self, _: Control) -> u64 {
        0
    }

    /// Writes CR0.
    fn set_cr0(&mut self, _: u64) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    /// Base and limit of a table of descriptors.
    fn table(&self, _: TableName) -> (u64, u16) {
        (0, 0)
    }

    /// Writes them. The base is canonical.
    fn set_table(&mut self, _: TableName, _base: u64, _limit: u16) {}

    /// Base and limit of the LDT, if there is one.
    fn local_table(&self) -> Option<(u64, u32)> {
        None
    }

    /// Reads a descriptor of a table, with the supervisor's privilege.
    fn load_descriptor(&mut self, _linear: u64) -> Result<u64, Fault> {
        Err(Fault::Protection)
    }

    /// Writes one, as above.
    fn store_descriptor(&mut self, _linear: u64, _descriptor: u64) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    /// A selector.
    fn selector(&self, _: SelectorName) -> u16 {
        0
    }

    /// Loads a segment register with a descriptor that the instruction has checked; or with none, in real and virtual-8086 mode: the
    /// base is made from the selector, the rest stays.
    fn set_segment(&mut self, _: SegmentName, _selector: u16, _: Option<&Descriptor>) {}

    /// Loads LDTR or TR with a descriptor that the instruction has checked.
    fn set_system_segment(&mut self, _: SystemSegment, _selector: u16, _: &Descriptor) {}

    /// Bits 255:0 of a vector register, of which those above 127 are looked at only if `wide`: then XCR0 has AVX's state.
    fn vector(&self, _index: u8, _wide: bool) -> [u64; 4] {
        [0; 4]
    }

    /// Writes a vector register.
    fn set_vector(&mut self, _index: u8, _value: [u64; 4], _: Extent) {}

    /// An exception of the x87 waits to be told (FSW.ES).
    fn floating_point_error(&self) -> bool {
        false
    }

    /// A word of the x87's or SSE's state.
    fn state_word(&self, _: StateWord) -> u32 {
        0
    }

    /// Writes one, which is not the x87's status; MXCSR without bits that there are not. No exception of the x87 waits.
    fn set_state_word(&mut self, _: StateWord, _value: u32) {}

    /// An MMX register, with what its use does to the x87's state.
    fn mmx(&mut self, _index: u8) -> u64 {
        0
    }

    /// Writes an MMX register, as above.
    fn set_mmx(&mut self, _index: u8, _value: u64) {}
}
