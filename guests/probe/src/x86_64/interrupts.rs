//! The interrupt descriptor table: two interrupts, and undefined instructions.

use super::cpu::{EOI, FAULTS, SLOTS, TAKEN_BY_ALL, off};

/// The first CPU's interrupt vector, for all sources.
pub const FIRST: u8 = 0x40;
/// The second CPU's interrupt vector.
pub const SECOND: u8 = 0x41;
/// The interrupt vector of all CPUs, in x2APIC mode.
pub const ALL: u8 = 0x42;

/// Entries of the table; the last one is the spurious interrupt's.
const ENTRIES: usize = 256;

static mut TABLE: [[u64; 2]; ENTRIES] = [[0; 2]; ENTRIES];

/// The operand of LIDT.
#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

core::arch::global_asm!(
    include_str!("interrupts.s"),
    slots = sym SLOTS,
    second_slot = const size_of_val(&SLOTS[0]),
    eoi = const EOI,
    taken_by_all = sym TAKEN_BY_ALL,
    faults = sym FAULTS,
    unexpected = sym unexpected,
);

unsafe extern "C" {
    static exception: u8;
    static undefined: u8;
    static protection: u8;
    static spurious: u8;
    static first_by_page: u8;
    static first_by_msr: u8;
    static first_by_bit: u8;
    static second_by_page: u8;
    static second_by_msr: u8;
    static second_by_bit: u8;
    static all_by_msr: u8;
}

fn set(vector: usize, handler: u64) {
    let low = handler & 0xffff | 0x08 << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
    // SAFETY: the table is written before the second CPU runs, and no reference to it exists.
    unsafe { TABLE[vector] = [low, handler >> 32] };
}

/// Fills the table, and loads it on the first CPU.
pub fn setup() {
    for vector in 0..32 {
        set(vector, &raw const exception as u64);
    }
    set(6, &raw const undefined as u64);
    set(13, &raw const protection as u64);
    set(FIRST.into(), &raw const first_by_page as u64);
    set(SECOND.into(), &raw const second_by_page as u64);
    set(ALL.into(), &raw const all_by_msr as u64);
    set(ENTRIES - 1, &raw const spurious as u64);
    load();
}

/// From now on handlers end interrupts as in x2APIC mode.
pub fn end_by_msr() {
    set(FIRST.into(), &raw const first_by_msr as u64);
    set(SECOND.into(), &raw const second_by_msr as u64);
}

/// From now on handlers end interrupts by a bit in memory, and by MSR if it is clear.
pub fn end_by_bit() {
    set(FIRST.into(), &raw const first_by_bit as u64);
    set(SECOND.into(), &raw const second_by_bit as u64);
}

/// Loads the table on this CPU.
pub fn load() {
    let pointer = Pointer { limit: (ENTRIES * 16 - 1) as u16, base: &raw const TABLE as u64 };
    // SAFETY: the table is complete, and stays.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &pointer, options(nostack)) };
}

/// An exception that no operation expects.
extern "C" fn unexpected(first: u64, second: u64) -> ! {
    super::print(format_args!("probe: an exception, with {first:#x} and {second:#x} on the stack\n"));
    off()
}
