//! Descriptor tables on a CPU: its own GDT, and the interrupt descriptor table that all share.

use core::cell::UnsafeCell;

/// An interrupt descriptor table.
#[repr(C, align(16))]
pub struct Idt(pub UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: written by the first CPU before any other is started, and only read from then on.
unsafe impl Sync for Idt {}

/// The table: [`super::idt`] fills it.
pub static IDT: Idt = Idt(UnsafeCell::new([[0; 2]; 256]));

/// The operand of LGDT and LIDT.
#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

unsafe extern "C" {
    fn load_segments(gdt: *const Pointer, idt: *const Pointer);
}

/// Where the table is.
pub fn base() -> u64 {
    IDT.0.get() as u64
}

/// Makes a GDT and the table this CPU's.
///
/// # Safety
/// The GDT stays where it is, and has [`super::cpu::CODE`], [`super::cpu::DATA`] and [`super::cpu::TASK`].
pub unsafe fn load(gdt: u64, limit: u16) {
    let gdt = Pointer { limit, base: gdt };
    let idt = Pointer { limit: size_of::<Idt>() as u16 - 1, base: base() };
    // SAFETY: the caller's promise; the code segment is the same as before.
    unsafe { load_segments(&raw const gdt, &raw const idt) };
}
