//! Keys of dynamic rows: 32-bit encodings of sub-reasons, and their names.

use core::fmt;

use stile_nested_vmx::fields::FIELDS;

use super::reason;
pub use crate::page::page;
use crate::{Access, Reason};

/// In a port key: the access was a write.
const PORT_WRITE: u32 = 1 << 16;

/// The key of an access to an I/O port.
pub const fn port(port: u16, write: bool) -> u32 {
    port as u32 | if write { PORT_WRITE } else { 0 }
}

/// The key of an access to a model-specific register: its index.
pub const fn msr(register: u32) -> u32 {
    register
}

/// In the key of an exit of L2: L1 gets it.
const FORWARDED: u32 = 1 << 16;

/// The key of an exit of L2: its basic reason.
pub const fn exit_of_l2(reason: u32, is_forwarded: bool) -> u32 {
    reason & 0xffff | if is_forwarded { FORWARDED } else { 0 }
}

/// The key of a VMX instruction: its basic exit reason.
pub const fn instruction(reason: u32) -> u32 {
    reason & 0xffff
}

/// The key of a VMREAD or VMWRITE: its basic exit reason, and the field's encoding, which is not 0.
pub const fn field_access(reason: u32, encoding: u32) -> u32 {
    instruction(reason) | encoding << 16
}

/// The key of an exit in the gate view that interrupted the delivery of an event: no basic exit reason.
pub const GATE_DELIVERY: u32 = 0xffff;

/// Basic exit reasons of L2 that have a name here.
const EXITS: [(u32, &str); 33] = [
    (0, "exception or NMI"),
    (1, "external interrupt"),
    (2, "triple fault"),
    (7, "interrupt window"),
    (8, "NMI window"),
    (9, "task switch"),
    (10, "CPUID"),
    (12, "HLT"),
    (14, "INVLPG"),
    (15, "RDPMC"),
    (16, "RDTSC"),
    (18, "VMCALL"),
    (28, "control register"),
    (29, "debug register"),
    (30, "I/O instruction"),
    (31, "RDMSR"),
    (32, "WRMSR"),
    (33, "entry: guest state"),
    (34, "entry: MSR list"),
    (36, "MWAIT"),
    (37, "monitor trap flag"),
    (40, "PAUSE"),
    (43, "TPR below threshold"),
    (44, "APIC access"),
    (45, "virtualized EOI"),
    (46, "GDTR or IDTR"),
    (47, "LDTR or TR"),
    (48, "EPT violation"),
    (49, "EPT misconfiguration"),
    (52, "preemption timer"),
    (54, "WBINVD"),
    (55, "XSETBV"),
    (56, "APIC write"),
];

/// VMX instructions, and exits in the gate view.
const INSTRUCTIONS: [(u32, &str); 12] = [
    (19, "VMCLEAR"),
    (20, "VMLAUNCH"),
    (21, "VMPTRLD"),
    (22, "VMPTRST"),
    (23, "VMREAD"),
    (24, "VMRESUME"),
    (25, "VMWRITE"),
    (26, "VMXOFF"),
    (27, "VMXON"),
    (50, "INVEPT"),
    (53, "INVVPID"),
    (GATE_DELIVERY, "delivery put back"),
];

/// The name of a basic exit reason.
pub fn exit_reason(number: u32) -> impl fmt::Display {
    struct Name(u32);

    impl fmt::Display for Name {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let names = if INSTRUCTIONS.iter().any(|(named, _)| *named == self.0) { &INSTRUCTIONS[..] } else { &EXITS[..] };
            named(names, self.0, f)
        }
    }

    Name(number)
}

fn named(names: &[(u32, &str)], number: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match names.iter().find(|(named, _)| *named == number) {
        Some((_, name)) => f.write_str(name),
        None => write!(f, "exit reason {number}"),
    }
}

/// Model-specific registers that have a name here.
const MSRS: [(u32, &str); 15] = [
    (0x10, "IA32_TIME_STAMP_COUNTER"),
    (0x1b, "IA32_APIC_BASE"),
    (0x3a, "IA32_FEATURE_CONTROL"),
    (0x3b, "IA32_TSC_ADJUST"),
    (0x48, "IA32_SPEC_CTRL"),
    (0x8b, "IA32_BIOS_SIGN_ID"),
    (0xce, "MSR_PLATFORM_INFO"),
    (0x140, "MSR_MISC_FEATURES_ENABLES"),
    (0x1a0, "IA32_MISC_ENABLE"),
    (0x1d9, "IA32_DEBUGCTL"),
    (0x6e0, "IA32_TSC_DEADLINE"),
    (0x808, "x2APIC TPR"),
    (0x80b, "x2APIC EOI"),
    (0x830, "x2APIC ICR"),
    (0xc000_0080, "IA32_EFER"),
];

/// Writes the name of a dynamic sub-reason.
pub(super) fn write(reason: Reason, key: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reason {
        reason::IO => {
            let access = if key & PORT_WRITE != 0 { Access::Write } else { Access::Read };
            write!(f, "port {:#06x} {access}", key as u16)
        }
        reason::RDMSR | reason::WRMSR => match MSRS.iter().find(|(number, _)| *number == key) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "MSR {key:#x}"),
        },
        reason::MMIO => crate::page::write(key, f),
        reason::VMX => {
            named(&INSTRUCTIONS, key & 0xffff, f)?;
            match key >> 16 {
                0 => Ok(()),
                encoding => match FIELDS.iter().find(|row| row.field.0 == encoding) {
                    Some(row) => write!(f, " {}", row.name),
                    None => write!(f, " {encoding:#x}"),
                },
            }
        }
        reason::L2 => {
            f.write_str(if key & FORWARDED != 0 { "FORWARDED " } else { "" })?;
            named(&EXITS, key & 0xffff, f)
        }
        reason::UNKNOWN => write!(f, "exit reason {key}"),
        _ => write!(f, "{key:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::CATALOGUE;
    use crate::{RowKey, x86_64 as rows};
    use std::string::ToString;

    #[test]
    fn rows_have_names() {
        let name = |key| CATALOGUE.name(key).unwrap().sub.to_string();
        assert_eq!(name(RowKey::Static(rows::com1(5, false))), "COM1 LSR read");
        assert_eq!(name(RowKey::Static(rows::INTERRUPT_KICK)), "kick");
        assert_eq!(name(RowKey::Static(rows::CR4)), "CR4 write");
        let dynamic = |reason, key| name(RowKey::Dynamic { reason, key });
        assert_eq!(dynamic(reason::IO, port(0xcf8, true)), "port 0x0cf8 write");
        assert_eq!(dynamic(reason::RDMSR, msr(0x1b)), "IA32_APIC_BASE");
        assert_eq!(dynamic(reason::WRMSR, msr(0x1234)), "MSR 0x1234");
        assert_eq!(dynamic(reason::VMX, instruction(24)), "VMRESUME");
        assert_eq!(dynamic(reason::VMX, GATE_DELIVERY), "delivery put back");
        assert_eq!(dynamic(reason::VMX, field_access(23, 0x681e)), "VMREAD GUEST_RIP");
        assert_eq!(dynamic(reason::VMX, field_access(25, 0x7fff)), "VMWRITE 0x7fff");
        assert_eq!(dynamic(reason::L2, exit_of_l2(10, true)), "FORWARDED CPUID");
        assert_eq!(dynamic(reason::L2, exit_of_l2(57, false)), "exit reason 57");
        assert_eq!([10, 24, 57].map(|number| exit_reason(number).to_string()), ["CPUID", "VMRESUME", "exit reason 57"]);
        assert_eq!(dynamic(reason::MMIO, page(0xfee0_0300, false)), "unmapped 0xfee00000 read");
    }
}
