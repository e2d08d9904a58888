//! Control registers and the modes of paging.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count as cpuid;

use pc::hypercall::{VMMCALL, is_amds};

use super::test::check;
use super::vector::GENERAL_PROTECTION;
use crate::exception::catch;
use crate::machine::{rdmsr, wrmsr};

pc::assembly!("tests/paging.s");

unsafe extern "C" {
    fn through_pae(pointers: *mut u64, flip: u32) -> u64;
    fn activate_by_64_bit_code(gates: *const Gates) -> u64;
    static activation_fails: u8;
}

const PRESENT: u64 = 1;
const PRESENT_WRITABLE: u64 = 0b11;

#[repr(C, align(4096))]
struct Table([u64; 512]);

const EMPTY: Table = Table([0; 512]);

/// Page tables of levels 1 to 3 for the first page, and of levels 1 and 2 for the second.
static mut TABLES: [Table; 3] = [EMPTY; 3];
static mut OTHERS: [Table; 2] = [EMPTY; 2];
/// Pages, to be mapped.
static mut PAGES: [Table; 2] = [EMPTY; 2];
/// The page-directory-pointer table of PAE paging.
#[repr(C, align(32))]
struct Pointers([u64; 4]);
static mut POINTERS: Pointers = Pointers([0; 4]);

fn cr3() -> u64 {
    let root;
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nostack)) };
    root
}

fn cr(which: u32) -> u64 {
    let value;
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe {
        match which {
            0 => asm!("mov {}, cr0", out(reg) value, options(nostack)),
            _ => asm!("mov {}, cr4", out(reg) value, options(nostack)),
        }
    }
    value
}

/// Returns the address in the first entry of a table.
fn first(table: u64) -> u64 {
    // SAFETY: a table of the running program, identity-mapped.
    unsafe { (table as *const u64).read_volatile() & !0xfff }
}

/// Enabling paging loads the PDPTEs of PAE paging and flushes earlier translations, also if the same write changes other bits
/// of CR0.
pub fn pointers_of_pae(_: u64) -> Result<(), &'static str> {
    const NE: u32 = 1 << 5;
    const CD: u32 = 1 << 30;
    let first_gib = first(first(cr3()));
    for flip in [0, NE, CD, NE | CD] {
        // SAFETY: the tables and pages belong to this test, identity-mapped, and the first GiB stays mapped.
        let read = unsafe {
            let (tables, others, pages) = (&raw mut TABLES, &raw mut OTHERS, &raw mut PAGES);
            for (n, table) in [&raw mut (*tables)[0], &raw mut (*others)[0]].into_iter().enumerate() {
                (*table).0[0] = &raw const (*pages)[n] as u64 + PRESENT_WRITABLE;
                (*pages)[n].0[0] = 0x1111 * (n as u64 + 1);
            }
            (*tables)[1].0[0] = &raw const (*tables)[0] as u64 + PRESENT_WRITABLE;
            (*others)[1].0[0] = &raw const (*others)[0] as u64 + PRESENT_WRITABLE;
            let pointers = &raw mut POINTERS;
            (*pointers).0 = [first_gib + PRESENT, &raw const (*tables)[1] as u64 + PRESENT, &raw const (*others)[1] as u64 + PRESENT, 0];
            through_pae(pointers.cast(), flip)
        };
        check!(read as u32 == 0x1111, "the pointers are not read");
        check!(read >> 32 == 0x2222, "the PDPTEs are not reloaded");
    }
    Ok(())
}

/// Attempts to disable paging where that is illegal.
pub fn paging_stays_on(_: u64) -> Result<(), &'static str> {
    const PG: u64 = 1 << 31;
    const NE: u64 = 1 << 5;
    let now = cr(0);
    // In 64-bit mode, clearing PG raises #GP.
    check!(catch!("mov cr0, rsi", "rsi" = now & !PG) == Some((GENERAL_PROTECTION, 0)), "64-bit mode without paging");
    check!(catch!("mov cr0, rsi", "rsi" = now & !PG ^ NE) == Some((GENERAL_PROTECTION, 0)), "the same, with another bit changed");
    // (QEMU accepts it on AMD's processors, without an exit, and VMRUN fails.)
    let reserved = is_amds() || catch!("mov cr0, rsi", "rsi" = now | 1 << 32) == Some((GENERAL_PROTECTION, 0));
    check!(reserved, "a reserved bit of CR0");
    check!(cr(0) == now, "CR0 changed");
    Ok(())
}

/// Operand of LIDT, for an IDT of 32-bit gates.
#[repr(C, packed)]
struct Gates {
    limit: u16,
    base: u64,
}

/// IA-32e mode is not activated by code of a segment whose L bit is set, also if another bit of CR0 changes.
pub fn activation(_: u64) -> Result<(), &'static str> {
    static mut TABLE: [u64; 14] = [0; 14];
    let handler = &raw const activation_fails as u64;
    let table = &raw mut TABLE;
    // SAFETY: interrupts are off, and the only exception is #GP, whose handler returns here.
    let refused = unsafe {
        (*table)[GENERAL_PROTECTION as usize] = handler & 0xffff | 0x18 << 16 | 0x8e << 40 | handler >> 16 << 48;
        activate_by_64_bit_code(&Gates { limit: 14 * 8 - 1, base: table as u64 })
    };
    check!(refused == 1, "it is activated");
    Ok(())
}

/// Accesses through a page table outside of RAM raise #PF; the error code of a fetch has I/D set.
pub fn fetch_through_no_memory(_: u64) -> Result<(), &'static str> {
    const PAGE_FAULT: u64 = 14;
    const FETCH: u64 = 1 << 4;
    const EFER: u32 = 0xc000_0080;
    const NXE: u64 = 1 << 11;
    const INDEX: u64 = 254;
    let place = ((cr3() & !0xfff) + 8 * INDEX) as *mut u64;
    // SAFETY: the entry is not in use, and all entries have NX clear.
    let (fetch, read) = unsafe {
        place.write_volatile(1 << 36 | PRESENT_WRITABLE);
        let efer = rdmsr(EFER);
        wrmsr(EFER, efer | NXE);
        let outcome = (catch!("jmp rsi", "rsi" = INDEX << 39), catch!("mov al, [rsi]", "rsi" = INDEX << 39));
        wrmsr(EFER, efer);
        place.write_volatile(0);
        asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack));
        outcome
    };
    check!(fetch == Some((PAGE_FAULT, FETCH)), "a fetch: another exception, or error code");
    check!(read == Some((PAGE_FAULT, 0)), "a read: another exception, or error code");
    Ok(())
}

/// Each bit of CR4 whose feature CPUID does not enumerate is reserved.
pub fn cr4_of_features(_: u64) -> Result<(), &'static str> {
    let (leaf_1, leaf_7, leaf_7_1) = (cpuid(1, 0).ecx, cpuid(7, 0), cpuid(7, 1));
    let leaf_7_1 = if leaf_7.eax >= 1 { leaf_7_1.eax } else { 0 };
    let has = |word: u32, bit: u32| word >> bit & 1 != 0;
    let bits = [
        (11, has(leaf_7.ecx, 2)),  // UMIP
        (12, has(leaf_7.ecx, 16)), // LA57
        (13, has(leaf_1, 5)),      // VMXE
        (14, has(leaf_1, 6)),      // SMXE
        (15, false),
        (16, has(leaf_7.ebx, 0)),                        // FSGSBASE
        (17, has(leaf_1, 17)),                           // PCIDE
        (18, has(leaf_1, 26)),                           // OSXSAVE
        (19, has(leaf_7.ecx, 23)),                       // KL
        (20, has(leaf_7.ebx, 7)),                        // SMEP
        (21, has(leaf_7.ebx, 20)),                       // SMAP
        (22, has(leaf_7.ecx, 3)),                        // PKE
        (23, has(leaf_7.ecx, 7) || has(leaf_7.edx, 20)), // CET
        (24, has(leaf_7.ecx, 31)),                       // PKS
        (25, has(leaf_7.edx, 5)),                        // UINTR
        (26, false),
        (27, has(leaf_7_1, 6)),  // LASS
        (28, has(leaf_7_1, 26)), // LAM_SUP
        (29, false),
        (30, false),
        (31, false),
        (32, has(leaf_7_1, 17)), // FRED
        (33, false),
        (40, false),
        (63, false),
    ];
    let now = cr(4);
    for (bit, _) in bits.iter().filter(|(_, there)| !there) {
        let outcome = catch!("mov cr4, rsi", "rsi" = now | 1u64 << bit);
        // SAFETY: the value was in CR4 before this test, under which this program runs.
        unsafe { asm!("mov cr4, {}", in(reg) now, options(nostack)) };
        check!(outcome == Some((GENERAL_PROTECTION, 0)), "a feature that is not there can be turned on");
    }
    Ok(())
}

/// An instruction that exits, in the last bytes below the non-canonical addresses: the fetch after it raises #GP.
pub fn at_the_edge(_: u64) -> Result<(), &'static str> {
    const EDGE: u64 = 1 << 47;
    const VMCALL: [u8; 3] = [0x0f, 0x01, 0xc1];
    let root = cr3() & !0xfff;
    let place = (root + 255 * 8) as *mut u64;
    // SAFETY: the tables and the page belong to this module; the address is otherwise unmapped.
    unsafe {
        let (tables, page) = (&raw mut TABLES, &raw mut PAGES as u64);
        for level in 0..3 {
            (*tables)[level].0[511] = if level == 0 { page } else { &raw const (*tables)[level - 1] as u64 } + PRESENT_WRITABLE;
        }
        let instruction = if is_amds() { VMMCALL } else { VMCALL };
        for (n, byte) in instruction.into_iter().enumerate() {
            ((page + 4093) as *mut u8).add(n).write_volatile(byte);
        }
        place.write_volatile(&raw const (*tables)[2] as u64 + PRESENT_WRITABLE);
    }
    let outcome = catch!("jmp rsi", "rsi" = EDGE - 3);
    // SAFETY: the entry was not present before this test; nothing refers to the addresses that it maps.
    unsafe {
        place.write_volatile(0);
        asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack));
    }
    check!(outcome == Some((GENERAL_PROTECTION, 0)), "another exception, or none");
    Ok(())
}

/// Instructions that exit get a prefix, in place and behind another mapping of their address: what a hypervisor remembers of
/// their length must change, too.
pub fn exiting_code_changes(_: u64) -> Result<(), &'static str> {
    /// CPUID, RDMSR and the unknown hypercall.
    const CPUID: &[u8] = &[0x0f, 0xa2];
    const RDMSR: &[u8] = &[0x0f, 0x32];
    const MAPPED: u64 = 1 << 47;
    let hypercall: &[u8] = if is_amds() { &VMMCALL } else { &[0x0f, 0x01, 0xc1] };
    let place = ((cr3() & !0xfff) + 255 * 8) as *mut u64;
    // SAFETY: the tables and the pages belong to this module; the address is otherwise unmapped.
    let pages = unsafe {
        for level in 0..3 {
            (&raw mut TABLES[level].0[511]).write_volatile(match level {
                0 => &raw const PAGES[0] as u64 + PRESENT_WRITABLE,
                _ => &raw const TABLES[level - 1] as u64 + PRESENT_WRITABLE,
            });
        }
        place.write_volatile(&raw const TABLES[2] as u64 + PRESENT_WRITABLE);
        [&raw const PAGES[0] as u64, &raw const PAGES[1] as u64]
    };
    let edge = MAPPED - 4096;
    for instruction in [CPUID, RDMSR, hypercall] {
        // Twice each, so that it is remembered. Behind an instruction that is skipped too early is an access to memory that is not there.
        for prefixes in [0, 1, 0, 2, 1] {
            write_code(pages[0], prefixes, instruction);
            (0..2).for_each(|_| call(pages[0]));
        }
        // One address shows one page, then the other.
        for (index, prefixes) in [(0, 0), (1, 1), (0, 0), (1, 2)] {
            write_code(pages[index], prefixes, instruction);
            // SAFETY: only this function, on one CPU, accesses the tables of this module.
            unsafe {
                (&raw mut TABLES[0].0[511]).write_volatile(pages[index] + PRESENT_WRITABLE);
                asm!("invlpg [{}]", in(reg) edge, options(nostack));
            }
            (0..3).for_each(|_| call(edge));
        }
    }
    // SAFETY: the entry was not present before this test; nothing refers to the addresses that it maps.
    unsafe {
        place.write_volatile(0);
        asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack));
    }
    Ok(())
}

/// Writes a function: an instruction with REX prefixes, and RET several times.
fn write_code(page: u64, prefixes: usize, instruction: &[u8]) {
    let bytes = core::iter::repeat_n(&0x48, prefixes).chain(instruction).chain(core::iter::repeat_n(&0xc3, 12));
    for (at, byte) in bytes.enumerate() {
        // SAFETY: a page of this module, which is not being executed.
        unsafe { ((page + at as u64) as *mut u8).write_volatile(*byte) };
    }
}

/// Calls it with the arguments of all these instructions.
fn call(address: u64) {
    const APIC_BASE: u32 = 0x1b;
    // SAFETY: the function changes these registers only.
    unsafe {
        asm!("push rbx", "call {}", "pop rbx", in(reg) address, inout("eax") 0 => _, inout("ecx") APIC_BASE => _, out("edx") _);
    }
}
