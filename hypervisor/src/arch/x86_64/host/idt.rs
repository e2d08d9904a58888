//! The interrupt descriptor table, common to all CPUs: see `idt.S`.

use core::sync::atomic::AtomicBool;

use super::apic::{self, vector};
use super::{cpu, descriptor_tables, xapic};
use crate::arch::x86_64::virt::block;

core::arch::global_asm!(
    include_str!("idt.S"),
    NOTED = const cpu::NOTED,
    MESSAGES = const cpu::MESSAGES,
    MESSAGES_OF_FUNCTIONS = const vector::MESSAGES_OF_FUNCTIONS,
    MAY_BE_FOREIGN = sym FOREIGN,
    ISR = const apic::ISR,
    EOI = const apic::EOI,
    XAPIC = sym xapic::REGISTERS,
    HAS_GLOBAL_FLAG = const block::HAS_GLOBAL_FLAG as u8,
    GLOBAL_FLAG = sym GLOBAL_FLAG,
    CODE = const cpu::CODE,
    DATA = const cpu::DATA,
    TASK = const cpu::TASK,
);

/// Whether a VM may send IPIs itself: unexpected interrupts and NMIs may then come from its guest, and are not
/// faults.
pub static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Whether the CPUs' global interrupt flag masks interrupts, which only AMD-V has: see [`state`](crate::arch::x86_64::virt::state).
pub static GLOBAL_FLAG: AtomicBool = AtomicBool::new(false);

/// Distance between stubs of `exceptions` in `idt.S`.
const STUB: u64 = 16;

unsafe extern "C" {
    static exceptions: u8;
    fn note_iommu();
    fn note_uart();
    fn note_timer();
    fn note_kick();
    fn note_posted();
    fn note_invalidate();
    fn note_wake();
    fn note_foreign();
    fn note_spurious();
    fn nmi();
    fn general_protection();
    static unsure: u8;
    static message_stubs: u8;
}

/// Distance between stubs for messages in `idt.S`.
const MESSAGE_STUB: u64 = 8;

/// A 64-bit interrupt gate (the manual, "64-Bit Mode IDT").
const fn gate(handler: u64, stack: u64) -> [u64; 2] {
    let low = handler & 0xffff | (cpu::CODE as u64) << 16 | stack << 32 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
    [low, handler >> 32]
}

/// Fills the table, on the boot CPU before [`descriptor_tables::load`].
pub fn setup() {
    // SAFETY: only the boot CPU runs, and the table is not in use yet.
    let table = unsafe { &mut *descriptor_tables::IDT.0.get() };
    table.fill(gate(note_foreign as *const () as u64, 0));
    table[usize::from(vector::SPURIOUS)] = gate(note_spurious as *const () as u64, 0);
    for (vector, entry) in table.iter_mut().take(16).enumerate() {
        // Emergency stack: the TSS's first interrupt stack.
        *entry = gate(&raw const exceptions as u64 + vector as u64 * STUB, 1);
    }
    // A guest may send an interrupt with the vector of an exception.
    for (vector, entry) in table.iter_mut().enumerate().take(32).skip(16) {
        *entry = gate(&raw const unsure as u64 + (vector as u64 - 16) * STUB, 1);
    }
    table[2] = gate(nmi as *const () as u64, 2);
    // On a stack of its own: `unsure` accesses the APIC on the emergency stack.
    table[13] = gate(general_protection as *const () as u64, 3);
    let notes = [
        (vector::UART, note_uart as *const ()),
        (vector::IOMMU, note_iommu as _),
        (vector::TIMER, note_timer as _),
        (vector::KICK, note_kick as _),
        (vector::POSTED, note_posted as _),
        (vector::INVALIDATE, note_invalidate as _),
        (vector::WAKE, note_wake as _),
    ];
    for (vector, handler) in notes {
        table[usize::from(vector)] = gate(handler as u64, 0);
    }
    // VMs have functions on AMD-V only; with VMX a guest may send these vectors.
    if block::HAS_GLOBAL_FLAG {
        let stubs = &raw const message_stubs as u64;
        let entries = table.iter_mut().skip(vector::FIRST_MESSAGE.into()).take(vector::MESSAGES_OF_FUNCTIONS.into());
        for (number, entry) in entries.enumerate() {
            *entry = gate(stubs + number as u64 * MESSAGE_STUB, 0);
        }
    }
}
