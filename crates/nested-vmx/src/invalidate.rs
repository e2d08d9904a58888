//! Operands of INVEPT and INVVPID (SDM, "VMX Instruction Reference").

use crate::capability::ept_vpid;
use crate::checks::Processor;
use crate::result::InstructionError;

/// The translations that INVEPT invalidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invept {
    /// Those of one EPT pointer.
    Single(u64),
    /// All.
    All,
}

/// The translations that INVVPID invalidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invvpid {
    /// Those of one VPID and linear address.
    Address(u16, u64),
    /// Those of one VPID.
    Single(u16),
    /// Those of all VPIDs but 0.
    All,
    /// Those of one VPID that are not global.
    SingleExceptGlobal(u16),
}

/// Decodes the operands of INVEPT: its type, and the two words of its descriptor.
///
/// # Errors
/// The instruction fails.
pub fn invept(kind: u64, descriptor: [u64; 2], processor: &Processor<'_>) -> Result<Invept, InstructionError> {
    let has = |bit| processor.capabilities.ept_vpid & bit != 0;
    match kind {
        1 if has(ept_vpid::INVEPT_SINGLE) && processor.accepts_ept_pointer(descriptor[0]) => Ok(Invept::Single(descriptor[0])),
        2 if has(ept_vpid::INVEPT_ALL) => Ok(Invept::All),
        _ => Err(InstructionError::InvalidateOperand),
    }
}

/// Decodes the operands of INVVPID: its type, and the two words of its descriptor.
///
/// # Errors
/// The instruction fails.
pub fn invvpid(kind: u64, descriptor: [u64; 2], processor: &Processor<'_>) -> Result<Invvpid, InstructionError> {
    const FIRST_TYPE: u32 = 40;
    const FAILURE: InstructionError = InstructionError::InvalidateOperand;
    let is_offered = kind < 4 && processor.capabilities.ept_vpid >> FIRST_TYPE >> kind & 1 != 0;
    // Bits 63:16 of the first word are reserved for all types.
    let vpid = u16::try_from(descriptor[0]).map_err(|_| FAILURE)?;
    match kind {
        _ if !is_offered => Err(FAILURE),
        2 => Ok(Invvpid::All),
        _ if vpid == 0 => Err(FAILURE),
        0 if processor.is_canonical(descriptor[1]) => Ok(Invvpid::Address(vpid, descriptor[1])),
        1 => Ok(Invvpid::Single(vpid)),
        3 => Ok(Invvpid::SingleExceptGlobal(vpid)),
        _ => Err(FAILURE),
    }
}
