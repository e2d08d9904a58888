//! The second decoder: yaxpeax-x86. It does not know implicit operands, so that what is not listed as harmless is refused.

use yaxpeax_arch::LengthedInstruction;

use super::rules::{HARMLESS, Mode, Step};

/// Instructions whose first operand is read only.
const READ: [&str; 4] = ["test", "cmp", "push", "bt"];

macro_rules! decoder {
    ($name:ident, $mode:ident, $address:ident, $sign:ident) => {
        fn $name(bytes: &[u8]) -> Step {
            use yaxpeax_x86::$mode::{DecodeError, InstDecoder, Opcode, Operand};

            let instruction = match InstDecoder::default().decode_slice(bytes) {
                Ok(instruction) => instruction,
                Err(DecodeError::ExhaustedInput) => return Step::Other(0, "cut off".into()),
                Err(_) => return Step::Leaves,
            };
            let length = instruction.len().to_const() as usize;
            let name = instruction.opcode().to_string();
            match instruction.opcode() {
                Opcode::INT | Opcode::UD0 | Opcode::UD1 | Opcode::UD2 | Opcode::IN | Opcode::OUT => return Step::Leaves,
                Opcode::VMFUNC => return Step::Switch(length),
                _ if name == "int1" || name == "int3" => return Step::Leaves,
                _ => {}
            }
            let operands: Vec<Operand> = (0..instruction.operand_count()).map(|at| instruction.operand(at)).collect();
            let by = match operands.first() {
                Some(Operand::ImmediateI8 { imm }) => i64::from(*imm),
                Some(Operand::ImmediateI32 { imm }) => i64::from(*imm),
                _ => i64::MAX,
            };
            if by != i64::MAX && (name.starts_with('j') || name.starts_with("loop")) {
                return Step::Jump { length, by, always: name == "jmp" };
            }
            if operands.iter().any(Operand::is_memory) {
                let plain = name == "mov"
                    && instruction.mem_size().and_then(|size| size.bytes_size()) == Some(4)
                    && instruction.segment_override_for_op(0).is_none_or(|segment| !["FS", "GS"].contains(&format!("{segment:?}").as_str()));
                return match operands.as_slice() {
                    [Operand::$address { addr }, Operand::ImmediateI32 { imm }] if plain => Step::Store { length, address: $sign(bytes, addr), value: *imm as u32 },
                    [Operand::$address { addr }, Operand::ImmediateU32 { imm }] if plain => Step::Store { length, address: $sign(bytes, addr), value: *imm },
                    [first, ..] if first.is_memory() && !READ.contains(&name.as_str()) => Step::Writes(name),
                    _ => Step::Other(length, name),
                };
            }
            const SEGMENTS: [&str; 6] = ["es", "cs", "ss", "ds", "fs", "gs"];
            let loads_segment = matches!(operands.first(), Some(Operand::Register { reg }) if SEGMENTS.contains(&reg.name()));
            if HARMLESS.contains(&name.as_str()) && !loads_segment { Step::Next(length) } else { Step::Other(length, name) }
        }
    };
}

/// The decoder does not extend the sign of a displacement, which the processor does in 64-bit addressing.
fn extended(bytes: &[u8], address: &u32) -> u64 {
    const PREFIXES: [u8; 11] = [0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3];
    let short = bytes.iter().take_while(|byte| PREFIXES.contains(byte)).any(|&byte| byte == 0x67);
    if short { (*address).into() } else { i64::from(*address as i32) as u64 }
}

fn plain(_: &[u8], address: &(impl Copy + Into<u64>)) -> u64 {
    (*address).into()
}

decoder!(decode_64, long_mode, AbsoluteU32, extended);
decoder!(decode_32, protected_mode, AbsoluteU32, plain);
decoder!(decode_16, real_mode, AbsoluteU16, plain);

pub fn decode(bytes: &[u8], mode: Mode) -> Step {
    match mode {
        16 => decode_16(bytes),
        32 => decode_32(bytes),
        _ => decode_64(bytes),
    }
}
