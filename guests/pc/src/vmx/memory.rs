//! Extended page tables, VPIDs, and guests without paging.

use crate::exits::VMCALL;
use crate::field::{self, secondary};
use crate::test::{Outcome, Test, is_guest, same};
use crate::vmcs::{
    Done, EPT, FIRST, Page, VMXON, capability, code, enable, enable_ept, fresh, get, invept, page, poke, run, set, vmclear, vmxoff, vmxon,
};

pub const ALL: &[Test] = &[
    ("ept_identity", identity),
    ("ept_violations", violations),
    ("ept_misconfigurations", misconfigurations),
    ("ept_changes", changes),
    ("vpid", vpid),
    ("real_mode", real_mode),
    ("pae_without_ept", pae),
    ("twenty_starts", starts),
];

/// A large page that is otherwise unused, at 32 MiB: the tests write to it.
pub const ADDRESS: u64 = 32 << 20;
pub const INDEX: usize = 16;
pub const LARGE: u64 = 1 << 7;
pub const WRITE_BACK: u64 = 6 << 3;

fn fresh_ept(code: u64, entry: u64) -> bool {
    fresh(code);
    if !enable_ept() {
        return false;
    }
    poke(EPT + 2, INDEX, entry);
    invept(1, [page(EPT) | 6 | 3 << 3, 0]);
    true
}

const ABSENT: Outcome = Outcome::Skip("there is no EPT");

fn identity() -> Outcome {
    if !fresh_ept(code!("mov eax, [0x2000008]", "inc eax", "mov [0x2000010], eax"), ADDRESS | LARGE | WRITE_BACK | 7) {
        return ABSENT;
    }
    // SAFETY: an aligned address of RAM that the loader left free, identity-mapped and used by this test only.
    unsafe { ((ADDRESS + 8) as *mut u32).write_volatile(0x1234_5677) };
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    // SAFETY: an aligned address of RAM that the loader left free, identity-mapped and used by this test only.
    same!(unsafe { ((ADDRESS + 16) as *const u32).read_volatile() }, 0x1234_5678, "the memory");
    Outcome::Pass
}

/// Bits of the exit qualification that each processor reports.
pub const QUALIFICATION: u64 = 0x1bf;
pub const LINEAR_VALID: u64 = 1 << 7;
pub const TRANSLATION: u64 = 1 << 8;

fn violations() -> Outcome {
    let read = || code!("mov eax, [0x2000123]");
    let write = || code!("mov [0x2000123], eax");
    let fetch = || code!("mov eax, 0x2000123", "jmp rax");
    let execute_only = if capability(0x48c) & 1 != 0 { 4 } else { 7 };
    let rows = [
        (read(), 0, 1),
        (write(), 0, 2),
        (fetch(), 0, 4),
        (write(), 1, 2 | 1 << 3),
        (fetch(), 1, 4 | 1 << 3),
        (fetch(), 3, 4 | 3 << 3),
        (write(), 5, 2 | 5 << 3),
        (read(), execute_only, 1 | 4 << 3),
    ];
    for (code, rights, expected) in rows {
        if rights == 7 {
            continue;
        }
        if !fresh_ept(code, if rights == 0 { 0 } else { ADDRESS | LARGE | WRITE_BACK | rights }) {
            return ABSENT;
        }
        same!(run(&mut [0; 8], false), Ok(48), "the exit");
        same!(get(field::EXIT_QUALIFICATION) & QUALIFICATION, expected | LINEAR_VALID | TRANSLATION, "the qualification");
        same!(get(field::GUEST_PHYSICAL), ADDRESS + 0x123, "the guest-physical address");
        same!(get(field::GUEST_LINEAR), ADDRESS + 0x123, "the linear address");
        same!(get(field::VECTORING), 0, "IDT-vectoring information");
    }
    // The second table has no entry.
    fresh_ept(code!("mov eax, [0x40000000]"), ADDRESS | LARGE | WRITE_BACK | 7);
    same!(run(&mut [0; 8], false), Ok(48), "the exit without a table");
    same!(get(field::EXIT_QUALIFICATION) & QUALIFICATION, 1 | LINEAR_VALID | TRANSLATION, "its qualification");
    same!(get(field::GUEST_PHYSICAL), 0x4000_0000, "its guest-physical address");
    Outcome::Pass
}

fn misconfigurations() -> Outcome {
    // Write without read, write and execute, reserved memory types, reserved bits of a table, an address beyond the width, reserved bits
    // of a large page.
    let entries = [
        ADDRESS | LARGE | WRITE_BACK | 2,
        ADDRESS | LARGE | WRITE_BACK | 6,
        ADDRESS | LARGE | 2 << 3 | 7,
        ADDRESS | LARGE | 7 << 3 | 7,
        ADDRESS | 7 | 1 << 4,
        ADDRESS | LARGE | WRITE_BACK | 7 | 1 << 51,
        ADDRESS | LARGE | WRITE_BACK | 7 | 1 << 12,
    ];
    // Bochs 3.0 does not check the last ones.
    let count = if is_guest() { entries.len() } else { entries.len() - 1 };
    for entry in entries.into_iter().take(count) {
        if !fresh_ept(code!("mov eax, [0x2000123]"), entry) {
            return ABSENT;
        }
        same!(run(&mut [0; 8], false), Ok(49), "the exit");
        same!(get(field::GUEST_PHYSICAL), ADDRESS + 0x123, "the guest-physical address");
    }
    Outcome::Pass
}

fn changes() -> Outcome {
    let start = code!("mov eax, [0x2000000]");
    if !fresh_ept(start, ADDRESS | LARGE | WRITE_BACK | 7) {
        return ABSENT;
    }
    let mut registers = [0; 8];
    // SAFETY: an aligned address of RAM that the loader left free, identity-mapped and used by this test only.
    unsafe { (ADDRESS as *mut u32).write_volatile(1) };
    // SAFETY: an aligned address of RAM that the loader left free, identity-mapped and used by this test only.
    unsafe { ((ADDRESS + (2 << 20)) as *mut u32).write_volatile(2) };
    same!(run(&mut registers, false), VMCALL, "the exit");
    same!(registers[0], 1, "the memory");
    // Another page; then none; then a table of small ones.
    poke(EPT + 2, INDEX, (ADDRESS + (2 << 20)) | LARGE | WRITE_BACK | 7);
    invept(1, [page(EPT) | 6 | 3 << 3, 0]);
    set(field::GUEST_RIP, start);
    same!(run(&mut registers, true), VMCALL, "the exit");
    same!(registers[0], 2, "the memory after a change");
    poke(EPT + 2, INDEX, 0);
    invept(2, [0, 0]);
    set(field::GUEST_RIP, start);
    same!(run(&mut registers, true), Ok(48), "the exit without the page");
    // An entry that becomes present needs no invalidation.
    poke(EPT + 3, 0, ADDRESS | WRITE_BACK | 7);
    poke(EPT + 2, INDEX, page(EPT + 3) | 7);
    same!(run(&mut registers, true), VMCALL, "the exit with a small page");
    same!(registers[0], 1, "the memory of a small page");
    Outcome::Pass
}

fn vpid() -> Outcome {
    let start = code!("nop");
    fresh(start);
    if !enable(field::SECONDARY_CONTROLS, secondary::VPID) {
        return Outcome::Skip("there are no VPIDs");
    }
    for (n, vpid) in [1, 2, 0xffff, 1].into_iter().enumerate() {
        set(field::VPID, vpid);
        set(field::GUEST_RIP, start);
        same!(run(&mut [0; 8], n != 0), VMCALL, "the exit");
    }
    set(field::VPID, 0);
    same!(run(&mut [0; 8], true), Err(Done::Fail(7)), "VPID 0");
    Outcome::Pass
}

fn real_mode() -> Outcome {
    /// `mov ax, 0x1234; mov ds, ax; vmcall`.
    const CODE: u64 = 0xc101_0fd8_8e12_34b8;
    const PG_PE: u64 = 1 << 31 | 1;
    const PLACE: usize = 15;
    fresh(code!("nop"));
    if !enable_ept() || !enable(field::SECONDARY_CONTROLS, secondary::UNRESTRICTED_GUEST) {
        return Outcome::Skip("there are no unrestricted guests");
    }
    poke(PLACE, 0, CODE);
    poke(PLACE, 1, 0);
    set(field::ENTRY_CONTROLS, get(field::ENTRY_CONTROLS) & !u64::from(field::entry::IA32E_GUEST));
    set(field::GUEST_EFER, 0);
    set(field::GUEST_CR0, get(field::GUEST_CR0) & !PG_PE);
    for number in 0..6 {
        set(field::GUEST_ES_LIMIT + 2 * number, 0xffff);
        set(field::GUEST_ES_RIGHTS + 2 * number, 0x93);
    }
    set(field::GUEST_DS_BASE - 4, page(PLACE));
    set(field::GUEST_RIP, 0);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(get(field::GUEST_RIP), 5, "RIP");
    same!((get(field::GUEST_DS), get(field::GUEST_DS_BASE)), (0x1234, 0x1_2340), "DS");
    same!(get(field::GUEST_CR0) & PG_PE, 0, "CR0");
    Outcome::Pass
}

/// 32-bit code with PAE paging: an entry without EPT loads the page-directory pointers from memory.
fn pae() -> Outcome {
    const POINTERS: usize = 11;
    const DIRECTORY: usize = 12;
    const PRESENT_WRITABLE_LARGE: u64 = 0x83;
    let with = |pointer| {
        fresh(code!("nop"));
        for word in 0..512 {
            poke(DIRECTORY, word, (word as u64) << 21 | PRESENT_WRITABLE_LARGE);
        }
        for word in 0..4 {
            poke(POINTERS, word, 0);
        }
        poke(POINTERS, 0, pointer);
        set(field::ENTRY_CONTROLS, get(field::ENTRY_CONTROLS) & !u64::from(field::entry::IA32E_GUEST));
        set(field::GUEST_EFER, 0);
        set(field::GUEST_CS_RIGHTS, 0xc09b);
        set(field::GUEST_CR3, page(POINTERS));
        run(&mut [0; 8], false)
    };
    same!(with(page(DIRECTORY) | 1), VMCALL, "the exit");
    // Bit 1 is reserved.
    same!(with(page(DIRECTORY) | 3), Ok(0x8000_0021), "a reserved bit");
    same!(get(field::EXIT_QUALIFICATION), 2, "the qualification");
    Outcome::Pass
}

/// L2s with tables of their own, each in VMX operation anew.
fn starts() -> Outcome {
    for _ in 0..20 {
        if !fresh_ept(code!("mov [0x2000000], eax"), ADDRESS | LARGE | WRITE_BACK | 7) {
            return ABSENT;
        }
        same!(run(&mut [0; 8], false), VMCALL, "the exit");
        vmclear(page(FIRST));
        same!((vmxoff(), vmxon(page(VMXON))), (Done::Succeed, Done::Succeed), "VMXOFF and VMXON");
    }
    Outcome::Pass
}

const _: () = assert!(size_of::<Page>() == 4096);
