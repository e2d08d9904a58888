//! Checks on guest segment registers (SDM, 26.3.1.2).

use super::guest::{PE, VM};
use super::rule::{CONTROLS, EntryFailure, Rule, Section, State, rule};
use crate::controls::{entry, secondary};
use crate::field::Field;
use crate::group::{Group, Groups};

pub(super) const SECTIONS: &[Section] = &[Section {
    number: "26.3.1.2",
    failure: EntryFailure::GuestState(0),
    // RFLAGS.VM and CR0.PE.
    reads: CONTROLS.union(Groups::of(&[Group::Segments, Group::Flags, Group::Registers])),
    rules: RULES,
}];

/// A segment register.
#[derive(Clone, Copy)]
struct Segment {
    selector: u64,
    base: u64,
    limit: u64,
    rights: u64,
}

impl Segment {
    const fn is_usable(self) -> bool {
        self.rights & 1 << 16 == 0
    }

    const fn kind(self) -> u64 {
        self.rights & 0xf
    }

    const fn is_code_or_data(self) -> bool {
        self.rights & 1 << 4 != 0
    }

    const fn dpl(self) -> u64 {
        self.rights >> 5 & 3
    }

    const fn is_present(self) -> bool {
        self.rights & 1 << 7 != 0
    }

    const fn has_reserved(self) -> bool {
        self.rights & (0xf << 8 | 0xfffe_0000) != 0
    }

    /// Whether the granularity fits the limit.
    const fn has_valid_granularity(self) -> bool {
        let is_in_pages = self.rights & 1 << 15 != 0;
        if is_in_pages { self.limit & 0xfff == 0xfff } else { self.limit >> 20 == 0 }
    }

    const fn rpl(self) -> u64 {
        self.selector & 3
    }

    const fn is_local(self) -> bool {
        self.selector & 1 << 2 != 0
    }
}

const ES: u32 = 0;
const CS: u32 = 1;
const SS: u32 = 2;
const DS: u32 = 3;
const FS: u32 = 4;
const GS: u32 = 5;
const LDTR: u32 = 6;
const TR: u32 = 7;

/// Accessed, writable data, expanding up.
const DATA: u64 = 3;

impl State<'_> {
    /// The segment registers' fields are in one order, with adjacent encodings.
    fn segment(&self, number: u32) -> Segment {
        let get = |first: Field| self.get(Field(first.0 + 2 * number));
        Segment {
            selector: get(Field::GUEST_ES),
            base: get(Field::GUEST_ES_BASE),
            limit: get(Field::GUEST_ES_LIMIT),
            rights: get(Field::GUEST_ES_RIGHTS),
        }
    }

    fn is_virtual_8086(&self) -> bool {
        self.get(Field::GUEST_RFLAGS) & VM != 0
    }

    fn is_unrestricted(&self) -> bool {
        self.has_secondary(secondary::UNRESTRICTED_GUEST)
    }

    /// Whether a condition holds for these registers; those other than CS only if they are usable.
    fn all(&self, registers: &[u32], holds: impl Fn(Segment) -> bool) -> bool {
        registers.iter().all(|&number| {
            let segment = self.segment(number);
            number != CS && !segment.is_usable() || holds(segment)
        })
    }
}

const CODE_AND_DATA: &[u32] = &[CS, SS, DS, ES, FS, GS];

const RULES: &[Rule] = &[
    rule("TR is in the GDT", |s| !s.segment(TR).is_local()),
    rule("LDTR is in the GDT", |s| s.all(&[LDTR], |ldtr| !ldtr.is_local())),
    rule("SS.RPL is CS.RPL", |s| s.is_virtual_8086() || s.is_unrestricted() || s.segment(SS).rpl() == s.segment(CS).rpl()),
    rule("bases in virtual-8086 mode are 16 times the selectors", |s| {
        !s.is_virtual_8086() || CODE_AND_DATA.iter().all(|&number| s.segment(number).base == s.segment(number).selector << 4)
    }),
    rule("bases of TR, FS and GS are canonical", |s| [TR, FS, GS].iter().all(|&number| s.is_canonical(s.segment(number).base))),
    rule("LDTR's base is canonical", |s| s.all(&[LDTR], |ldtr| s.is_canonical(ldtr.base))),
    rule("bases of CS, SS, DS and ES have 32 bits", |s| s.all(&[CS, SS, DS, ES], |segment| segment.base >> 32 == 0)),
    rule("limits in virtual-8086 mode are FFFFH", |s| {
        !s.is_virtual_8086() || CODE_AND_DATA.iter().all(|&number| s.segment(number).limit == 0xffff)
    }),
    rule("access rights in virtual-8086 mode are F3H", |s| {
        !s.is_virtual_8086() || CODE_AND_DATA.iter().all(|&number| s.segment(number).rights == 0xf3)
    }),
    rule("CS is accessed code", |s| {
        let kind = s.segment(CS).kind();
        s.is_virtual_8086() || matches!(kind, 9 | 11 | 13 | 15) || kind == DATA && s.is_unrestricted()
    }),
    rule("SS is accessed, writable data", |s| s.all(&[SS], |ss| matches!(ss.kind(), 3 | 7))),
    rule("DS, ES, FS and GS are accessed, and readable if code", |s| {
        s.all(&[DS, ES, FS, GS], |segment| segment.kind() & 1 != 0 && segment.kind() & 0b1010 != 0b1000)
    }),
    rule("CS, SS, DS, ES, FS and GS are code or data", |s| s.all(CODE_AND_DATA, Segment::is_code_or_data)),
    rule("CS.DPL fits SS.DPL", |s| {
        let (cs, ss) = (s.segment(CS), s.segment(SS));
        s.is_virtual_8086()
            || match cs.kind() {
                DATA => cs.dpl() == 0,
                9 | 11 => cs.dpl() == ss.dpl(),
                _ => cs.dpl() <= ss.dpl(),
            }
    }),
    rule("SS.DPL is SS.RPL", |s| s.is_virtual_8086() || s.is_unrestricted() || s.segment(SS).dpl() == s.segment(SS).rpl()),
    rule("SS.DPL is 0 without protection", |s| {
        let is_real = s.segment(CS).kind() == DATA || s.get(Field::GUEST_CR0) & PE == 0;
        s.is_virtual_8086() || !is_real || s.segment(SS).dpl() == 0
    }),
    rule("DPL of DS, ES, FS and GS is at least RPL", |s| {
        let is_exempt = s.is_virtual_8086() || s.is_unrestricted();
        is_exempt || s.all(&[DS, ES, FS, GS], |segment| segment.kind() > 11 || segment.dpl() >= segment.rpl())
    }),
    rule("CS, SS, DS, ES, FS and GS are present", |s| s.all(CODE_AND_DATA, Segment::is_present)),
    rule("CS, SS, DS, ES, FS and GS have no reserved bits", |s| s.all(CODE_AND_DATA, |segment| !segment.has_reserved())),
    rule("64-bit code has D/B 0", |s| {
        const LONG: u64 = 1 << 13;
        const BIG: u64 = 1 << 14;
        !s.has_entry(entry::IA32E_GUEST) || s.segment(CS).rights & (LONG | BIG) != (LONG | BIG)
    }),
    rule("limits of CS, SS, DS, ES, FS and GS fit the granularity", |s| s.all(CODE_AND_DATA, Segment::has_valid_granularity)),
    rule("TR is a busy TSS", |s| matches!((s.segment(TR).kind(), s.has_entry(entry::IA32E_GUEST)), (11, _) | (3, false))),
    rule("TR is a system segment", |s| !s.segment(TR).is_code_or_data()),
    rule("TR is present", |s| s.segment(TR).is_present()),
    rule("TR has no reserved bits", |s| !s.segment(TR).has_reserved()),
    rule("TR's limit fits the granularity", |s| s.segment(TR).has_valid_granularity()),
    rule("TR is usable", |s| s.segment(TR).is_usable()),
    rule("LDTR is an LDT", |s| s.all(&[LDTR], |ldtr| ldtr.kind() == 2)),
    rule("LDTR is a system segment", |s| s.all(&[LDTR], |ldtr| !ldtr.is_code_or_data())),
    rule("LDTR is present", |s| s.all(&[LDTR], Segment::is_present)),
    rule("LDTR has no reserved bits", |s| s.all(&[LDTR], |ldtr| !ldtr.has_reserved())),
    rule("LDTR's limit fits the granularity", |s| s.all(&[LDTR], Segment::has_valid_granularity)),
];
