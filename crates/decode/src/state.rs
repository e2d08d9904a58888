//! Words of the x87's and SSE's state in memory: FNSTCW, FLDCW, FNSTSW, STMXCSR and LDMXCSR.

use crate::decoded::Decoded;
use crate::vector::{check_mmx, check_sse};
use crate::{Control, Fault, Intent, Vcpu};

/// A word of that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum StateWord {
    X87Control,
    X87Status,
    Mxcsr,
}

/// What CR0 and CR4 must have allowed.
fn check(word: StateWord, vcpu: &impl Vcpu) -> Result<(), Fault> {
    const EM_AND_TS: u64 = 0b1100;
    match word {
        StateWord::Mxcsr => check_sse(vcpu),
        _ if vcpu.control(Control::Cr0) & EM_AND_TS != 0 => Err(Fault::DeviceNotAvailable),
        _ => Ok(()),
    }
}

/// Tells the word, also while an exception of the x87 waits.
pub(crate) fn store(decoded: &Decoded, word: StateWord, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    check(word, vcpu)?;
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, true)?;
    let value = vcpu.state_word(word);
    decoded.write(vcpu, place, value.into())
}

pub(crate) fn load(decoded: &Decoded, word: StateWord, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    /// All bits that MXCSR has.
    const MXCSR: u64 = 0xffff;
    check(word, vcpu)?;
    if word != StateWord::Mxcsr {
        // Neither EM nor TS is set: what is left is an exception that waits.
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
