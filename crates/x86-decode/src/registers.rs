//! Access to registers other than the general ones.

use crate::{Control, Descriptor, Fault, SegmentName, SelectorName, StateWord, SystemSegment, TableName};

/// The extent of a write to a vector register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Bits 127:0; the others are preserved.
    Low,
    /// Bits 127:0; the others are cleared.
    LowAlone,
    /// Bits 255:0; the others are cleared. Only if XCR0 enables AVX state.
    Wide,
}

/// Registers that few instructions need. The default implementations model a processor without them, in real mode.
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

    /// Writes base and limit of a table. The base is canonical.
    fn set_table(&mut self, _: TableName, _base: u64, _limit: u16) {}

    /// Base and limit of the LDT, if there is one.
    fn local_table(&self) -> Option<(u64, u32)> {
        None
    }

    /// Reads a descriptor of a table, with the supervisor's privilege.
    fn load_descriptor(&mut self, _linear: u64) -> Result<u64, Fault> {
        Err(Fault::Protection)
    }

    /// Writes a descriptor of a table, with the supervisor's privilege.
    fn store_descriptor(&mut self, _linear: u64, _descriptor: u64) -> Result<(), Fault> {
        Err(Fault::Protection)
    }

    /// A selector.
    fn selector(&self, _: SelectorName) -> u16 {
        0
    }

    /// Loads a segment register with a checked descriptor. Without one, in real and virtual-8086 mode, the base follows
    /// from the selector, and limit and rights are preserved.
    fn set_segment(&mut self, _: SegmentName, _selector: u16, _: Option<&Descriptor>) {}

    /// Loads LDTR or TR with a checked descriptor.
    fn set_system_segment(&mut self, _: SystemSegment, _selector: u16, _: &Descriptor) {}

    /// Reads a vector register. Bits 255:128 are needed only if `wide`, in which case XCR0 enables AVX state.
    fn vector(&self, _index: u8, _wide: bool) -> [u64; 4] {
        [0; 4]
    }

    /// Writes a vector register.
    fn set_vector(&mut self, _index: u8, _value: [u64; 4], _: Extent) {}

    /// Whether an x87 exception is pending (FSW.ES).
    fn floating_point_error(&self) -> bool {
        false
    }

    /// Reads a word of x87 or SSE state.
    fn state_word(&self, _: StateWord) -> u32 {
        0
    }

    /// Writes a word of x87 or SSE state, except the x87 status. Reserved bits of MXCSR are clear, and no x87 exception is pending.
    fn set_state_word(&mut self, _: StateWord, _value: u32) {}

    /// Reads an MMX register, and updates x87 state as its use does.
    fn mmx(&mut self, _index: u8) -> u64 {
        0
    }

    /// Writes an MMX register, and updates x87 state as its use does.
    fn set_mmx(&mut self, _index: u8, _value: u64) {}
}
