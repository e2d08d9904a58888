//! Mapping of mnemonics to operations.

use super::kind::{is_memory, segment};
use super::{combine, vector};
use crate::condition::Condition;
use crate::names::{SelectorName, TableName};
use crate::operation::{Alu, Bit, Direction, Operation, Scan, Shift, Sign, Source, Unary};
use crate::{SegmentName, StateWord, SystemSegment};
use iced_x86::{Code, Instruction, Mnemonic, OpKind};

/// Returns the operation, if it is emulated with these operands: one is in memory or on a stack.
pub(super) fn of(instruction: &Instruction) -> Option<Operation> {
    let memory = (0..instruction.op_count()).any(|operand| is_memory(instruction.op_kind(operand)));
    if !memory {
        return on_a_stack(instruction);
    }
    moves(instruction)
        .or_else(|| arithmetic(instruction))
        .or_else(|| strings(instruction))
        .or_else(|| vectors(instruction))
        .or_else(|| combine::of(instruction).map(|(how, _)| Operation::Combine(how)))
        .or_else(|| system(instruction))
}

fn vectors(instruction: &Instruction) -> Option<Operation> {
    let store = is_memory(instruction.op0_kind());
    // Other MMX instructions are not moves.
    let is_mmx_move = || matches!(instruction.mnemonic(), Mnemonic::Movd | Mnemonic::Movq | Mnemonic::Movntq);
    match vector::of(instruction)? {
        Source::Mmx(_) => is_mmx_move().then_some(if store { Operation::MmxStore } else { Operation::MmxLoad }),
        _ => Some(if store { Operation::VectorStore } else { Operation::VectorLoad }),
    }
}

/// Whether the only memory operand is on the stack: see [`on_a_stack`].
pub(super) const fn is_on_a_stack(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::PushSource
            | Operation::PushSelector(_)
            | Operation::PushFlags
            | Operation::PushAll
            | Operation::PopFlags
            | Operation::PopAll
            | Operation::PopRegister
            | Operation::PopSegment(_)
            | Operation::CallSource
            | Operation::CallFarPointer
            | Operation::Return
            | Operation::ReturnFar
            | Operation::Enter
            | Operation::Leave
    )
}

fn on_a_stack(instruction: &Instruction) -> Option<Operation> {
    let segment = || segment(instruction.op0_register());
    Some(match instruction.mnemonic() {
        Mnemonic::Push => match segment() {
            Some(name) => Operation::PushSelector(name),
            None => Operation::PushSource,
        },
        Mnemonic::Pop => match segment() {
            Some(name) => Operation::PopSegment(name),
            None => Operation::PopRegister,
        },
        Mnemonic::Call if matches!(instruction.op0_kind(), OpKind::FarBranch16 | OpKind::FarBranch32) => Operation::CallFarPointer,
        Mnemonic::Call => Operation::CallSource,
        Mnemonic::Retf => Operation::ReturnFar,
        Mnemonic::Pushf | Mnemonic::Pushfd | Mnemonic::Pushfq => Operation::PushFlags,
        Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => Operation::PopFlags,
        Mnemonic::Pusha | Mnemonic::Pushad => Operation::PushAll,
        Mnemonic::Popa | Mnemonic::Popad => Operation::PopAll,
        Mnemonic::Ret => Operation::Return,
        Mnemonic::Enter => Operation::Enter,
        Mnemonic::Leave => Operation::Leave,
        _ => return None,
    })
}

fn moves(instruction: &Instruction) -> Option<Operation> {
    let store = is_memory(instruction.op0_kind());
    let code = instruction.code() as u32;
    Some(match instruction.mnemonic() {
        Mnemonic::Mov if segment(instruction.op0_register()).is_some() => Operation::LoadSegment(segment(instruction.op0_register())?),
        Mnemonic::Mov if segment(instruction.op1_register()).is_some() => {
            Operation::StoreSelector(SelectorName::Segment(segment(instruction.op1_register())?))
        }
        Mnemonic::Mov | Mnemonic::Movnti if store => Operation::Store,
        Mnemonic::Mov | Mnemonic::Movzx => Operation::LoadPart,
        Mnemonic::Movsx | Mnemonic::Movsxd => Operation::LoadSigned,
        Mnemonic::Movbe if store => Operation::StoreSwapped,
        Mnemonic::Movbe => Operation::LoadSwapped,
        Mnemonic::Xchg => Operation::Exchange,
        Mnemonic::Fnstcw => Operation::StoreState(StateWord::X87Control),
        Mnemonic::Fldcw => Operation::LoadState(StateWord::X87Control),
        Mnemonic::Fnstsw => Operation::StoreState(StateWord::X87Status),
        Mnemonic::Stmxcsr => Operation::StoreState(StateWord::Mxcsr),
        Mnemonic::Ldmxcsr => Operation::LoadState(StateWord::Mxcsr),
        Mnemonic::Xlatb => Operation::Translate,
        Mnemonic::Clflush | Mnemonic::Clflushopt | Mnemonic::Clwb => Operation::Touch,
        Mnemonic::Push => Operation::PushMemory,
        Mnemonic::Pop => Operation::PopMemory,
        Mnemonic::Jmp if is_far(instruction) => Operation::JumpFar,
        Mnemonic::Jmp => Operation::Jump,
        Mnemonic::Call if is_far(instruction) => Operation::CallFar,
        Mnemonic::Call => Operation::CallMemory,
        // Codes are in opcode order, with three widths of each CMOVcc.
        _ if within(code, Code::Seto_rm8, Code::Setg_rm8) => Operation::StoreCondition(Condition((code - Code::Seto_rm8 as u32) as u8)),
        _ if within(code, Code::Cmovo_r16_rm16, Code::Cmovg_r64_rm64) => {
            Operation::LoadIf(Condition(((code - Code::Cmovo_r16_rm16 as u32) / 3) as u8))
        }
        _ => return None,
    })
}

fn is_far(instruction: &Instruction) -> bool {
    matches!(
        instruction.code(),
        Code::Jmp_m1616 | Code::Jmp_m1632 | Code::Jmp_m1664 | Code::Call_m1616 | Code::Call_m1632 | Code::Call_m1664
    )
}

const fn within(code: u32, first: Code, last: Code) -> bool {
    first as u32 <= code && code <= last as u32
}

fn arithmetic(instruction: &Instruction) -> Option<Operation> {
    let memory_first = is_memory(instruction.op0_kind());
    let alu = |alu| if memory_first { Operation::ToMemory(alu) } else { Operation::ToRegister(alu) };
    let by_cl = instruction.op_count() == 3 && instruction.op2_kind() == OpKind::Register;
    let double = |direction| if by_cl { Operation::DoubleShiftByCl(direction) } else { Operation::DoubleShift(direction) };
    Some(match instruction.mnemonic() {
        Mnemonic::Add => alu(Alu::Add),
        Mnemonic::Adc => alu(Alu::Adc),
        Mnemonic::Sub => alu(Alu::Sub),
        Mnemonic::Sbb => alu(Alu::Sbb),
        Mnemonic::And => alu(Alu::And),
        Mnemonic::Or => alu(Alu::Or),
        Mnemonic::Xor => alu(Alu::Xor),
        Mnemonic::Cmp => alu(Alu::Cmp),
        Mnemonic::Test => alu(Alu::Test),
        Mnemonic::Inc => Operation::Unary(Unary::Inc),
        Mnemonic::Dec => Operation::Unary(Unary::Dec),
        Mnemonic::Not => Operation::Unary(Unary::Not),
        Mnemonic::Neg => Operation::Unary(Unary::Neg),
        Mnemonic::Rol => Operation::Shift(Shift::RotateLeft),
        Mnemonic::Ror => Operation::Shift(Shift::RotateRight),
        Mnemonic::Rcl => Operation::Shift(Shift::RotateCarryLeft),
        Mnemonic::Rcr => Operation::Shift(Shift::RotateCarryRight),
        Mnemonic::Shl | Mnemonic::Sal => Operation::Shift(Shift::Left),
        Mnemonic::Shr => Operation::Shift(Shift::Right),
        Mnemonic::Sar => Operation::Shift(Shift::RightSigned),
        Mnemonic::Shld => double(Direction::Left),
        Mnemonic::Shrd => double(Direction::Right),
        Mnemonic::Mul => Operation::Multiply(Sign::Unsigned),
        Mnemonic::Imul if instruction.op_count() == 1 => Operation::Multiply(Sign::Signed),
        Mnemonic::Imul => Operation::MultiplyTo,
        Mnemonic::Div => Operation::Divide(Sign::Unsigned),
        Mnemonic::Idiv => Operation::Divide(Sign::Signed),
        Mnemonic::Bsf => Operation::Scan(Scan::Forward),
        Mnemonic::Bsr => Operation::Scan(Scan::Reverse),
        Mnemonic::Tzcnt => Operation::Scan(Scan::TrailingZeros),
        Mnemonic::Lzcnt => Operation::Scan(Scan::LeadingZeros),
        Mnemonic::Popcnt => Operation::Scan(Scan::Ones),
        Mnemonic::Bt => Operation::Bit(Bit::Test),
        Mnemonic::Bts => Operation::Bit(Bit::Set),
        Mnemonic::Btr => Operation::Bit(Bit::Reset),
        Mnemonic::Btc => Operation::Bit(Bit::Complement),
        Mnemonic::Xadd => Operation::ExchangeAdd,
        Mnemonic::Cmpxchg => Operation::CompareExchange,
        Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => Operation::CompareExchangePair,
        _ => return None,
    })
}

fn strings(instruction: &Instruction) -> Option<Operation> {
    Some(match instruction.mnemonic() {
        Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => Operation::StoreString,
        Mnemonic::Lodsb | Mnemonic::Lodsw | Mnemonic::Lodsd | Mnemonic::Lodsq => Operation::LoadString,
        // MOVSD and CMPSD are also SSE mnemonics.
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsq => Operation::MoveString,
        Mnemonic::Movsd if instruction.code() == Code::Movsd_m32_m32 => Operation::MoveString,
        Mnemonic::Scasb | Mnemonic::Scasw | Mnemonic::Scasd | Mnemonic::Scasq => Operation::ScanString,
        Mnemonic::Cmpsb | Mnemonic::Cmpsw | Mnemonic::Cmpsq => Operation::CompareString,
        Mnemonic::Cmpsd if instruction.code() == Code::Cmpsd_m32_m32 => Operation::CompareString,
        Mnemonic::Insb | Mnemonic::Insw | Mnemonic::Insd => Operation::InString,
        Mnemonic::Outsb | Mnemonic::Outsw | Mnemonic::Outsd => Operation::OutString,
        _ => return None,
    })
}

fn system(instruction: &Instruction) -> Option<Operation> {
    Some(match instruction.mnemonic() {
        Mnemonic::Smsw => Operation::StoreMachineStatus,
        Mnemonic::Lmsw => Operation::LoadMachineStatus,
        Mnemonic::Sgdt => Operation::StoreTable(TableName::Gdt),
        Mnemonic::Sidt => Operation::StoreTable(TableName::Idt),
        Mnemonic::Lgdt => Operation::LoadTable(TableName::Gdt),
        Mnemonic::Lidt => Operation::LoadTable(TableName::Idt),
        Mnemonic::Sldt => Operation::StoreSelector(SelectorName::Ldtr),
        Mnemonic::Str => Operation::StoreSelector(SelectorName::Tr),
        Mnemonic::Lldt => Operation::LoadSystem(SystemSegment::Ldtr),
        Mnemonic::Ltr => Operation::LoadSystem(SystemSegment::Tr),
        Mnemonic::Lds => Operation::LoadFar(SegmentName::Ds),
        Mnemonic::Les => Operation::LoadFar(SegmentName::Es),
        Mnemonic::Lss => Operation::LoadFar(SegmentName::Ss),
        Mnemonic::Lfs => Operation::LoadFar(SegmentName::Fs),
        Mnemonic::Lgs => Operation::LoadFar(SegmentName::Gs),
        _ => return None,
    })
}
