//! The first decoder: iced-x86.

use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::rules::{HARMLESS, Mode, Step};

pub fn decode(bytes: &[u8], mode: Mode) -> Step {
    let instruction = Decoder::with_ip(mode, bytes, 0, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        return Step::Leaves;
    }
    let length = instruction.len();
    let name = format!("{:?}", instruction.mnemonic()).to_lowercase();
    match instruction.mnemonic() {
        Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Int3 | Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => return Step::Leaves,
        Mnemonic::In | Mnemonic::Out => return Step::Leaves,
        Mnemonic::Vmfunc => return Step::Switch(length),
        _ => {}
    }
    let mut factory = InstructionInfoFactory::new();
    let memory: Vec<_> = factory.info(&instruction).used_memory().to_vec();
    let writes = |access| matches!(access, OpAccess::Write | OpAccess::ReadWrite);
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::Interrupt => {}
        flow @ (FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch)
            if matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64) =>
        {
            // An address relative to 0, of the operand's size.
            let to = instruction.near_branch_target();
            let to = match instruction.op0_kind() {
                OpKind::NearBranch16 => i64::from(to as i16),
                OpKind::NearBranch32 => i64::from(to as i32),
                _ => to as i64,
            };
            let always = flow == FlowControl::UnconditionalBranch;
            return Step::Jump { length, by: to - length as i64, always };
        }
        _ if memory.iter().any(|memory| writes(memory.access())) => return Step::Writes(name),
        _ => return Step::Other(length, name),
    }
    if memory.is_empty() {
        return if HARMLESS.contains(&name.as_str()) && !instruction.op0_register().is_segment_register() {
            Step::Next(length)
        } else {
            Step::Other(length, name)
        };
    }
    let plain = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Memory
        && matches!(instruction.op1_kind(), OpKind::Immediate32)
        && instruction.memory_base() == Register::None
        && instruction.memory_index() == Register::None
        && !matches!(instruction.segment_prefix(), Register::FS | Register::GS)
        && instruction.memory_size().size() == 4;
    if plain {
        return Step::Store { length, address: instruction.memory_displacement64(), value: instruction.immediate32() };
    }
    if memory.iter().any(|memory| writes(memory.access())) { Step::Writes(name) } else { Step::Other(length, name) }
}
