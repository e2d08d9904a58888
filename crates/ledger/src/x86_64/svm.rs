//! Names with AMD-V, where they differ from those with VMX.

use core::fmt;

use super::{key, reason};
use crate::Reason;

/// The reasons' names, by number.
pub(super) const NAMES: [&str; reason::NAMES.len()] = {
    let mut names = [""; reason::NAMES.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = match reason::NAMES[at].as_bytes() {
            b"VMCALL" => "VMMCALL",
            b"VMX" => "SVM",
            b"TRIPLE_FAULT" => "SHUTDOWN",
            b"ENTRY" => "VMRUN",
            _ => reason::NAMES[at],
        };
        at += 1;
    }
    names
};

/// Writes the name of a dynamic sub-reason.
pub(super) fn write(reason: Reason, key: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reason {
        reason::UNKNOWN => write!(f, "exit code {key:#x}"),
        _ => key::write(reason, key, f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::{CATALOGUE_SVM, key};
    use crate::{RowKey, x86_64 as rows};
    use std::string::ToString;

    #[test]
    fn names_are_those_of_the_manual() {
        let reason_of = |row: crate::RowId| CATALOGUE_SVM.name(RowKey::Static(row)).unwrap().reason_name;
        assert_eq!(reason_of(reason::VMCALL.other()), "VMMCALL");
        assert_eq!(reason_of(reason::VMX.other()), "SVM");
        assert_eq!(reason_of(reason::TRIPLE_FAULT.other()), "SHUTDOWN");
        assert_eq!(reason_of(rows::CR4), "CR");
        let dynamic = |reason, key| CATALOGUE_SVM.name(RowKey::Dynamic { reason, key }).unwrap().sub.to_string();
        assert_eq!(dynamic(reason::UNKNOWN, 0x8f), "exit code 0x8f");
        assert_eq!(dynamic(reason::RDMSR, key::msr(0xc000_0080)), "IA32_EFER");
    }
}
