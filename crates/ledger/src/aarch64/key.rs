//! Keys of dynamic rows: how a sub-reason becomes 32 bits, and what it is called.

use core::fmt;

use crate::aarch64::{names, reason};
use crate::{Access, Reason};

/// Rt, the general-purpose register, in "ISS encoding for an exception from MSR, MRS, or System
/// instruction execution in AArch64 state". All other fields say what was accessed, and which way.
const ISS_RT: u32 = 0x1f << 5;
/// The fields of that encoding that are defined.
const ISS_FIELDS: u32 = (1 << 22) - 1;

/// The key of a trapped system-register access, from the syndrome's ISS.
pub const fn sysreg(iss: u32) -> u32 {
    iss & ISS_FIELDS & !ISS_RT
}

/// In the key of a page: the guest wrote.
const PAGE_WRITE: u32 = 1 << 31;
/// In the key of a page: the page's number. The highest stands for all pages from there on (8 TiB).
const PAGE_NUMBER: u32 = PAGE_WRITE - 1;

/// The key of an access to a guest-physical address at which there is nothing: its 4 KiB page, and
/// its direction.
pub const fn page(ipa: u64, write: bool) -> u32 {
    let number = ipa >> 12;
    let number = if number < PAGE_NUMBER as u64 { number as u32 } else { PAGE_NUMBER };
    number | if write { PAGE_WRITE } else { 0 }
}

/// Writes the name of a dynamic sub-reason.
pub(super) fn write(reason: Reason, key: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reason {
        reason::SYSREG | reason::NESTED | reason::FORWARDED => write_sysreg(key, f),
        reason::MMIO | reason::ABORT => write_page(key, f),
        reason::HVC | reason::SMC => write!(f, "function {key:#010x}"),
        reason::UNKNOWN | reason::AARCH32 => write!(f, "EC {key:#04x}"),
        _ => write!(f, "{key:#x}"),
    }
}

fn write_page(key: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = key & PAGE_NUMBER;
    let access = if key & PAGE_WRITE != 0 { Access::Write } else { Access::Read };
    let address = u64::from(number) << 12;
    let above = if number == PAGE_NUMBER { "+" } else { "" };
    write!(f, "unmapped {address:#010x}{above} {access}")
}

fn write_sysreg(key: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // Five fields of at most four bits: nothing is lost.
    let field = |shift: u32, bits: u32| (key >> shift & ((1 << bits) - 1)) as u8;
    let encoding @ [op0, op1, crn, crm, op2] = [field(20, 2), field(14, 3), field(10, 4), field(1, 4), field(17, 3)];
    let access = if key & 1 != 0 { Access::Read } else { Access::Write };
    match names::name(encoding) {
        Some(name) => write!(f, "{name} {access}"),
        // The manual's way to write a register that has no name.
        None => write!(f, "S{op0}_{op1}_C{crn}_C{crm}_{op2} {access}"),
    }
}
