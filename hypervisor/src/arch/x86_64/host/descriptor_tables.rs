//! Descriptor tables: each CPU's GDT, and the common interrupt descriptor table.

use core::cell::UnsafeCell;

/// An interrupt descriptor table.
#[repr(C, align(16))]
pub struct Idt(pub UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: written by the boot CPU before any other starts, and read-only from then on.
unsafe impl Sync for Idt {}

/// The interrupt descriptor table, which [`super::idt`] fills.
pub static IDT: Idt = Idt(UnsafeCell::new([[0; 2]; 256]));

/// Operand of LGDT and LIDT.
#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

unsafe extern "C" {
    fn load_segments(gdt: *const Pointer, idt: *const Pointer);
}

/// Address of the interrupt descriptor table.
pub fn base() -> u64 {
    IDT.0.get() as u64
}

/// Loads a GDT and the interrupt descriptor table on this CPU.
///
/// # Safety
/// The GDT is permanent, and has [`super::cpu::CODE`], [`super::cpu::DATA`] and [`super::cpu::TASK`].
pub unsafe fn load(gdt: u64, limit: u16) {
    let gdt = Pointer { limit, base: gdt };
    let idt = Pointer { limit: size_of::<Idt>() as u16 - 1, base: base() };
    // SAFETY: the caller guarantees the GDT; its code segment equals the loaded one.
    unsafe { load_segments(&raw const gdt, &raw const idt) };
}
