//! An instruction, decoded.

use crate::quick::Form;
use crate::{CodeSize, SegmentName, Width};

/// Arithmetic of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alu {
    Add,
    Adc,
    Sub,
    Sbb,
    And,
    Or,
    Xor,
    /// Subtraction for its flags.
    Cmp,
    /// And for its flags.
    Test,
}

/// Arithmetic of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Inc,
    Dec,
    Not,
    Neg,
}

/// What becomes of the bit that goes to the carry flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bit {
    Test,
    Set,
    Reset,
    Complement,
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Part of a register from memory, zero-extended to the part's width.
    LoadPart,
    /// Register from memory, sign-extended.
    LoadSigned,
    /// Memory from the source.
    Store,
    /// Register with memory.
    ToRegister(Alu),
    /// Memory with the source.
    ToMemory(Alu),
    Unary(Unary),
    Bit(Bit),
    Exchange,
    ExchangeAdd,
    CompareExchange,
    StoreString,
    MoveString,
    /// INS.
    InString,
    /// OUTS.
    OutString,
    PushMemory,
    PushSource,
    PopMemory,
    PopRegister,
}

/// The operand that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A general register's low bits.
    Register(u8),
    /// AH, CH, DH or BH: bits 15:8 of the register.
    High(u8),
    /// Sign-extended.
    Immediate(i32),
}

/// A register that an address is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    None,
    Register(u8),
    /// RIP of the instruction itself: the displacement counts its length.
    Rip,
}

/// An instruction: all that its bytes and the code size say, and nothing of where it stands, so that it is the same
/// wherever they are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    pub(crate) displacement: u64,
    pub(crate) source: Source,
    /// The last offset in a page at which the operand doesn't go on in the next one.
    pub(crate) last_offset: u16,
    pub(crate) operation: Operation,
    pub(crate) base: Base,
    /// The register that is scaled and added, if any.
    pub(crate) index: Option<u8>,
    /// Left shift of the index, 0 to 3.
    pub(crate) scale: u8,
    pub(crate) segment: SegmentName,
    /// Width of the operand in memory.
    pub(crate) width: Width,
    /// Width of the register that a load writes.
    pub(crate) register_width: Width,
    pub(crate) address_width: Width,
    pub(crate) code_size: CodeSize,
    pub(crate) repeat: bool,
    pub(crate) form: Form,
    pub(crate) length: u8,
}

impl Decoded {
    /// What fills an entry of a cache that holds none.
    pub const NOTHING: Self = Self {
        displacement: 0,
        source: Source::Immediate(0),
        last_offset: 0,
        operation: Operation::LoadPart,
        base: Base::None,
        index: None,
        scale: 0,
        segment: SegmentName::Ds,
        width: Width::Byte,
        register_width: Width::Byte,
        address_width: Width::Qword,
        code_size: CodeSize::Bits64,
        repeat: false,
        form: Form::NONE,
        length: 1,
    };

    /// Length in bytes, 1 to 15.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> u8 {
        self.length
    }

    /// The code size that it was decoded for.
    #[inline]
    pub const fn code_size(&self) -> CodeSize {
        self.code_size
    }
}
