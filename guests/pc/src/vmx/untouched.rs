//! An event for L2 whose tables and stack are in memory that L1 has not accessed: each access of the delivery exits to
//! the hypervisor below, which then takes time to give L1 the memory.

use core::arch::asm;

use pc::machine::out32;
use pc::others::pass;

use crate::exits::VMCALL;
use crate::field;
use crate::test::{Outcome, Test, is_guest, same};
use crate::vmcs::{code, enable_ept, fresh, get, page, poke, run, set};

pub const ALL: &[Test] = &[("event_in_untouched_memory", event)];

/// The root of L2's tables.
const ROOT: usize = 12;
/// The first of the blocks of memory, and their size.
const MEMORY: u64 = 34 << 20;
const BLOCK: u64 = 2 << 20;
/// Blocks of each structure: its page behind three tables.
const BLOCKS: u64 = 4;
const PRESENT_WRITABLE: u64 = 3;
/// L2's linear address of a structure: entries of the root from this one on.
const FIRST_ENTRY: u64 = 8;
/// Ticks after which a neighbour that started at the same time measures its waits.
const WHILE: u64 = 3_000_000;

const VECTOR: u64 = 0x41;

/// Writes a word of memory by INS from the test device's register: the hypervisor below writes it, and need not give L1
/// more than the page.
fn plant(address: u64, value: u64) {
    const WORD: u16 = 0xe0;
    for (at, half) in [(address, value as u32), (address + 4, (value >> 32) as u32)] {
        // SAFETY: the device has no other effect, and the memory is otherwise unused.
        unsafe {
            out32(WORD, half);
            asm!("cld", "insd", in("dx") WORD, inout("rdi") at => _, options(nostack));
        }
    }
}

/// Maps a structure for L2. Returns its linear address, and where it is.
fn map(number: u64) -> (u64, u64) {
    let block = |level: u64| MEMORY + (BLOCKS * number + level) * BLOCK;
    for level in 0..BLOCKS - 1 {
        plant(block(level), block(level + 1) | PRESENT_WRITABLE);
    }
    let entry = FIRST_ENTRY + number;
    poke(ROOT, entry as usize, block(0) | PRESENT_WRITABLE);
    (entry << 39, block(BLOCKS - 1))
}

fn event() -> Outcome {
    const CODE: u64 = 0x00af_9b00_0000_ffff;
    const SELECTOR: u64 = 0x08;
    const GATE: u64 = 0x8e00 << 32;
    const IF: u64 = 1 << 9;
    const VALID: u64 = 1 << 31;
    if !is_guest() {
        return Outcome::Skip("there is no hypervisor below");
    }
    fresh(code!("nop"));
    if !enable_ept() {
        return Outcome::Skip("there is no EPT");
    }
    let root = get(field::GUEST_CR3) & !0xfff;
    for word in 0..512 {
        // SAFETY: `root` is L1's PML4 table, identity-mapped, and `word` is below 512.
        poke(ROOT, word, unsafe { (root as *const u64).add(word).read_volatile() });
    }
    let handler = code!("nop");
    let ((idt, at_idt), (gdt, at_gdt), (stack, _)) = (map(0), map(1), map(2));
    plant(at_idt + 16 * VECTOR, handler & 0xffff | SELECTOR << 16 | GATE | (handler >> 16 & 0xffff) << 48);
    plant(at_idt + 16 * VECTOR + 8, handler >> 32);
    plant(at_gdt + SELECTOR, CODE);
    let fields = [
        (field::GUEST_CR3, page(ROOT)),
        (field::GUEST_IDTR_BASE, idt),
        (field::GUEST_IDTR_LIMIT, 0xfff),
        (field::GUEST_GDTR_BASE, gdt),
        (field::GUEST_GDTR_LIMIT, 0x1f),
        (field::GUEST_RSP, stack + 0x1000),
        (field::GUEST_RFLAGS, 2 | IF),
        (field::ENTRY_INTERRUPTION, VALID | VECTOR),
    ];
    fields.into_iter().for_each(|(field, value)| set(field, value));
    pass(WHILE);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(get(field::GUEST_RIP), handler + 1, "L2 is at the handler");
    same!(get(field::GUEST_RSP), stack + 0x1000 - 5 * 8, "its stack");
    Outcome::Pass
}
