//! Checks on host state (SDM, 26.2.2 to 26.2.4).

use super::rule::{CONTROLS, EntryFailure, Rule, Section, State, rule};
use crate::controls::{entry, exit};
use crate::field::Field;
use crate::group::{Group, Groups};
use crate::result::InstructionError;

const FAILURE: EntryFailure = EntryFailure::Instruction(InstructionError::EntryHostState);
const READS: Groups = CONTROLS.union(Group::Host.alone());

pub(super) const SECTIONS: &[Section] = &[
    Section { number: "26.2.2", failure: FAILURE, reads: READS, rules: REGISTERS },
    Section { number: "26.2.3", failure: FAILURE, reads: READS, rules: SEGMENTS },
    Section { number: "26.2.4", failure: FAILURE, reads: READS, rules: ADDRESS_SPACE },
];

const SELECTORS: &[Field] =
    &[Field::HOST_CS, Field::HOST_SS, Field::HOST_DS, Field::HOST_ES, Field::HOST_FS, Field::HOST_GS, Field::HOST_TR];
const BASES: &[Field] = &[Field::HOST_FS_BASE, Field::HOST_GS_BASE, Field::HOST_GDTR_BASE, Field::HOST_IDTR_BASE, Field::HOST_TR_BASE];

const REGISTERS: &[Rule] = &[
    rule("host CR0 has allowed settings", |s| {
        let (must, may) = s.processor.capabilities.cr0;
        let cr0 = s.get(Field::HOST_CR0);
        must & !cr0 == 0 && cr0 & !may == 0
    }),
    rule("host CR4 has allowed settings", |s| {
        let (must, may) = s.processor.capabilities.cr4;
        let cr4 = s.get(Field::HOST_CR4);
        must & !cr4 == 0 && cr4 & !may == 0
    }),
    rule("host CR3 has no bits beyond the physical-address width", |s| s.is_physical(s.get(Field::HOST_CR3))),
    rule("host IA32_SYSENTER_ESP and _EIP are canonical", |s| s.are_canonical(&[Field::HOST_SYSENTER_ESP, Field::HOST_SYSENTER_EIP])),
    rule("host IA32_PAT has memory types", |s| !s.has_exit(exit::LOAD_PAT) || State::is_pat(s.get(Field::HOST_PAT))),
    rule("host IA32_EFER has no reserved bits", |s| !s.has_exit(exit::LOAD_EFER) || s.get(Field::HOST_EFER) & !s.processor.efer == 0),
    rule("host IA32_EFER has LMA and LME as the host address-space size", |s| {
        const LME_LMA: u64 = 1 << 8 | 1 << 10;
        let expected = if s.has_exit(exit::HOST_64) { LME_LMA } else { 0 };
        !s.has_exit(exit::LOAD_EFER) || s.get(Field::HOST_EFER) & LME_LMA == expected
    }),
];

const SEGMENTS: &[Rule] = &[
    rule("host selectors have RPL 0 and TI 0", |s| SELECTORS.iter().all(|&selector| s.get(selector) & 7 == 0)),
    rule("host CS is not 0", |s| s.get(Field::HOST_CS) != 0),
    rule("host TR is not 0", |s| s.get(Field::HOST_TR) != 0),
    rule("host SS is not 0 outside 64-bit mode", |s| s.has_exit(exit::HOST_64) || s.get(Field::HOST_SS) != 0),
    rule("host bases are canonical", |s| s.are_canonical(BASES)),
];

const PAE: u64 = 1 << 5;
const PCIDE: u64 = 1 << 17;

const ADDRESS_SPACE: &[Rule] = &[
    rule("outside IA-32e mode, the guest and the host are outside it", |s| {
        s.processor.is_long || !s.has_entry(entry::IA32E_GUEST) && !s.has_exit(exit::HOST_64)
    }),
    rule("in IA-32e mode, the host is in 64-bit mode", |s| !s.processor.is_long || s.has_exit(exit::HOST_64)),
    // These two imply that a 32-bit host has no guest in IA-32e mode.
    rule("a 32-bit host has no process-context identifiers", |s| s.has_exit(exit::HOST_64) || s.get(Field::HOST_CR4) & PCIDE == 0),
    rule("a 32-bit host's RIP has 32 bits", |s| s.has_exit(exit::HOST_64) || s.get(Field::HOST_RIP) >> 32 == 0),
    rule("a 64-bit host has physical-address extension", |s| !s.has_exit(exit::HOST_64) || s.get(Field::HOST_CR4) & PAE != 0),
    rule("a 64-bit host's RIP is canonical", |s| !s.has_exit(exit::HOST_64) || s.is_canonical(s.get(Field::HOST_RIP))),
];
