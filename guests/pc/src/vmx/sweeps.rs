//! Rules of a VM entry, bit by bit: each value of a field that the Intel SDM refuses ("Checks on VMX Controls and Host-State Area",
//! "Checks on the Guest State Area").

use pc::console::println;

use crate::checks::{CONTROLS, Expected, GUEST, HOST, outcome};
use crate::field::{self, entry, exit, primary, secondary};
use crate::test::{Outcome, Test, is_guest};
use crate::vmcs::{allowed, capability, code, enable, enable_ept, fresh, get, may, misc, page, set};

pub const ALL: &[Test] = &[
    ("sweep_of_controls", controls),
    ("sweep_of_addresses", addresses),
    ("sweep_of_events", events),
    ("sweep_of_host_state", host),
    ("sweep_of_guest_registers", guest_registers),
    ("sweep_of_guest_segments", guest_segments),
    ("sweep_of_guest_activity", guest_activity),
];

fn begin() {
    let start = code!("nop");
    fresh(start);
    // An event that should not be injected ends here.
    crate::events::resume_at(start);
}

/// Whether the entry fails as expected with each of these values in a field, which has its own value before and after.
fn refuses(field: u64, expected: Expected, values: impl Iterator<Item = u64>) -> bool {
    let own = get(field);
    for value in values {
        set(field, value);
        let found = outcome();
        if found != expected {
            println!("field {field:#x}, value {value:#x}: {found:?}, not {expected:?}");
            begin();
            return false;
        }
        set(field, own);
    }
    true
}

/// Changes of single bits.
fn toggles(field: u64, bits: impl Iterator<Item = u32>) -> impl Iterator<Item = u64> {
    let own = get(field);
    bits.map(move |bit| own ^ 1 << bit)
}

/// Fails unless a field refuses each change of these bits.
macro_rules! bits {
    ($field:expr, $expected:expr, $bits:expr) => {
        if !refuses($field, $expected, toggles($field, $bits)) {
            return Outcome::Fail("an entry");
        }
    };
}

/// As [`bits`], for values.
macro_rules! values {
    ($field:expr, $expected:expr, $values:expr) => {
        if !refuses($field, $expected, $values) {
            return Outcome::Fail("an entry");
        }
    };
}

fn physical_bits() -> u32 {
    core::arch::x86_64::__cpuid_count(0x8000_0008, 0).eax & 0xff
}

fn linear_bits() -> u32 {
    core::arch::x86_64::__cpuid_count(0x8000_0008, 0).eax >> 8 & 0xff
}

fn controls() -> Outcome {
    begin();
    let fields = [field::PIN_CONTROLS, field::PRIMARY_CONTROLS, field::EXIT_CONTROLS, field::ENTRY_CONTROLS, field::SECONDARY_CONTROLS];
    for field in fields {
        if field == field::SECONDARY_CONTROLS && !enable(field::PRIMARY_CONTROLS, primary::SECONDARY) {
            break;
        }
        let (must, can) = allowed(field);
        bits!(field, CONTROLS, (0..32).filter(|bit| (must | !can) >> bit & 1 != 0));
    }
    values!(field::CR3_TARGETS, CONTROLS, (misc() >> 16 & 0x1ff) + 1..(misc() >> 16 & 0x1ff) + 8);
    Outcome::Pass
}

fn addresses() -> Outcome {
    let pages = [
        (field::IO_BITMAP_A, field::PRIMARY_CONTROLS, primary::IO_BITMAPS),
        (field::IO_BITMAP_B, field::PRIMARY_CONTROLS, primary::IO_BITMAPS),
        (field::MSR_BITMAP, field::PRIMARY_CONTROLS, primary::MSR_BITMAPS),
        (field::VIRTUAL_APIC, field::PRIMARY_CONTROLS, primary::TPR_SHADOW),
        (field::APIC_ACCESS, field::SECONDARY_CONTROLS, secondary::APIC_ACCESSES),
    ];
    for (field, control, bit) in pages {
        begin();
        set(field, page(12));
        if enable(control, bit) {
            bits!(field, CONTROLS, (0..12).chain(physical_bits()..64));
        }
    }
    for (count, area) in [
        (field::EXIT_MSR_STORES, field::EXIT_MSR_STORE_AREA),
        (field::EXIT_MSR_LOADS, field::EXIT_MSR_LOAD_AREA),
        (field::ENTRY_MSR_LOADS, field::ENTRY_MSR_LOAD_AREA),
    ] {
        begin();
        set(count, 1);
        set(area, page(12));
        bits!(area, CONTROLS, (0..4).chain(physical_bits()..64));
    }
    begin();
    if enable_ept() {
        bits!(field::EPT_POINTER, CONTROLS, (7..12).chain(physical_bits()..64));
        let own = get(field::EPT_POINTER) & !0x3f;
        values!(field::EPT_POINTER, CONTROLS, [1, 2, 3, 4, 5, 7].into_iter().map(|kind| own | 3 << 3 | kind));
        values!(field::EPT_POINTER, CONTROLS, [0, 1, 2, 5, 6, 7].into_iter().map(|length| own | length << 3 | 6));
    }
    Outcome::Pass
}

fn events() -> Outcome {
    const VALID: u64 = 1 << 31;
    const CODE: u64 = 1 << 11;
    const CODES: u64 = 1 << 8 | 0x1f << 10 | 1 << 17;
    begin();
    let field = field::ENTRY_INTERRUPTION;
    values!(field, CONTROLS, (12..31).map(|bit| VALID | 0x306 | 1 << bit));
    values!(field, CONTROLS, (0..256).step_by(5).map(|vector| VALID | 1 << 8 | vector));
    values!(field, CONTROLS, (3..256).step_by(5).map(|vector| VALID | 2 << 8 | vector));
    values!(field, CONTROLS, (32..256).step_by(5).map(|vector| VALID | 3 << 8 | vector));
    values!(field, CONTROLS, (1..256).step_by(5).map(|vector| VALID | 7 << 8 | vector));
    if capability(0x480) >> 56 & 1 == 0 {
        // Exceptions with an error code that they do not have, and without the one that they have. Vector 21 depends on CET.
        values!(
            field,
            CONTROLS,
            (0..32).filter(|&vector| vector != 21).map(|vector| VALID | 3 << 8 | vector | if CODES >> vector & 1 == 0 { CODE } else { 0 })
        );
    }
    values!(field, CONTROLS, [0, 2, 4, 5, 6].into_iter().map(|kind| VALID | CODE | kind << 8 | 2));
    for kind in 4..7 {
        set(field, VALID | kind << 8 | 3);
        values!(field::ENTRY_LENGTH, CONTROLS, (16..64).chain((6..32).map(|bit| 1 << bit)));
        if misc() & 1 << 30 == 0 {
            values!(field::ENTRY_LENGTH, CONTROLS, 0..1);
        }
    }
    set(field, VALID | 0xb0d);
    bits!(field::ENTRY_ERROR_CODE, CONTROLS, 16..32);
    Outcome::Pass
}

/// Bits of CR0 or CR4 that must keep their values.
fn fixed(zeros: u32, ones: u32) -> impl Fn(&u32) -> bool {
    let (must, can) = (capability(zeros), capability(ones));
    move |bit| (must | !can) >> bit & 1 != 0
}

/// Memory types that do not exist, in each entry of a PAT.
fn wrong_types(own: u64) -> impl Iterator<Item = u64> {
    (0..8).flat_map(move |at| [2, 3, 8, 0x80].into_iter().map(move |kind| own & !(0xff << (8 * at)) | kind << (8 * at)))
}

/// Bits of IA32_EFER other than SCE, LME, LMA and NXE.
fn reserved_in_efer() -> impl Iterator<Item = u32> {
    (0..64).filter(|bit| 0xd01_u64 >> bit & 1 == 0)
}

fn host() -> Outcome {
    begin();
    bits!(field::HOST_CR0, HOST, (0..64).filter(fixed(0x486, 0x487)));
    bits!(field::HOST_CR4, HOST, (0..64).filter(fixed(0x488, 0x489)));
    bits!(field::HOST_CR3, HOST, physical_bits()..63);
    for field in [0x6c06, 0x6c08, 0x6c0a, field::HOST_GDTR_BASE, field::HOST_IDTR_BASE, field::HOST_SYSENTER_ESP, field::HOST_SYSENTER_EIP]
    {
        bits!(field, HOST, linear_bits() - 1..64);
    }
    for field in (0..7).map(|number| field::HOST_ES + 2 * number) {
        bits!(field, HOST, 0..3);
    }
    if may(field::EXIT_CONTROLS, exit::LOAD_EFER) {
        bits!(field::HOST_EFER, HOST, reserved_in_efer().chain([8, 10]));
    }
    if may(field::EXIT_CONTROLS, exit::LOAD_PAT) {
        values!(field::HOST_PAT, HOST, wrong_types(get(field::HOST_PAT)));
    }
    bits!(field::HOST_RIP, HOST, linear_bits() - 1..64);
    Outcome::Pass
}

fn guest_registers() -> Outcome {
    begin();
    let is_fixed = fixed(0x486, 0x487);
    // NW and CD are not checked.
    bits!(field::GUEST_CR0, GUEST, (0..64).filter(|bit| !matches!(bit, 29 | 30) && is_fixed(bit)));
    bits!(field::GUEST_CR4, GUEST, (0..64).filter(fixed(0x488, 0x489)));
    bits!(field::GUEST_CR3, GUEST, physical_bits()..64);
    for field in [field::GUEST_SYSENTER_ESP, field::GUEST_SYSENTER_ESP + 2, field::GUEST_GDTR_BASE, field::GUEST_IDTR_BASE] {
        bits!(field, GUEST, linear_bits() - 1..64);
    }
    for field in [field::GUEST_GDTR_LIMIT, field::GUEST_IDTR_LIMIT] {
        bits!(field, GUEST, 16..32);
    }
    if enable(field::ENTRY_CONTROLS, entry::LOAD_DEBUG) {
        bits!(field::GUEST_DR7, GUEST, 32..64);
    }
    if may(field::ENTRY_CONTROLS, entry::LOAD_EFER) {
        bits!(field::GUEST_EFER, GUEST, reserved_in_efer().chain([8, 10]));
    }
    if may(field::ENTRY_CONTROLS, entry::LOAD_PAT) {
        values!(field::GUEST_PAT, GUEST, wrong_types(get(field::GUEST_PAT)));
    }
    if is_guest() {
        // Bochs 3.0 does not look at all of them.
        bits!(field::GUEST_RIP, GUEST, linear_bits()..64);
    }
    bits!(field::GUEST_RFLAGS, GUEST, [1, 3, 5, 15, 17].into_iter().chain(22..64));
    Outcome::Pass
}

fn guest_segments() -> Outcome {
    const CS: u64 = 1;
    const LDTR: u64 = 6;
    const TR: u64 = 7;
    begin();
    set(field::GUEST_LDTR, 0x50);
    set(field::GUEST_LDTR_RIGHTS, 0x82);
    for number in 0..8 {
        let (base, rights) = (field::GUEST_ES_BASE + 2 * number, field::GUEST_ES_RIGHTS + 2 * number);
        match number {
            // FS, GS, LDTR, TR; then the others.
            4.. => bits!(base, GUEST, linear_bits() - 1..64),
            _ => bits!(base, GUEST, 32..64),
        }
        bits!(rights, GUEST, (8..12).chain(17..32));
        // Present, and code or data; a system segment.
        bits!(rights, GUEST, [4, 7].into_iter());
        if number == TR || number == CS {
            values!(rights, GUEST, (0..16).filter(|kind| !usable(number, *kind)).map(|kind| get(rights) & !0xf | kind));
        }
        if number >= LDTR {
            bits!(field::GUEST_ES + 2 * number, GUEST, 2..3);
        }
    }
    bits!(field::GUEST_TR_RIGHTS, GUEST, 16..17);
    Outcome::Pass
}

/// Whether CS may have a type with the SS of these tests, whose DPL is 0, or TR in IA-32e mode.
fn usable(number: u64, kind: u64) -> bool {
    if number == 7 { kind == 11 } else { matches!(kind, 9 | 11 | 13 | 15) }
}

fn guest_activity() -> Outcome {
    begin();
    bits!(field::GUEST_ACTIVITY, GUEST, 2..32);
    values!(field::GUEST_ACTIVITY, GUEST, (1..4).filter(|state| misc() >> (5 + state) & 1 == 0));
    // SMI, and reserved ones.
    bits!(field::GUEST_INTERRUPTIBILITY, GUEST, 2..3);
    bits!(field::GUEST_INTERRUPTIBILITY, GUEST, 4..32);
    // Bit 16 depends on RTM. Bochs 3.0 does not look at the upper half.
    let last = if is_guest() { 64 } else { 32 };
    bits!(field::GUEST_PENDING_DEBUG, GUEST, (4..12).chain([13, 15]).chain(17..last));
    values!(field::VMCS_LINK, Expected::Exits(4), (0..12).chain(physical_bits()..64).map(|bit| page(2) ^ 1 << bit));
    Outcome::Pass
}
