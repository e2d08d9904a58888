//! An instruction, decoded.

use crate::condition::Condition;
use crate::quick::Form;
use crate::string::Repeat;
use crate::{CodeSize, SegmentName, StateWord, SystemSegment, Width};

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

/// To where a double shift moves bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Left,
    Right,
}

/// Whether the factors, or divisor and dividend, are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Unsigned,
    Signed,
}

/// What bits are looked for or counted.
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

/// What of a vector register a move is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All 128 bits.
    Whole,
    /// All 256 bits.
    Wide,
    /// The low 4 or 8 bytes; a load clears the rest of the 128 bits.
    Low,
    /// Bits 63:0; a load takes the others from a register.
    LowHalf,
    /// Bits 127:64; as above.
    HighHalf,
}

/// The vector register of a move, or of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vector {
    /// Its number.
    pub register: u8,
    /// The register that a load of a half has the other one from, or arithmetic its first operand.
    pub other: u8,
    pub part: Part,
    /// By a VEX prefix: a load clears what is above its operand.
    pub vex: bool,
    /// The operand must lie at a multiple of its size.
    pub aligned: bool,
}

/// What integer arithmetic makes of the elements of a vector register and of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    /// Of the register's complement.
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
    /// All ones where both are equal.
    EqualBytes,
    EqualWords,
    EqualDwords,
    EqualQwords,
    /// All ones where the register's is greater, as signed numbers.
    GreaterBytes,
    GreaterWords,
    GreaterDwords,
    GreaterQwords,
    LeastUnsignedBytes,
    MostUnsignedBytes,
    LeastSignedWords,
    MostSignedWords,
}

/// A table of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TableName {
    Gdt,
    Idt,
}

/// A selector that an instruction stores: of a segment register, or of one that the system uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SelectorName {
    Segment(SegmentName),
    Ldtr,
    Tr,
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
    /// MOVBE to a register.
    LoadSwapped,
    /// MOVBE to memory.
    StoreSwapped,
    /// CMOVcc, if this condition holds.
    LoadIf(Condition),
    /// SETcc.
    StoreCondition(Condition),
    /// Register with memory.
    ToRegister(Alu),
    /// Memory with the source.
    ToMemory(Alu),
    Unary(Unary),
    /// By the source: an immediate or CL.
    Shift(Shift),
    /// SHLD and SHRD by an immediate.
    DoubleShift(Direction),
    /// By CL.
    DoubleShiftByCl(Direction),
    /// AX, DX:AX, EDX:EAX or RDX:RAX from the accumulator and memory.
    Multiply(Sign),
    /// IMUL of two or three operands.
    MultiplyTo,
    Divide(Sign),
    Scan(Scan),
    Bit(Bit),
    Exchange,
    ExchangeAdd,
    CompareExchange,
    /// CMPXCHG8B and CMPXCHG16B: two registers of this width.
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
    /// JMP to where memory says.
    Jump,
    /// CALL of where memory says.
    CallMemory,
    /// CALL of the source; relative, if that is an immediate, by the displacement.
    CallSource,
    /// RET, which drops the immediate's bytes.
    Return,
    Enter,
    Leave,
    VectorLoad,
    VectorStore,
    MmxLoad,
    MmxStore,
    /// Arithmetic of a vector or MMX register with memory.
    Combine(Combine),
    StoreState(StateWord),
    LoadState(StateWord),
    /// CLFLUSH and its kin: nothing is done to memory that could be read.
    Touch,
    /// XLAT: the address is that of the operand with AL added.
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
    /// LDS and others: a register and a segment register.
    LoadFar(SegmentName),
    /// LLDT and LTR.
    LoadSystem(SystemSegment),
    /// JMP to a code segment where memory says.
    JumpFar,
    /// CALL, as above.
    CallFar,
    /// CALL of the code segment that the immediate selects, at the displacement.
    CallFarPointer,
    /// RET to another code segment, which drops the immediate's bytes.
    ReturnFar,
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
    /// A general register and an immediate.
    Both(u8, i32),
    Vector(Vector),
    Mmx(u8),
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
    /// The last offset in a page at which the operand doesn't go on in the next one: this says how long it is.
    pub(crate) last_offset: u16,
    pub(crate) operation: Operation,
    pub(crate) base: Base,
    /// The register that is scaled and added, if any.
    pub(crate) index: Option<u8>,
    /// Left shift of the index, 0 to 3.
    pub(crate) scale: u8,
    pub(crate) segment: SegmentName,
    /// Width of the operand in memory, or of its larger part.
    pub(crate) width: Width,
    /// Width of the register that a load writes.
    pub(crate) register_width: Width,
    pub(crate) address_width: Width,
    pub(crate) code_size: CodeSize,
    pub(crate) repeat: Repeat,
    pub(crate) form: Form,
    pub(crate) length: u8,
}

impl Decoded {
    /// What fills an entry of a cache that holds none.
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

    /// Bytes of the operand in memory.
    #[inline]
    pub(crate) const fn bytes(&self) -> u64 {
        stile_walk::PAGE - self.last_offset as u64
    }

    /// It is 64-bit code.
    pub(crate) const fn is_long(&self) -> bool {
        matches!(self.code_size, CodeSize::Bits64)
    }

    /// The code size that it was decoded for.
    #[inline]
    pub const fn code_size(&self) -> CodeSize {
        self.code_size
    }
}
