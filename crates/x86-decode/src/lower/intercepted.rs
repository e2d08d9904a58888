//! Instructions that exit by an intercept, for processors that do not report their length.

use super::{MAX_LENGTH, Undecoded, disassemble};
use crate::CodeSize;
use crate::operation::Source;
use iced_x86::{DecoderError, DecoderOptions, Instruction, Mnemonic, Register};

/// Kind of an instruction that exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CPUID.
    Cpuid,
    /// RDMSR.
    Rdmsr,
    /// WRMSR.
    Wrmsr,
    /// HLT.
    Hlt,
    /// VMMCALL.
    Vmmcall,
    /// XSETBV.
    Xsetbv,
    /// INVD, WBINVD, WBNOINVD.
    Invd,
    /// PAUSE.
    Pause,
    /// MOV to a control register.
    ToControl,
    /// LMSW of a register.
    LoadMachineStatus,
    /// JMP, CALL, IRET and INT, which can switch tasks.
    TaskSwitch,
}

/// An instruction that exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intercepted {
    /// Its kind.
    pub kind: Kind,
    /// Length in bytes, 1 to 15.
    pub length: u8,
    /// Number of the general register that is moved to or from a control register, or from which LMSW loads.
    pub register: u8,
}

/// Decodes the instruction at the start of `bytes`.
pub(crate) fn intercepted(bytes: &[u8], code_size: CodeSize) -> Result<Intercepted, Undecoded> {
    let bytes = bytes.get(..MAX_LENGTH).unwrap_or(bytes);
    let (instruction, error) = disassemble(bytes, code_size.bits(), DecoderOptions::AMD)?;
    match error {
        DecoderError::None => {}
        DecoderError::NoMoreBytes => return Err(Undecoded::Truncated),
        _ => return Err(Undecoded::Invalid),
    }
    let (kind, register) = kind(&instruction).ok_or(Undecoded::NoAccess)?;
    let length = u8::try_from(instruction.len()).map_err(|_| Undecoded::Invalid)?;
    Ok(Intercepted { kind, length, register })
}

fn kind(instruction: &Instruction) -> Option<(Kind, u8)> {
    let kind = match instruction.mnemonic() {
        Mnemonic::Cpuid => Kind::Cpuid,
        Mnemonic::Rdmsr => Kind::Rdmsr,
        Mnemonic::Wrmsr => Kind::Wrmsr,
        Mnemonic::Hlt => Kind::Hlt,
        Mnemonic::Vmmcall => Kind::Vmmcall,
        Mnemonic::Xsetbv => Kind::Xsetbv,
        Mnemonic::Invd | Mnemonic::Wbinvd | Mnemonic::Wbnoinvd => Kind::Invd,
        Mnemonic::Pause => Kind::Pause,
        Mnemonic::Jmp | Mnemonic::Call | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Int | Mnemonic::Int3 | Mnemonic::Into => {
            Kind::TaskSwitch
        }
        Mnemonic::Mov if is_control(instruction.op0_register()) => return Some((Kind::ToControl, general(instruction.op1_register())?)),
        Mnemonic::Lmsw => return Some((Kind::LoadMachineStatus, general(instruction.op0_register())?)),
        _ => return None,
    };
    Some((kind, 0))
}

fn is_control(register: Register) -> bool {
    (Register::CR0..=Register::CR15).contains(&register)
}

fn general(register: Register) -> Option<u8> {
    match super::general(register)? {
        (Source::Register(number), _) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length_of(bytes: &[u8], kind: Kind) -> u8 {
        let found = intercepted(bytes, CodeSize::Bits64).unwrap();
        assert_eq!(found.kind, kind);
        found.length
    }

    #[test]
    fn prefixes_count() {
        assert_eq!(length_of(&[0x0f, 0xa2, 0x90], Kind::Cpuid), 2);
        assert_eq!(length_of(&[0x66, 0x48, 0x0f, 0xa2], Kind::Cpuid), 4);
        assert_eq!(length_of(&[0xf4], Kind::Hlt), 1);
        assert_eq!(length_of(&[0x0f, 0x01, 0xd9], Kind::Vmmcall), 3);
        assert_eq!(length_of(&[0x0f, 0x30], Kind::Wrmsr), 2);
        assert_eq!(length_of(&[0xf3, 0x0f, 0x09], Kind::Invd), 3);
    }

    #[test]
    fn moves_name_a_register() {
        let of = |bytes: &[u8], size| intercepted(bytes, size).map(|found| (found.kind, found.length, found.register));
        assert_eq!(of(&[0x0f, 0x22, 0xe3], CodeSize::Bits64), Ok((Kind::ToControl, 3, 3)));
        assert!(of(&[0x44, 0x0f, 0x20, 0xc0], CodeSize::Bits64).is_err(), "reads do not exit");
        assert_eq!(of(&[0x41, 0x0f, 0x22, 0xe7], CodeSize::Bits64), Ok((Kind::ToControl, 4, 15)));
        assert_eq!(of(&[0x0f, 0x01, 0xf3], CodeSize::Bits64), Ok((Kind::LoadMachineStatus, 3, 3)));
        assert!(of(&[0x0f, 0x01, 0x33], CodeSize::Bits64).is_err(), "LMSW from memory is emulated");
        // AMD's form of CR8 without a REX prefix: LOCK MOV.
        assert_eq!(of(&[0xf0, 0x0f, 0x22, 0xc0], CodeSize::Bits32), Ok((Kind::ToControl, 4, 0)));
        assert_eq!(of(&[0x0f, 0x22, 0xe0], CodeSize::Bits16), Ok((Kind::ToControl, 3, 0)));
    }

    #[test]
    fn others_are_refused() {
        assert_eq!(intercepted(&[0x90], CodeSize::Bits64), Err(Undecoded::NoAccess));
        assert_eq!(intercepted(&[0x0f], CodeSize::Bits64), Err(Undecoded::Truncated));
    }
}
