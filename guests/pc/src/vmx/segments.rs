//! Segments and alignment of INS and OUTS of L2, at ports that L1 leaves to it: the hypervisor checks what the processor would.

use crate::exits::VMCALL;
use crate::field::{self, secondary};
use crate::pae::{self, fresh_with_pae};
use crate::test::{Outcome, Test, is_guest, same};
use crate::vmcs::{AREA, Done, EPT, Registers, code, enable, enable_ept, fresh, get, invept, page, run, set};

pub const ALL: &[Test] = &[
    ("strings_in_expand_down_segments", expand_down),
    ("strings_of_user_mode_that_are_not_aligned", misaligned),
    ("strings_of_real_mode_ignore_types", real_mode),
];

/// The register of the hypervisor's test device, of 32 bits.
const WORD: u64 = 0xe0;
const EXCEPTION: Result<u64, Done> = Ok(0);
const PROTECTION: u64 = 0x8000_0b0d;
const ALIGNMENT: u64 = 0x8000_0b11;
const ABSENT: Outcome = Outcome::Skip("the port is the hypervisor's, or there are no unrestricted guests");

/// RDX is the port; RSI and RDI are an offset.
fn registers(offset: u64) -> Registers {
    [0, 0, WORD, 0, 0, offset, offset, 0]
}

/// The end of an expand-down segment depends on its B flag alone, whatever the size of addresses.
fn expand_down() -> Outcome {
    const EXPAND_DOWN: u64 = 0x97;
    const BIG: u64 = 1 << 14;
    const LIMIT: u64 = 0xfff;
    const HIGH: u64 = 0x1_0000;
    if !is_guest() {
        return ABSENT;
    }
    let with = |offset: u64, rights: u64| {
        fresh_with_pae(code!(".code32", "outsb", ".code64"));
        set(field::GUEST_DS_RIGHTS, rights);
        set(field::GUEST_DS_LIMIT, LIMIT);
        set(field::GUEST_DS_BASE, page(AREA).wrapping_sub(offset) & 0xffff_ffff);
        let exit = run(&mut registers(offset), false);
        (exit, if exit == EXCEPTION { get(field::EXIT_INTERRUPTION) } else { 0 })
    };
    same!(with(LIMIT + 1, EXPAND_DOWN), (VMCALL, 0), "above the limit");
    same!(with(LIMIT, EXPAND_DOWN), (EXCEPTION, PROTECTION), "at the limit");
    same!(with(HIGH, EXPAND_DOWN | BIG), (VMCALL, 0), "above 64 KiB");
    same!(with(HIGH, EXPAND_DOWN), (EXCEPTION, PROTECTION), "above 64 KiB, in a segment that ends there");
    Outcome::Pass
}

/// An alignment check of OUTS in user mode.
fn misaligned() -> Outcome {
    const USER_CODE: u64 = 0xc0fb;
    const USER_DATA: u64 = 0xc0f3;
    const AC_IOPL: u64 = 1 << 18 | 3 << 12;
    const AM: u64 = 1 << 18;
    if !is_guest() {
        return ABSENT;
    }
    let with = |offset: u64, flags: u64| {
        fresh_with_pae(code!(".code32", "outsd", ".code64"));
        pae::let_user_in();
        let fields = [
            (field::GUEST_CR0, get(field::GUEST_CR0) | AM),
            (field::GUEST_RFLAGS, 2 | flags),
            (field::GUEST_CS, get(field::GUEST_CS) | 3),
            (field::GUEST_SS, get(field::GUEST_SS) | 3),
            (field::GUEST_CS_RIGHTS, USER_CODE),
            (field::GUEST_SS_RIGHTS, USER_DATA),
            (field::GUEST_DS_RIGHTS, USER_DATA),
            (field::GUEST_ES_RIGHTS, USER_DATA),
            (field::GUEST_FS_RIGHTS, USER_DATA),
            (field::GUEST_GS_RIGHTS, USER_DATA),
        ];
        fields.into_iter().for_each(|(field, value)| set(field, value));
        let exit = run(&mut registers(page(AREA) + offset), false);
        (exit, if exit == EXCEPTION { get(field::EXIT_INTERRUPTION) } else { 0 })
    };
    same!(with(4, AC_IOPL), (VMCALL, 0), "aligned");
    same!(with(2, 3 << 12), (VMCALL, 0), "without checks");
    same!(with(2, AC_IOPL), (EXCEPTION, ALIGNMENT), "with checks");
    Outcome::Pass
}

/// In real mode INS writes to a segment whose type, of protected mode, is read-only.
fn real_mode() -> Outcome {
    const PE_PG: u64 = 1 | 1 << 31;
    const READ_ONLY: u64 = 0x91;
    const PAE: u64 = 1 << 5;
    if !is_guest() {
        return ABSENT;
    }
    let start = code!(".code16", "insb", ".code64");
    fresh(start);
    if !enable_ept() || !enable(field::SECONDARY_CONTROLS, secondary::UNRESTRICTED_GUEST) {
        return ABSENT;
    }
    invept(1, [page(EPT) | 6 | 3 << 3, 0]);
    let ia32e = u64::from(crate::field::entry::IA32E_GUEST);
    let fields = [
        (field::ENTRY_CONTROLS, get(field::ENTRY_CONTROLS) & !ia32e),
        (field::GUEST_EFER, 0),
        (field::GUEST_CR0, get(field::GUEST_CR0) & !PE_PG),
        (field::GUEST_CR4, get(field::GUEST_CR4) & !PAE),
        (field::GUEST_CS_RIGHTS, 0x9b),
        (field::GUEST_ES_LIMIT, 0xffff),
        (field::GUEST_ES_LIMIT + 2, 0xffff),
        (field::GUEST_ES_BASE, page(AREA)),
        (field::GUEST_ES_BASE + 2, start),
        (field::GUEST_ES_RIGHTS, READ_ONLY),
        (field::GUEST_SS_RIGHTS, 0x93),
        (field::GUEST_DS_RIGHTS, 0x93),
        (field::GUEST_FS_RIGHTS, 0x93),
        (field::GUEST_GS_RIGHTS, 0x93),
        (field::GUEST_RIP, 0),
        (field::EXCEPTION_BITMAP, u32::MAX.into()),
    ];
    fields.into_iter().for_each(|(field, value)| set(field, value));
    for register in [2, 3, 4, 5] {
        set(field::GUEST_ES_LIMIT + 2 * register, 0xffff);
    }
    same!(run(&mut registers(0), false), VMCALL, "the exit");
    Outcome::Pass
}
