//! The decoded form of an instruction.

use crate::condition::Condition;
use crate::quick::Form;
use crate::string::Repeat;
use crate::{CodeSize, SegmentName, StateWord, SystemSegment, Width};

/// Arithmetic with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alu {
    Add,
    Adc,
    Sub,
    Sbb,
    And,
    Or,
    Xor,
    /// Subtraction that only sets flags.
    Cmp,
    /// Conjunction that only sets flags.
    Test,
}

/// Arithmetic with one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Inc,
    Dec,
    Not,
    Neg,
}

/// The effect on the bit that is copied to CF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bit {
    Test,
    Set,
    Reset,
    Complement,
}

/// Shifts and rotates, in the order of their opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shift {
    RotateLeft,
    RotateRight,
    /// Through the carry flag.
    RotateCarryLeft,
    RotateCarryRight,
    Left,
    Right,
    RightSigned,
}

/// The direction of a double shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Left,
    Right,
}

/// Signedness of a multiplication or division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Unsigned,
    Signed,
}

/// The kind of a bit search or count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// BSF.
    Forward,
    /// BSR.
    Reverse,
    TrailingZeros,
    LeadingZeros,
    Ones,
}

/// The part of a vector register that a move transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All 128 bits.
    Whole,
    /// All 256 bits.
    Wide,
    /// The low 4 or 8 bytes; a load clears the rest of the 128 bits.
    Low,
    /// Bits 63:0; a load takes bits 127:64 from [`Vector::other`].
    LowHalf,
    /// Bits 127:64; a load takes bits 63:0 from [`Vector::other`].
    HighHalf,
}

/// The vector register of a move or of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vector {
    /// Its number.
    pub register: u8,
    /// The source of the other half of a half-register load, or the first operand of arithmetic.
    pub other: u8,
    pub part: Part,
    /// VEX-encoded: a load clears the register's bits above its operand.
    pub vex: bool,
    /// The operand must be naturally aligned.
    pub aligned: bool,
}

/// Packed integer arithmetic on a vector register and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    /// Conjunction with the register's complement.
    AndNot,
    Or,
    Xor,
    AddBytes,
    AddWords,
    AddDwords,
    AddQwords,
    SubtractBytes,
    SubtractWords,
    SubtractDwords,
    SubtractQwords,
    /// All ones where the elements are equal.
    EqualBytes,
    EqualWords,
    EqualDwords,
    EqualQwords,
    /// All ones where the register's element is greater (signed).
    GreaterBytes,
    GreaterWords,
    GreaterDwords,
    GreaterQwords,
    LeastUnsignedBytes,
    MostUnsignedBytes,
    LeastSignedWords,
    MostSignedWords,
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

/// The operation of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Load part of a register, zero-extended to the part's width.
    LoadPart,
    /// Load a register, sign-extended.
    LoadSigned,
    /// Store the source.
    Store,
    /// MOVBE to a register.
    LoadSwapped,
    /// MOVBE to memory.
    StoreSwapped,
    /// CMOVcc, if this condition holds.
    LoadIf(Condition),
    /// SETcc.
    StoreCondition(Condition),
    /// Arithmetic with a register as the destination.
    ToRegister(Alu),
    /// Arithmetic with memory as the destination.
    ToMemory(Alu),
    Unary(Unary),
    /// Shift or rotate by the source: an immediate or CL.
    Shift(Shift),
    /// SHLD and SHRD by an immediate.
    DoubleShift(Direction),
    /// SHLD and SHRD by CL.
    DoubleShiftByCl(Direction),
    /// MUL and IMUL of the accumulator and memory, to AX, DX:AX, EDX:EAX or RDX:RAX.
    Multiply(Sign),
    /// IMUL with two or three operands.
    MultiplyTo,
    Divide(Sign),
    Scan(Scan),
    Bit(Bit),
    Exchange,
    ExchangeAdd,
    CompareExchange,
    /// CMPXCHG8B and CMPXCHG16B: register pairs of this width.
    CompareExchangePair,
    StoreString,
    LoadString,
    MoveString,
    /// SCAS.
    ScanString,
    CompareString,
    /// INS.
    InString,
    /// OUTS.
    OutString,
    PushMemory,
    PushSource,
    PopMemory,
    PopRegister,
    /// JMP through memory.
    Jump,
    /// CALL through memory.
    CallMemory,
    /// CALL of the source: a register, or relative by the displacement if the source is an immediate.
    CallSource,
    /// RET, which releases the immediate's number of bytes.
    Return,
    Enter,
    Leave,
    VectorLoad,
    VectorStore,
    MmxLoad,
    MmxStore,
    /// Packed arithmetic of a vector or MMX register with memory.
    Combine(Combine),
    StoreState(StateWord),
    LoadState(StateWord),
    /// CLFLUSH, CLFLUSHOPT and CLWB: checked as a read, without effect.
    Touch,
    /// XLAT: AL is added to the operand's address.
    Translate,
    PushFlags,
    PopFlags,
    /// PUSHA.
    PushAll,
    /// POPA.
    PopAll,
    /// SMSW.
    StoreMachineStatus,
    /// LMSW.
    LoadMachineStatus,
    /// SGDT and SIDT.
    StoreTable(TableName),
    /// LGDT and LIDT.
    LoadTable(TableName),
    /// MOV from a segment register, SLDT and STR.
    StoreSelector(SelectorName),
    PushSelector(SegmentName),
    /// MOV to a segment register.
    LoadSegment(SegmentName),
    PopSegment(SegmentName),
    /// LDS, LES, LFS, LGS and LSS: load a register and a segment register.
    LoadFar(SegmentName),
    /// LLDT and LTR.
    LoadSystem(SystemSegment),
    /// Far JMP through memory.
    JumpFar,
    /// Far CALL through memory.
    CallFar,
    /// Far CALL of an immediate pointer: the selector is the immediate, the offset the displacement.
    CallFarPointer,
    /// Far RET, which releases the immediate's number of bytes.
    ReturnFar,
}

/// The operand that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A general register's low bits.
    Register(u8),
    /// AH, CH, DH or BH: bits 15:8 of the register.
    High(u8),
    /// A sign-extended immediate.
    Immediate(i32),
    /// A general register and an immediate.
    Both(u8, i32),
    Vector(Vector),
    Mmx(u8),
}

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
        last_offset: (stile_walk::PAGE - 1) as u16,
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
        stile_walk::PAGE - self.last_offset as u64
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
