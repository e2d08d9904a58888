//! x87 and SSE control and status words: FNSTCW, FLDCW, FNSTSW, STMXCSR and LDMXCSR.

use crate::decoded::Decoded;
use crate::vector::{check_mmx, check_sse};
use crate::{Control, Fault, Intent, StateWord, Vcpu};

/// Checks CR0 and CR4.
fn check(word: StateWord, vcpu: &impl Vcpu) -> Result<(), Fault> {
    const EM_AND_TS: u64 = 0b1100;
    match word {
        StateWord::Mxcsr => check_sse(vcpu),
        _ if vcpu.control(Control::Cr0) & EM_AND_TS != 0 => Err(Fault::DeviceNotAvailable),
        _ => Ok(()),
    }
}

/// Stores the word, also while an x87 exception is pending.
pub(crate) fn store(decoded: &Decoded, word: StateWord, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    check(word, vcpu)?;
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, true)?;
    let value = vcpu.state_word(word);
    decoded.write(vcpu, place, value.into())
}

pub(crate) fn load(decoded: &Decoded, word: StateWord, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    /// Defined bits of MXCSR.
    const MXCSR: u64 = 0xffff;
    check(word, vcpu)?;
    if word != StateWord::Mxcsr {
        // EM and TS are clear, so this only checks for a pending exception.
        check_mmx(vcpu)?;
    }
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
    let value = decoded.read(vcpu, place, Intent::Use)?;
    if word == StateWord::Mxcsr && value & !MXCSR != 0 {
        return Err(Fault::Protection);
    }
    vcpu.set_state_word(word, value as u32);
    Ok(())
}
