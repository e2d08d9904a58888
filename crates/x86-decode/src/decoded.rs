//! The decoded form of an instruction.

use crate::fast_form::Form;
use crate::operation::{Operation, Repeat, Source};
use crate::{CodeSize, SegmentName, Width};

/// A base register of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    None,
    Register(u8),
    /// RIP of the instruction itself: the displacement includes the instruction's length.
    Rip,
}

/// A decoded instruction. It depends on the bytes and the code size only, not on the address, so it is valid wherever the bytes are
/// mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    pub(crate) displacement: u64,
    pub(crate) source: Source,
    /// The last page offset at which the operand does not cross into the next page; encodes the operand's size.
    pub(crate) last_offset: u16,
    pub(crate) operation: Operation,
    pub(crate) base: Base,
    /// The index register, if any.
    pub(crate) index: Option<u8>,
    /// Left shift of the index, 0 to 3.
    pub(crate) scale: u8,
    pub(crate) segment: SegmentName,
    /// Width of the memory operand, or of its larger part.
    pub(crate) width: Width,
    /// Width of a load's destination register.
    pub(crate) register_width: Width,
    pub(crate) address_width: Width,
    pub(crate) code_size: CodeSize,
    pub(crate) repeat: Repeat,
    pub(crate) form: Form,
    pub(crate) length: u8,
}

impl Decoded {
    /// The content of a vacant cache entry.
    pub const NOTHING: Self = Self {
        displacement: 0,
        source: Source::Immediate(0),
        last_offset: (stile_x86_walk::PAGE - 1) as u16,
        operation: Operation::LoadPart,
        base: Base::None,
        index: None,
        scale: 0,
        segment: SegmentName::Ds,
        width: Width::Byte,
        register_width: Width::Byte,
        address_width: Width::Qword,
        code_size: CodeSize::Bits64,
        repeat: Repeat::No,
        form: Form::NONE,
        length: 1,
    };

    /// Length in bytes, 1 to 15.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> u8 {
        self.length
    }

    /// Size of the memory operand in bytes.
    #[inline]
    pub(crate) const fn bytes(&self) -> u64 {
        stile_x86_walk::PAGE - self.last_offset as u64
    }

    /// Whether it is 64-bit code.
    pub(crate) const fn is_long(&self) -> bool {
        matches!(self.code_size, CodeSize::Bits64)
    }

    /// The code size for which it was decoded.
    #[inline]
    pub const fn code_size(&self) -> CodeSize {
        self.code_size
    }
}
