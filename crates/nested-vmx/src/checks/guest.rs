//! Checks on guest state other than segment registers (SDM, 26.3.1).

use super::rule::{CONTROLS, EntryFailure, Event, Rule, Section, State, rule, sign_extend};
use crate::capability::misc;
use crate::controls::{entry, pin, secondary};
use crate::field::Field;
use crate::group::{Group, Groups};
use crate::vmcs12::SHADOW;

const FAILURE: EntryFailure = EntryFailure::GuestState(0);
/// Exit qualifications of failures (SDM, "VM-Entry Failures During or After Loading Guest State").
const PDPTES_FAILURE: EntryFailure = EntryFailure::GuestState(2);
const LINK_FAILURE: EntryFailure = EntryFailure::GuestState(4);

const fn reads(groups: &[Group]) -> Groups {
    CONTROLS.union(Groups::of(groups))
}

/// Before those on segment registers.
pub(super) const SECTIONS: &[Section] =
    &[Section { number: "26.3.1.1", failure: FAILURE, reads: reads(&[Group::Registers]), rules: REGISTERS }];

/// After those on segment registers.
pub(super) const LATER_SECTIONS: &[Section] = &[
    Section { number: "26.3.1.3", failure: FAILURE, reads: reads(&[Group::Tables]), rules: TABLES },
    Section {
        number: "26.3.1.4",
        failure: FAILURE,
        reads: reads(&[Group::Pointers, Group::Flags, Group::Segments, Group::Registers, Group::Event]),
        rules: POINTERS,
    },
    Section {
        number: "26.3.1.5",
        failure: FAILURE,
        reads: reads(&[Group::Activity, Group::Flags, Group::Segments, Group::Registers, Group::Event]),
        rules: ACTIVITY,
    },
    Section { number: "26.3.1.5", failure: LINK_FAILURE, reads: reads(&[Group::Link]), rules: LINK },
    Section { number: "26.3.1.6", failure: PDPTES_FAILURE, reads: reads(&[Group::Registers, Group::Pdptes]), rules: PDPTES },
];

pub(super) const PE: u64 = 1 << 0;
const NW: u64 = 1 << 29;
const CD: u64 = 1 << 30;
const PG: u64 = 1 << 31;
const PAE: u64 = 1 << 5;
const PCIDE: u64 = 1 << 17;

const REGISTERS: &[Rule] = &[
    rule("guest CR0 has allowed settings", |s| {
        let (must, may) = s.processor.capabilities.cr0;
        let free = if s.has_secondary(secondary::UNRESTRICTED_GUEST) { PE | PG } else { 0 };
        let cr0 = s.get(Field::GUEST_CR0);
        must & !free & !cr0 == 0 && cr0 & !(may | free | NW | CD) == 0
    }),
    rule("guest CR0 has protection if it has paging", |s| s.get(Field::GUEST_CR0) & (PE | PG) != PG),
    rule("guest CR4 has allowed settings", |s| {
        let (must, may) = s.processor.capabilities.cr4;
        let cr4 = s.get(Field::GUEST_CR4);
        must & !cr4 == 0 && cr4 & !may == 0
    }),
    rule("guest IA32_DEBUGCTL has no reserved bits", |s| {
        !s.has_entry(entry::LOAD_DEBUG) || s.get(Field::GUEST_DEBUGCTL) & !s.processor.debugctl == 0
    }),
    rule("a guest in IA-32e mode has paging and physical-address extension", |s| {
        !s.has_entry(entry::IA32E_GUEST) || s.get(Field::GUEST_CR0) & PG != 0 && s.get(Field::GUEST_CR4) & PAE != 0
    }),
    rule("a guest outside IA-32e mode has no process-context identifiers", |s| {
        s.has_entry(entry::IA32E_GUEST) || s.get(Field::GUEST_CR4) & PCIDE == 0
    }),
    rule("guest CR3 has no bits beyond the physical-address width", |s| s.is_physical(s.get(Field::GUEST_CR3))),
    rule("guest DR7 has 32 bits", |s| !s.has_entry(entry::LOAD_DEBUG) || s.get(Field::GUEST_DR7) >> 32 == 0),
    rule("guest IA32_SYSENTER_ESP and _EIP are canonical", |s| s.are_canonical(&[Field::GUEST_SYSENTER_ESP, Field::GUEST_SYSENTER_EIP])),
    rule("guest IA32_PAT has memory types", |s| !s.has_entry(entry::LOAD_PAT) || State::is_pat(s.get(Field::GUEST_PAT))),
    rule("guest IA32_EFER has no reserved bits", |s| !s.has_entry(entry::LOAD_EFER) || s.get(Field::GUEST_EFER) & !s.processor.efer == 0),
    rule("guest IA32_EFER.LMA is the IA-32e mode control", |s| {
        !s.has_entry(entry::LOAD_EFER) || (s.get(Field::GUEST_EFER) & LMA != 0) == s.has_entry(entry::IA32E_GUEST)
    }),
    rule("guest IA32_EFER.LME is LMA if there is paging", |s| {
        let efer = s.get(Field::GUEST_EFER);
        !s.has_entry(entry::LOAD_EFER) || s.get(Field::GUEST_CR0) & PG == 0 || (efer & LMA != 0) == (efer & LME != 0)
    }),
];

const LME: u64 = 1 << 8;
const LMA: u64 = 1 << 10;

const TABLES: &[Rule] = &[
    rule("guest GDTR and IDTR bases are canonical", |s| s.are_canonical(&[Field::GUEST_GDTR_BASE, Field::GUEST_IDTR_BASE])),
    rule("guest GDTR and IDTR limits have 16 bits", |s| {
        s.get(Field::GUEST_GDTR_LIMIT) <= 0xffff && s.get(Field::GUEST_IDTR_LIMIT) <= 0xffff
    }),
];

const TF: u64 = 1 << 8;
const IF: u64 = 1 << 9;
pub(super) const VM: u64 = 1 << 17;

const POINTERS: &[Rule] = &[
    rule("guest RIP fits the mode", |s| {
        const CS_LONG: u64 = 1 << 13;
        let rip = s.get(Field::GUEST_RIP);
        if s.has_entry(entry::IA32E_GUEST) && s.get(Field::GUEST_CS_RIGHTS) & CS_LONG != 0 {
            // Not canonical, but without bits that the processor does not have: the bit below may differ.
            sign_extend(rip, s.processor.linear_bits.into()) == rip
        } else {
            rip >> 32 == 0
        }
    }),
    rule("guest RFLAGS has no reserved bits", |s| {
        const RESERVED: u64 = !0x3f_ffff | 1 << 15 | 1 << 5 | 1 << 3;
        const ONE: u64 = 1 << 1;
        s.get(Field::GUEST_RFLAGS) & (RESERVED | ONE) == ONE
    }),
    rule("guest RFLAGS.VM is 0 in IA-32e mode and without protection", |s| {
        let has_no_virtual_8086 = s.has_entry(entry::IA32E_GUEST) || s.get(Field::GUEST_CR0) & PE == 0;
        !has_no_virtual_8086 || s.get(Field::GUEST_RFLAGS) & VM == 0
    }),
    rule("guest RFLAGS.IF is 1 for an external interrupt", |s| {
        s.event().is_none_or(|event| event.kind() != Event::EXTERNAL || s.get(Field::GUEST_RFLAGS) & IF != 0)
    }),
];

const HLT: u64 = 1;
const SHUTDOWN: u64 = 2;
const WAIT_FOR_SIPI: u64 = 3;
const STI: u64 = 1 << 0;
const MOV_SS: u64 = 1 << 1;
const SMI: u64 = 1 << 2;
const NMI: u64 = 1 << 3;

const ACTIVITY: &[Rule] = &[
    rule("the activity state exists", |s| {
        let has = |bit| s.processor.capabilities.misc & bit != 0;
        match s.get(Field::GUEST_ACTIVITY) {
            0 => true,
            HLT => has(misc::HLT),
            SHUTDOWN => has(misc::SHUTDOWN),
            WAIT_FOR_SIPI => has(misc::WAIT_FOR_SIPI),
            _ => false,
        }
    }),
    rule("HLT needs privilege level 0", |s| s.get(Field::GUEST_ACTIVITY) != HLT || s.get(Field::GUEST_SS_RIGHTS) >> 5 & 3 == 0),
    rule("blocking by STI or MOV SS needs the active state", |s| {
        s.get(Field::GUEST_INTERRUPTIBILITY) & (STI | MOV_SS) == 0 || s.get(Field::GUEST_ACTIVITY) == 0
    }),
    rule("the activity state can take the event", |s| {
        const DEBUG: u32 = 1;
        const MACHINE_CHECK: u32 = 18;
        s.event().is_none_or(|event| match (s.get(Field::GUEST_ACTIVITY), event.kind(), event.vector()) {
            (HLT, Event::EXTERNAL | Event::NMI, _) | (HLT, Event::HARDWARE_EXCEPTION, DEBUG | MACHINE_CHECK) | (HLT, Event::OTHER, 0) => {
                true
            }
            (SHUTDOWN, Event::NMI, _) | (SHUTDOWN, Event::HARDWARE_EXCEPTION, MACHINE_CHECK) => true,
            (HLT | SHUTDOWN | WAIT_FOR_SIPI, ..) => false,
            _ => true,
        })
    }),
    rule("the interruptibility state has no reserved bits", |s| s.get(Field::GUEST_INTERRUPTIBILITY) <= 0xf),
    rule("blocking by STI and MOV SS exclude each other", |s| s.get(Field::GUEST_INTERRUPTIBILITY) & (STI | MOV_SS) != (STI | MOV_SS)),
    rule("blocking by STI needs RFLAGS.IF", |s| s.get(Field::GUEST_INTERRUPTIBILITY) & STI == 0 || s.get(Field::GUEST_RFLAGS) & IF != 0),
    rule("nothing blocks the external interrupt", |s| {
        let blocks = s.get(Field::GUEST_INTERRUPTIBILITY) & (STI | MOV_SS) != 0;
        s.event().is_none_or(|event| event.kind() != Event::EXTERNAL || !blocks)
    }),
    rule("MOV SS does not block the NMI", |s| {
        let blocks = s.get(Field::GUEST_INTERRUPTIBILITY) & MOV_SS != 0;
        s.event().is_none_or(|event| event.kind() != Event::NMI || !blocks)
    }),
    rule("blocking by SMI is for system-management mode", |s| s.get(Field::GUEST_INTERRUPTIBILITY) & SMI == 0),
    rule("virtual NMIs are not blocked at an NMI", |s| {
        let blocks = s.has_pin(pin::VIRTUAL_NMIS) && s.get(Field::GUEST_INTERRUPTIBILITY) & NMI != 0;
        s.event().is_none_or(|event| event.kind() != Event::NMI || !blocks)
    }),
    rule("pending debug exceptions have no reserved bits", |s| {
        // Bit 16 belongs to restricted transactional memory, which guests do not have.
        const DEFINED: u64 = 0xf | 1 << 12 | 1 << 14;
        s.get(Field::GUEST_PENDING_DEBUG) & !DEFINED == 0
    }),
    rule("a pending single step is that of RFLAGS.TF", |s| {
        const BS: u64 = 1 << 14;
        const BTF: u64 = 1 << 1;
        if s.get(Field::GUEST_INTERRUPTIBILITY) & (STI | MOV_SS) == 0 && s.get(Field::GUEST_ACTIVITY) != HLT {
            return true;
        }
        let steps = s.get(Field::GUEST_RFLAGS) & TF != 0 && s.get(Field::GUEST_DEBUGCTL) & BTF == 0;
        (s.get(Field::GUEST_PENDING_DEBUG) & BS != 0) == steps
    }),
];

const LINK: &[Rule] = &[rule("the VMCS link pointer is valid", |s| {
    let link = s.get(Field::VMCS_LINK);
    if link == u64::MAX {
        return true;
    }
    if !s.is_page(Field::VMCS_LINK) || link == s.processor.current {
        return false;
    }
    let is_shadow = if s.has_secondary(secondary::VMCS_SHADOWING) { SHADOW } else { 0 };
    let expected = u64::from(s.processor.capabilities.revision()) | is_shadow;
    s.memory.read(link).is_some_and(|word| word & 0xffff_ffff == expected)
})];

const PDPTES: &[Rule] = &[rule("PDPTEs have no reserved bits", |s| {
    const PRESENT: u64 = 1 << 0;
    const RESERVED: u64 = 0b110 | 0b1111 << 5;
    let is_pae = s.get(Field::GUEST_CR0) & PG != 0 && s.get(Field::GUEST_CR4) & PAE != 0;
    if s.has_entry(entry::IA32E_GUEST) || !is_pae {
        return true;
    }
    let fields = [Field::GUEST_PDPTE0, Field::GUEST_PDPTE1, Field::GUEST_PDPTE2, Field::GUEST_PDPTE3];
    let table = s.get(Field::GUEST_CR3) & 0xffff_ffe0;
    (0..).zip(fields).all(|(at, field)| {
        let has_ept = s.has_secondary(secondary::EPT);
        let entry = if has_ept { Some(s.get(field)) } else { s.memory.read(table + 8 * at) };
        entry.is_some_and(|entry| entry & PRESENT == 0 || entry & RESERVED == 0 && s.is_physical(entry))
    })
})];
