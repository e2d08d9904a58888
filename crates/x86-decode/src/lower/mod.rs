//! Decoding of bytes into [`Decoded`].

mod combine;
mod intercepted;
mod kind;
mod operation;
mod reach;
mod vector;

use self::kind::segment;
use crate::decoded::{Base, Decoded};
use crate::fast_form::Form;
use crate::operation::Repeat;
use crate::operation::{Operation, Source};
use crate::{CodeSize, Width};
use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, Instruction, MemorySize, OpKind, Register};

pub(crate) use intercepted::intercepted;
pub use intercepted::{Intercepted, Kind};

/// Maximum length of an instruction in bytes.
pub const MAX_LENGTH: usize = 15;

/// The reason why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecoded {
    /// More bytes are needed.
    Truncated,
    /// More than [`MAX_LENGTH`] bytes: #GP(0).
    TooLong,
    /// Not an instruction: #UD.
    Invalid,
    /// An instruction that is not emulated.
    Unsupported,
    /// An instruction that accesses no memory.
    NoAccess,
}

/// Makes the decoder allocate its tables: see the crate's documentation.
pub fn prepare() {
    let _ = decode(&[0x8b, 0x00], CodeSize::Bits64);
}

/// Decodes the instruction at the start of `bytes`.
pub fn decode(bytes: &[u8], code_size: CodeSize) -> Result<Decoded, Undecoded> {
    let bits = code_size.bits();
    let bytes = bytes.get(..MAX_LENGTH).unwrap_or(bytes);
    let (instruction, error) = disassemble(bytes, bits, DecoderOptions::NONE)?;
    match error {
        DecoderError::None => {
            let why = if reach::reaches(&instruction) { Undecoded::Unsupported } else { Undecoded::NoAccess };
            lower(&instruction, code_size).ok_or(why)
        }
        DecoderError::NoMoreBytes => Err(Undecoded::Truncated),
        // The decoder reports an overlong instruction as invalid. It is overlong if 14 bytes are still incomplete.
        _ => match bytes.get(..MAX_LENGTH - 1).map(|shorter| disassemble(shorter, bits, DecoderOptions::NONE)) {
            Some(Ok((_, DecoderError::NoMoreBytes))) => Err(Undecoded::TooLong),
            _ => Err(Undecoded::Invalid),
        },
    }
}

fn disassemble(bytes: &[u8], bits: u32, options: u32) -> Result<(Instruction, DecoderError), Undecoded> {
    let mut decoder = Decoder::try_with_ip(bits, bytes, 0, options).map_err(|_| Undecoded::Unsupported)?;
    let instruction = decoder.decode();
    Ok((instruction, decoder.last_error()))
}

fn lower(instruction: &Instruction, code_size: CodeSize) -> Option<Decoded> {
    let operation = operation::of(instruction)?;
    let repeat = match (instruction.has_rep_prefix(), instruction.has_repne_prefix()) {
        (_, true) => Repeat::WhileUnequal,
        (true, _) => Repeat::WhileEqual,
        _ => Repeat::No,
    };
    let length = u8::try_from(instruction.len()).ok()?;
    let mut decoded = Decoded { operation, code_size, repeat, length, ..Decoded::NOTHING };
    let is_vector = matches!(operation, Operation::VectorLoad | Operation::VectorStore | Operation::MmxLoad | Operation::MmxStore);
    let vector = if is_vector { vector::of(instruction) } else { None };
    let combined = combine::of(instruction).map(|(_, register)| register);
    let bytes = if operation::is_on_a_stack(operation) {
        decoded.width = stack_width(instruction.code())?;
        decoded.width.bytes()
    } else {
        let bytes = combined.map(combine::size).or_else(|| vector.and_then(vector::size)).or_else(|| size(instruction.memory_size()))?;
        decoded.width = operand_width(operation, instruction.code(), bytes);
        bytes
    };
    decoded.register_width = decoded.width;
    for operand in 0..instruction.op_count() {
        add_operand(&mut decoded, instruction, operand)?;
    }
    if let Some(vector) = vector.or(combined) {
        decoded.source = vector;
    }
    if operation == Operation::Translate {
        // XLAT: AL is both the index and the destination.
        decoded.source = Source::Register(0);
    }
    decoded.last_offset = (stile_x86_walk::PAGE - bytes) as u16;
    decoded.form = Form::of(&decoded);
    Some(decoded)
}

fn add_operand(decoded: &mut Decoded, instruction: &Instruction, operand: u32) -> Option<()> {
    match instruction.op_kind(operand) {
        OpKind::Register => {
            let register = instruction.op_register(operand);
            // Segment and vector registers are part of the operation.
            let Some((source, width)) = general(register) else { return Some(()) };
            // CL of a double shift is part of the operation.
            if operand < 2 {
                decoded.source = source;
            }
            if matches!(decoded.operation, Operation::LoadPart | Operation::LoadSigned) {
                decoded.register_width = width;
            }
        }
        OpKind::Immediate8
        | OpKind::Immediate8_2nd
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => {
            let value = instruction.immediate(operand) as i32;
            decoded.source = match (operand, decoded.source) {
                // ENTER's second immediate, and the third operand of other instructions.
                (1, Source::Immediate(size)) if decoded.operation == Operation::Enter => Source::Both(value as u8, size),
                (2, Source::Register(register)) => Source::Both(register, value),
                _ => Source::Immediate(value),
            };
        }
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => decoded.displacement = instruction.near_branch_target(),
        OpKind::FarBranch16 | OpKind::FarBranch32 => {
            decoded.source = Source::Immediate(instruction.far_branch_selector().into());
            decoded.displacement = match instruction.op_kind(operand) {
                OpKind::FarBranch16 => instruction.far_branch16().into(),
                _ => instruction.far_branch32().into(),
            };
        }
        OpKind::Memory => add_memory(decoded, instruction)?,
        OpKind::MemorySegSI | OpKind::MemoryESDI => decoded.address_width = Width::Word,
        OpKind::MemorySegESI | OpKind::MemoryESEDI => decoded.address_width = Width::Dword,
        OpKind::MemorySegRSI | OpKind::MemoryESRDI => decoded.address_width = Width::Qword,
        _ => return None,
    }
    if matches!(instruction.op_kind(operand), OpKind::MemorySegSI | OpKind::MemorySegESI | OpKind::MemorySegRSI) {
        decoded.segment = segment(instruction.memory_segment())?;
    }
    Some(())
}

fn add_memory(decoded: &mut Decoded, instruction: &Instruction) -> Option<()> {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    decoded.base = match base {
        Register::None => Base::None,
        Register::RIP | Register::EIP => Base::Rip,
        base => Base::Register(address_register(base)?.0),
    };
    // XLAT's index, AL, is not an address register.
    if index != Register::None && index != Register::AL {
        decoded.index = Some(address_register(index)?.0);
    }
    decoded.scale = instruction.memory_index_scale().trailing_zeros() as u8;
    decoded.displacement = instruction.memory_displacement64();
    decoded.segment = segment(instruction.memory_segment())?;
    decoded.address_width = match (base, index, instruction.memory_displ_size()) {
        (Register::RIP, ..) => Width::Qword,
        (Register::EIP, ..) => Width::Dword,
        // An address without registers has the displacement's width.
        (Register::None, Register::None, 2) => Width::Word,
        (Register::None, Register::None, 4) => Width::Dword,
        (Register::None, Register::None, _) => Width::Qword,
        (Register::None, index, _) => address_register(index)?.1,
        (base, ..) => address_register(base)?.1,
    };
    Some(())
}

fn address_register(register: Register) -> Option<(u8, Width)> {
    match general(register)? {
        (Source::Register(index), width) => Some((index, width)),
        _ => None,
    }
}

/// Returns a general register's number and width.
fn general(register: Register) -> Option<(Source, Width)> {
    let within = |first: Register, last: Register| {
        let number = (register as usize).checked_sub(first as usize)?;
        (register as usize <= last as usize).then_some(number as u8)
    };
    if let Some(number) = within(Register::RAX, Register::R15) {
        Some((Source::Register(number), Width::Qword))
    } else if let Some(number) = within(Register::EAX, Register::R15D) {
        Some((Source::Register(number), Width::Dword))
    } else if let Some(number) = within(Register::AX, Register::R15W) {
        Some((Source::Register(number), Width::Word))
    } else if let Some(number) = within(Register::AH, Register::BH) {
        Some((Source::High(number), Width::Byte))
    } else if let Some(number) = within(Register::AL, Register::BL) {
        Some((Source::Register(number), Width::Byte))
    } else {
        // SPL to R15L continue the numbering after AL to BL.
        within(Register::SPL, Register::R15L).map(|number| (Source::Register(number + 4), Width::Byte))
    }
}

/// Returns the size of the memory operand in bytes.
const fn size(size: MemorySize) -> Option<u64> {
    Some(match size {
        MemorySize::UInt8 | MemorySize::Int8 => 1,
        MemorySize::UInt16 | MemorySize::Int16 | MemorySize::WordOffset => 2,
        MemorySize::UInt32 | MemorySize::Int32 | MemorySize::DwordOffset | MemorySize::Float32 | MemorySize::SegPtr16 => 4,
        MemorySize::UInt64 | MemorySize::Int64 | MemorySize::QwordOffset | MemorySize::Float64 | MemorySize::Packed64_UInt32 => 8,
        MemorySize::SegPtr32 | MemorySize::Fword6 => 6,
        MemorySize::SegPtr64 | MemorySize::Fword10 => 10,
        MemorySize::UInt128 => 16,
        _ => return None,
    })
}

/// Returns the width of an operand of `bytes` bytes, or of its larger part: a table's base, a far pointer's offset, one of two registers.
const fn operand_width(operation: Operation, code: Code, bytes: u64) -> Width {
    match bytes {
        1 => Width::Byte,
        2 => Width::Word,
        4 if matches!(operation, Operation::JumpFar | Operation::CallFar | Operation::LoadFar(_)) => Width::Word,
        // The base has 24 bits.
        6 if matches!(code, Code::Lgdt_m1632_16 | Code::Lidt_m1632_16) => Width::Word,
        8 if matches!(operation, Operation::CompareExchangePair) => Width::Dword,
        4 | 6 => Width::Dword,
        _ => Width::Qword,
    }
}

/// Returns the width of a stack access, for instructions without another memory operand.
const fn stack_width(code: Code) -> Option<Width> {
    Some(match code {
        Code::Push_r16 | Code::Push_imm16 | Code::Pushw_imm8 | Code::Pop_r16 => Width::Word,
        Code::Push_r32 | Code::Pushd_imm32 | Code::Pushd_imm8 | Code::Pop_r32 => Width::Dword,
        Code::Push_r64 | Code::Pushq_imm32 | Code::Pushq_imm8 | Code::Pop_r64 => Width::Qword,
        Code::Pushw_ES | Code::Pushw_CS | Code::Pushw_SS | Code::Pushw_DS | Code::Pushw_FS | Code::Pushw_GS => Width::Word,
        Code::Pushd_ES | Code::Pushd_CS | Code::Pushd_SS | Code::Pushd_DS | Code::Pushd_FS | Code::Pushd_GS => Width::Dword,
        Code::Pushq_FS | Code::Pushq_GS => Width::Qword,
        Code::Popw_ES | Code::Popw_SS | Code::Popw_DS | Code::Popw_FS | Code::Popw_GS => Width::Word,
        Code::Popd_ES | Code::Popd_SS | Code::Popd_DS | Code::Popd_FS | Code::Popd_GS => Width::Dword,
        Code::Popq_FS | Code::Popq_GS => Width::Qword,
        Code::Call_ptr1616 | Code::Retfw | Code::Retfw_imm16 => Width::Word,
        Code::Call_ptr1632 | Code::Retfd | Code::Retfd_imm16 => Width::Dword,
        Code::Retfq | Code::Retfq_imm16 => Width::Qword,
        Code::Pushfw | Code::Popfw | Code::Pushaw | Code::Popaw => Width::Word,
        Code::Pushfd | Code::Popfd | Code::Pushad | Code::Popad => Width::Dword,
        Code::Pushfq | Code::Popfq => Width::Qword,
        Code::Call_rel16 | Code::Retnw | Code::Retnw_imm16 | Code::Enterw_imm16_imm8 | Code::Leavew | Code::Call_rm16 => Width::Word,
        Code::Call_rel32_32 | Code::Retnd | Code::Retnd_imm16 | Code::Enterd_imm16_imm8 | Code::Leaved | Code::Call_rm32 => Width::Dword,
        Code::Call_rel32_64 | Code::Retnq | Code::Retnq_imm16 | Code::Enterq_imm16_imm8 | Code::Leaveq | Code::Call_rm64 => Width::Qword,
        _ => return None,
    })
}
