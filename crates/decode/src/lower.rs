//! From bytes to [`Decoded`].

use crate::decoded::{Alu, Base, Bit, Decoded, Operation, Source, Unary};
use crate::quick::Form;
use crate::{CodeSize, SegmentName, Width};
use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, Instruction, MemorySize, Mnemonic, OpKind, Register};

/// The most bytes that an instruction has.
pub const MAX_LENGTH: usize = 15;

/// Why bytes were not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecoded {
    /// More bytes are needed.
    Truncated,
    /// More than [`MAX_LENGTH`] bytes: #GP(0).
    TooLong,
    /// No instruction: #UD.
    Invalid,
    /// An instruction that is not emulated.
    Unsupported,
}

/// Decodes an instruction, so that the decoder makes its tables now: see the crate's documentation.
pub fn prepare() {
    let _ = decode(&[0x8b, 0x00], CodeSize::Bits64);
}

/// Decodes the instruction that `bytes` start with.
pub fn decode(bytes: &[u8], code_size: CodeSize) -> Result<Decoded, Undecoded> {
    let bits = match code_size {
        CodeSize::Bits16 => 16,
        CodeSize::Bits32 => 32,
        CodeSize::Bits64 => 64,
    };
    let bytes = bytes.get(..MAX_LENGTH).unwrap_or(bytes);
    let (instruction, error) = disassemble(bytes, bits)?;
    match error {
        DecoderError::None => lower(&instruction, code_size).ok_or(Undecoded::Unsupported),
        DecoderError::NoMoreBytes => Err(Undecoded::Truncated),
        // The decoder calls what is too long invalid, too: it is what goes on after all bytes but one.
        _ => match bytes.get(..MAX_LENGTH - 1).map(|shorter| disassemble(shorter, bits)) {
            Some(Ok((_, DecoderError::NoMoreBytes))) => Err(Undecoded::TooLong),
            _ => Err(Undecoded::Invalid),
        },
    }
}

fn disassemble(bytes: &[u8], bits: u32) -> Result<(Instruction, DecoderError), Undecoded> {
    let mut decoder = Decoder::try_with_ip(bits, bytes, 0, DecoderOptions::NONE).map_err(|_| Undecoded::Unsupported)?;
    let instruction = decoder.decode();
    Ok((instruction, decoder.last_error()))
}

fn lower(instruction: &Instruction, code_size: CodeSize) -> Option<Decoded> {
    let operation = operation(instruction)?;
    let mut decoded = Decoded {
        operation,
        code_size,
        repeat: instruction.has_rep_prefix() || instruction.has_repne_prefix(),
        length: u8::try_from(instruction.len()).ok()?,
        ..Decoded::NOTHING
    };
    decoded.width = match operation {
        Operation::PushSource | Operation::PopRegister => stack_width(instruction.code())?,
        _ => width(instruction.memory_size())?,
    };
    decoded.register_width = decoded.width;
    for operand in 0..instruction.op_count() {
        add_operand(&mut decoded, instruction, operand)?;
    }
    decoded.last_offset = (stile_walk::PAGE - decoded.width.bytes()) as u16;
    decoded.form = Form::of(&decoded);
    Some(decoded)
}

fn operation(instruction: &Instruction) -> Option<Operation> {
    let memory_first = is_memory(instruction.op0_kind());
    let memory = memory_first || instruction.op_count() > 1 && is_memory(instruction.op1_kind());
    let alu = |alu| Some(if memory_first { Operation::ToMemory(alu) } else { Operation::ToRegister(alu) });
    let operation = match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movnti if memory_first => Operation::Store,
        Mnemonic::Mov | Mnemonic::Movzx => Operation::LoadPart,
        Mnemonic::Movsx | Mnemonic::Movsxd => Operation::LoadSigned,
        Mnemonic::Add => alu(Alu::Add)?,
        Mnemonic::Adc => alu(Alu::Adc)?,
        Mnemonic::Sub => alu(Alu::Sub)?,
        Mnemonic::Sbb => alu(Alu::Sbb)?,
        Mnemonic::And => alu(Alu::And)?,
        Mnemonic::Or => alu(Alu::Or)?,
        Mnemonic::Xor => alu(Alu::Xor)?,
        Mnemonic::Cmp => alu(Alu::Cmp)?,
        Mnemonic::Test => alu(Alu::Test)?,
        Mnemonic::Inc => Operation::Unary(Unary::Inc),
        Mnemonic::Dec => Operation::Unary(Unary::Dec),
        Mnemonic::Not => Operation::Unary(Unary::Not),
        Mnemonic::Neg => Operation::Unary(Unary::Neg),
        Mnemonic::Bt => Operation::Bit(Bit::Test),
        Mnemonic::Bts => Operation::Bit(Bit::Set),
        Mnemonic::Btr => Operation::Bit(Bit::Reset),
        Mnemonic::Btc => Operation::Bit(Bit::Complement),
        Mnemonic::Xchg => Operation::Exchange,
        Mnemonic::Xadd => Operation::ExchangeAdd,
        Mnemonic::Cmpxchg => Operation::CompareExchange,
        Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => Operation::StoreString,
        // MOVSD is an SSE instruction, too.
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsq => Operation::MoveString,
        Mnemonic::Movsd if instruction.code() == Code::Movsd_m32_m32 => Operation::MoveString,
        Mnemonic::Insb | Mnemonic::Insw | Mnemonic::Insd => Operation::InString,
        Mnemonic::Outsb | Mnemonic::Outsw | Mnemonic::Outsd => Operation::OutString,
        Mnemonic::Push if memory => Operation::PushMemory,
        Mnemonic::Push => return Some(Operation::PushSource),
        Mnemonic::Pop if memory => Operation::PopMemory,
        Mnemonic::Pop => return Some(Operation::PopRegister),
        _ => return None,
    };
    memory.then_some(operation)
}

const fn is_memory(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Memory
            | OpKind::MemorySegSI
            | OpKind::MemorySegESI
            | OpKind::MemorySegRSI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI
    )
}

fn add_operand(decoded: &mut Decoded, instruction: &Instruction, operand: u32) -> Option<()> {
    match instruction.op_kind(operand) {
        OpKind::Register => {
            let (source, width) = general(instruction.op_register(operand))?;
            decoded.source = source;
            if matches!(decoded.operation, Operation::LoadPart | Operation::LoadSigned) {
                decoded.register_width = width;
            }
        }
        OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => decoded.source = Source::Immediate(instruction.immediate(operand) as i32),
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
    if index != Register::None {
        decoded.index = Some(address_register(index)?.0);
    }
    decoded.scale = instruction.memory_index_scale().trailing_zeros() as u8;
    decoded.displacement = instruction.memory_displacement64();
    decoded.segment = segment(instruction.memory_segment())?;
    decoded.address_width = match (base, index, instruction.memory_displ_size()) {
        (Register::RIP, ..) => Width::Qword,
        (Register::EIP, ..) => Width::Dword,
        // An address that is a displacement alone says its width by that.
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

/// A general register's number and width.
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
        // SPL to R15L stand where AL to BL leave off.
        within(Register::SPL, Register::R15L).map(|number| (Source::Register(number + 4), Width::Byte))
    }
}

const fn segment(register: Register) -> Option<SegmentName> {
    Some(match register {
        Register::ES => SegmentName::Es,
        Register::CS => SegmentName::Cs,
        Register::SS => SegmentName::Ss,
        Register::DS => SegmentName::Ds,
        Register::FS => SegmentName::Fs,
        Register::GS => SegmentName::Gs,
        _ => return None,
    })
}

const fn width(size: MemorySize) -> Option<Width> {
    Some(match size {
        MemorySize::UInt8 | MemorySize::Int8 => Width::Byte,
        MemorySize::UInt16 | MemorySize::Int16 => Width::Word,
        MemorySize::UInt32 | MemorySize::Int32 => Width::Dword,
        MemorySize::UInt64 | MemorySize::Int64 => Width::Qword,
        _ => return None,
    })
}

/// What a push or pop without an operand in memory moves. Segment registers are not emulated.
const fn stack_width(code: Code) -> Option<Width> {
    Some(match code {
        Code::Push_r16 | Code::Push_imm16 | Code::Pushw_imm8 | Code::Pop_r16 => Width::Word,
        Code::Push_r32 | Code::Pushd_imm32 | Code::Pushd_imm8 | Code::Pop_r32 => Width::Dword,
        Code::Push_r64 | Code::Pushq_imm32 | Code::Pushq_imm8 | Code::Pop_r64 => Width::Qword,
        _ => return None,
    })
}
