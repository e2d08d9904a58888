//! The interrupt descriptor table, the same for all CPUs: see `idt.S`.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;

use super::apic::{self, vector};
use super::cpu;

core::arch::global_asm!(
    include_str!("idt.S"),
    NOTED = const cpu::NOTED,
    MAY_BE_FOREIGN = sym FOREIGN,
    ISR = const apic::ISR,
    EOI = const apic::EOI,
    CODE = const cpu::CODE,
    DATA = const cpu::DATA,
    TASK = const cpu::TASK,
);

/// Whether a VM may send interprocessor interrupts itself: interrupts and NMIs that Stile has no use for are then a guest's, and not a fault.
pub static FOREIGN: AtomicBool = AtomicBool::new(false);

/// From one stub of `exceptions` in `idt.S` to the next.
const STUB: u64 = 16;

#[repr(C, align(16))]
struct Idt(UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: written by the first CPU before any other is started, and only read from then on.
unsafe impl Sync for Idt {}

static IDT: Idt = Idt(UnsafeCell::new([[0; 2]; 256]));

/// The operand of LGDT and LIDT.
#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

unsafe extern "C" {
    static exceptions: u8;
    fn note_uart();
    fn note_timer();
    fn note_kick();
    fn note_posted();
    fn note_invalidate();
    fn note_wake();
    fn note_foreign();
    fn note_spurious();
    fn nmi();
    static unsure: u8;
    fn load_segments(gdt: *const Pointer, idt: *const Pointer);
}

/// A 64-bit interrupt gate (the manual, "64-Bit Mode IDT").
const fn gate(handler: u64, stack: u64) -> [u64; 2] {
    let low = handler & 0xffff | (cpu::CODE as u64) << 16 | stack << 32 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
    [low, handler >> 32]
}

/// Fills the table. On the first CPU, before [`load`].
pub fn setup() {
    // SAFETY: only the first CPU is here, and the table is not in use yet.
    let table = unsafe { &mut *IDT.0.get() };
    table.fill(gate(note_foreign as *const () as u64, 0));
    table[usize::from(vector::SPURIOUS)] = gate(note_spurious as *const () as u64, 0);
    for (vector, entry) in table.iter_mut().take(16).enumerate() {
        // The emergency stack, which is the TSS's first interrupt stack.
        *entry = gate(&raw const exceptions as u64 + vector as u64 * STUB, 1);
    }
    // An interrupt may have the vector of an exception, if a guest sends it.
    for (vector, entry) in table.iter_mut().enumerate().take(32).skip(16) {
        *entry = gate(&raw const unsure as u64 + (vector as u64 - 16) * STUB, 1);
    }
    table[2] = gate(nmi as *const () as u64, 2);
    let notes = [
        (vector::UART, note_uart as *const ()),
        (vector::TIMER, note_timer as _),
        (vector::KICK, note_kick as _),
        (vector::POSTED, note_posted as _),
        (vector::INVALIDATE, note_invalidate as _),
        (vector::WAKE, note_wake as _),
    ];
    for (vector, handler) in notes {
        table[usize::from(vector)] = gate(handler as u64, 0);
    }
}

/// Where the table is.
pub fn base() -> u64 {
    IDT.0.get() as u64
}

/// Makes a GDT and the table this CPU's.
///
/// # Safety
/// The GDT stays where it is, and has [`cpu::CODE`], [`cpu::DATA`] and [`cpu::TASK`].
pub unsafe fn load(gdt: u64, limit: u16) {
    let gdt = Pointer { limit, base: gdt };
    let idt = Pointer { limit: size_of::<Idt>() as u16 - 1, base: base() };
    // SAFETY: the caller's promise; the code segment is the same as before.
    unsafe { load_segments(&raw const gdt, &raw const idt) };
}
