//! The operations of instructions, and their operands that are not in memory.

use crate::condition::Condition;
use crate::names::{SegmentName, SelectorName, StateWord, SystemSegment, TableName};

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

/// The repeat prefix. Both are equivalent for instructions that do not compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    No,
    /// REP and REPE.
    WhileEqual,
    /// REPNE.
    WhileUnequal,
}
