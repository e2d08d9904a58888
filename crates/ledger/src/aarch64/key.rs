//! Keys of dynamic rows: 32-bit encodings of sub-reasons, and their names.

use core::fmt;

use crate::aarch64::{names, reason};
use crate::page;
pub use crate::page::page;
use crate::{Access, Reason};

/// Rt, the general-purpose register, in "ISS encoding for an exception from MSR, MRS, or System instruction
/// execution in AArch64 state". The other fields identify register and direction.
const ISS_RT: u32 = 0x1f << 5;
/// The defined fields of that encoding.
const ISS_FIELDS: u32 = (1 << 22) - 1;

/// The key of a trapped system-register access, from the syndrome's ISS.
pub const fn sysreg(iss: u32) -> u32 {
    iss & ISS_FIELDS & !ISS_RT
}

/// Writes the name of a dynamic sub-reason.
pub(super) fn write(reason: Reason, key: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reason {
        reason::SYSREG | reason::NESTED | reason::FORWARDED => write_sysreg(key, f),
        reason::MMIO | reason::ABORT => page::write(key, f),
        reason::HVC | reason::SMC => write!(f, "function {key:#010x}"),
        reason::UNKNOWN | reason::AARCH32 => write!(f, "EC {key:#04x}"),
        _ => write!(f, "{key:#x}"),
    }
}

fn write_sysreg(key: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // Five fields of at most four bits: the casts are lossless.
    let field = |shift: u32, bits: u32| (key >> shift & ((1 << bits) - 1)) as u8;
    let encoding @ [op0, op1, crn, crm, op2] = [field(20, 2), field(14, 3), field(10, 4), field(1, 4), field(17, 3)];
    let access = if key & 1 != 0 { Access::Read } else { Access::Write };
    match names::name(encoding) {
        Some(name) => write!(f, "{name} {access}"),
        // The manual's notation for a register without a name.
        None => write!(f, "S{op0}_{op1}_C{crn}_C{crm}_{op2} {access}"),
    }
}
