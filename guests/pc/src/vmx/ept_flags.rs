//! Accessed and dirty flags of extended page tables.

use core::arch::asm;

use crate::exits::VMCALL;
use crate::field;
use crate::memory::{ADDRESS, INDEX, LARGE, LINEAR_VALID, QUALIFICATION, TRANSLATION, WRITE_BACK};
use crate::test::{Outcome, Test, is_guest, same};
use crate::vmcs::{EPT, capability, code, enable_ept, fresh, get, invept, page, poke, run, set};

pub const ALL: &[Test] = &[
    ("ept_accessed_and_dirty", both),
    ("ept_flags_of_small_pages", small_pages),
    ("ept_flags_of_paging_structures", paging_structures),
    ("ept_flags_by_ins", string_input),
    ("ept_flags_that_are_not_enabled", not_enabled),
];

const ENABLED: u64 = 1 << 6;
const ACCESSED: u64 = 1;
const DIRTY: u64 = 2;
const ABSENT: Outcome = Outcome::Skip("there are no accessed and dirty flags");

/// A fresh VMCS with flags enabled and an entry for the tests' page. Returns whether there are flags.
fn with_flags(code: u64, entry: u64) -> bool {
    const CAPABILITY: u64 = 1 << 21;
    fresh(code);
    if !enable_ept() || capability(0x48c) & CAPABILITY == 0 {
        return false;
    }
    set(field::EPT_POINTER, get(field::EPT_POINTER) | ENABLED);
    poke(EPT + 2, INDEX, entry);
    invalidate();
    true
}

fn invalidate() {
    invept(1, [get(field::EPT_POINTER), 0]);
}

/// The flags of an entry.
fn flags(table: usize, index: usize) -> u64 {
    // SAFETY: the entry is one of the tests'.
    unsafe { (page(table) as *const u64).add(index % 512).read_volatile() >> 8 & 3 }
}

fn both() -> Outcome {
    let read = code!("mov eax, [0x2000000]");
    let write = code!("mov [0x2000000], eax");
    let entry = ADDRESS | LARGE | WRITE_BACK | 7;
    if !with_flags(read, entry) {
        return ABSENT;
    }
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(flags(EPT + 2, INDEX), ACCESSED, "after a read");
    same!((flags(EPT, 0), flags(EPT + 1, 0)), (ACCESSED, ACCESSED), "of tables");
    same!(flags(EPT + 2, INDEX + 1), 0, "of a page that is not accessed");
    // A write through a translation that was cached.
    set(field::GUEST_RIP, write);
    same!(run(&mut [0; 8], true), VMCALL, "the exit");
    same!(flags(EPT + 2, INDEX), ACCESSED | DIRTY, "after a write");
    same!((flags(EPT, 0), flags(EPT + 1, 0)), (ACCESSED, ACCESSED), "of tables after a write");
    // Flags that are cleared are set again.
    poke(EPT + 2, INDEX, entry);
    invalidate();
    set(field::GUEST_RIP, read);
    same!(run(&mut [0; 8], true), VMCALL, "the exit");
    same!(flags(EPT + 2, INDEX), ACCESSED, "after they were cleared");
    set(field::GUEST_RIP, write);
    same!(run(&mut [0; 8], true), VMCALL, "the exit");
    same!(flags(EPT + 2, INDEX), ACCESSED | DIRTY, "after another write");
    // A page that is only read keeps its flag.
    set(field::GUEST_RIP, read);
    same!(run(&mut [0; 8], true), VMCALL, "the exit");
    same!(flags(EPT + 2, INDEX), ACCESSED | DIRTY, "after a read of a dirty page");
    // A write that is refused.
    poke(EPT + 2, INDEX, ADDRESS | LARGE | WRITE_BACK | 5);
    invalidate();
    set(field::GUEST_RIP, write);
    same!(run(&mut [0; 8], true), Ok(48), "a violation");
    same!(flags(EPT + 2, INDEX) & DIRTY, 0, "after a violation");
    same!(get(field::EXIT_QUALIFICATION) & QUALIFICATION, 2 | 5 << 3 | LINEAR_VALID | TRANSLATION, "the qualification");
    Outcome::Pass
}

fn small_pages() -> Outcome {
    let start = code!("mov eax, [0x2000000]", "mov [0x2001000], eax");
    for word in 0..3 {
        poke(EPT + 3, word, (ADDRESS + (word as u64) * 0x1000) | WRITE_BACK | 7);
    }
    if !with_flags(start, page(EPT + 3) | 7) {
        return ABSENT;
    }
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(flags(EPT + 2, INDEX), ACCESSED, "of the table");
    same!((flags(EPT + 3, 0), flags(EPT + 3, 1), flags(EPT + 3, 2)), (ACCESSED, ACCESSED | DIRTY, 0), "of pages");
    Outcome::Pass
}

/// Accesses to L2's own tables are writes.
fn paging_structures() -> Outcome {
    let start = code!("nop");
    let with = |rights| with_flags(start, ADDRESS | LARGE | WRITE_BACK | rights);
    if !with(7) {
        return ABSENT;
    }
    let cr3: u64;
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr3", out(reg) cr3) };
    // The root of L2's tables, in the tests' page.
    for word in 0..512 {
        // SAFETY: L1's tables are where they are, and the page is otherwise unused.
        unsafe { (ADDRESS as *mut u64).add(word).write_volatile(((cr3 & !0xfff) as *const u64).add(word).read_volatile()) };
    }
    set(field::GUEST_CR3, ADDRESS);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(flags(EPT + 2, INDEX), ACCESSED | DIRTY, "of a page with a table");
    with(5);
    set(field::GUEST_CR3, ADDRESS);
    same!(run(&mut [0; 8], false), Ok(48), "the exit if it can't be written");
    // Bochs 3.0 does not report the read.
    let read = if is_guest() { 1 } else { get(field::EXIT_QUALIFICATION) & 1 };
    same!(get(field::EXIT_QUALIFICATION) & QUALIFICATION, read | 2 | 5 << 3 | LINEAR_VALID, "the qualification");
    same!(get(field::GUEST_PHYSICAL), ADDRESS, "the guest-physical address");
    // Without flags it is read.
    set(field::EPT_POINTER, get(field::EPT_POINTER) & !ENABLED);
    same!(run(&mut [0; 8], true), VMCALL, "the exit without flags");
    Outcome::Pass
}

/// Under a hypervisor, that may make the access.
fn string_input() -> Outcome {
    let start = code!("mov edi, 0x2000000", "mov edx, 0x61", "cld", "insb");
    if !with_flags(start, ADDRESS | LARGE | WRITE_BACK | 7) {
        return ABSENT;
    }
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(flags(EPT + 2, INDEX), ACCESSED | DIRTY, "of the page");
    Outcome::Pass
}

fn not_enabled() -> Outcome {
    fresh(code!("mov eax, [0x2000000]", "mov [0x2000000], eax"));
    if !enable_ept() {
        return Outcome::Skip("there is no EPT");
    }
    poke(EPT + 2, INDEX, ADDRESS | LARGE | WRITE_BACK | 7);
    invalidate();
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!((flags(EPT, 0), flags(EPT + 1, 0), flags(EPT + 2, INDEX)), (0, 0, 0), "flags");
    Outcome::Pass
}
