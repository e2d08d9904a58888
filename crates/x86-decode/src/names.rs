//! Names of registers.

use crate::Fault;

/// A segment register, in the order of its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum SegmentName {
    Es,
    Cs,
    Ss,
    Ds,
    Fs,
    Gs,
}

impl SegmentName {
    /// Returns the fault of an access outside of the segment.
    pub const fn fault(self) -> Fault {
        match self {
            Self::Ss => Fault::Stack,
            _ => Fault::Protection,
        }
    }
}

/// A descriptor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TableName {
    Gdt,
    Idt,
}

/// A selector that an instruction stores: of a segment register, LDTR or TR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SelectorName {
    Segment(SegmentName),
    Ldtr,
    Tr,
}

/// A system segment register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SystemSegment {
    Ldtr,
    Tr,
}

/// A control or status word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum StateWord {
    X87Control,
    X87Status,
    Mxcsr,
}

/// A control register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Control {
    Cr0,
    Cr4,
    Efer,
    /// Read only if CR4.OSXSAVE is set.
    Xcr0,
}
