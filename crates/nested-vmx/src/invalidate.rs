//! Operands of INVEPT and INVVPID (SDM, "VMX Instruction Reference").

use crate::capability::{Capabilities, ept_vpid};
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

/// Whether INVEPT has this type. The descriptor of another one is not accessed ("INVEPT—Invalidate Translations Derived from EPT").
pub const fn has_invept_type(kind: u64, capabilities: &Capabilities) -> bool {
    let bit = match kind {
        1 => ept_vpid::INVEPT_SINGLE,
        2 => ept_vpid::INVEPT_ALL,
        _ => return false,
    };
    capabilities.ept_vpid & bit != 0
}

/// Whether INVVPID has this type. The descriptor of another one is not accessed ("INVVPID—Invalidate Translations Based on VPID").
pub const fn has_invvpid_type(kind: u64, capabilities: &Capabilities) -> bool {
    const FIRST_TYPE: u32 = 40;
    kind < 4 && capabilities.ept_vpid >> FIRST_TYPE >> kind & 1 != 0
}

/// Decodes the operands of INVEPT: its type, and the two words of its descriptor.
///
/// # Errors
/// The instruction fails.
pub fn invept(kind: u64, descriptor: [u64; 2], processor: &Processor<'_>) -> Result<Invept, InstructionError> {
    match kind {
        _ if !has_invept_type(kind, processor.capabilities) => Err(InstructionError::InvalidateOperand),
        1 if processor.accepts_ept_pointer(descriptor[0]) => Ok(Invept::Single(descriptor[0])),
        2 => Ok(Invept::All),
        _ => Err(InstructionError::InvalidateOperand),
    }
}

/// Decodes the operands of INVVPID: its type, and the two words of its descriptor.
///
/// # Errors
/// The instruction fails.
pub fn invvpid(kind: u64, descriptor: [u64; 2], processor: &Processor<'_>) -> Result<Invvpid, InstructionError> {
    const FAILURE: InstructionError = InstructionError::InvalidateOperand;
    // Bits 63:16 of the first word are reserved for all types.
    let vpid = u16::try_from(descriptor[0]).map_err(|_| FAILURE)?;
    match kind {
        _ if !has_invvpid_type(kind, processor.capabilities) => Err(FAILURE),
        2 => Ok(Invvpid::All),
        _ if vpid == 0 => Err(FAILURE),
        0 if processor.is_canonical(descriptor[1]) => Ok(Invvpid::Address(vpid, descriptor[1])),
        1 => Ok(Invvpid::Single(vpid)),
        3 => Ok(Invvpid::SingleExceptGlobal(vpid)),
        _ => Err(FAILURE),
    }
}
