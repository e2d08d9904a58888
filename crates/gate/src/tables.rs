//! The tables of the gate view: those of the guest's linear addresses, and those of its guest-physical addresses (the
//! manual, "4-Level Paging" and "The Extended Page Table Mechanism (EPT)").
//!
//! The guest's CR3 may be anything. Every guest-physical address leads to [`Frame::Top`], read-only, with the
//! exceptions below. Its last entry, for the highest 512 GiB, leads to [`Frame::Large`], whose last entry, for the highest
//! GiB, is a 1 GiB page at [`GATE`]. There each page is the code page, execute-only, except that of the APIC. All other
//! entries of both lead to the code page as a table, which can't be read: a processor that delivers an interrupt by an
//! IDT at any address meets an EPT violation, which names the interrupt, and never a page fault, which would lose it.
//!
//! | guest-physical | frame | access |
//! | --- | --- | --- |
//! | [`GATE`], 1 GiB | [`Frame::Code`] | execute |
//! | in it, at [`APIC_LINEAR`] modulo 1 GiB | [`Frame::Apic`] | read, write |
//! | [`LARGE`], a page | [`Frame::Large`] | read |
//! | all others below 2^48 | [`Frame::Top`] | read |
//!
//! Accessed and dirty bits are set in advance, so that walks write nothing; the gate's EPT pointer must not enable EPT's own.
//! In other modes the same bytes mean: nothing executable (no paging, 32-bit and 5-level paging), or the code page
//! alone (PAE, whose first level is in registers).

use crate::APIC_LINEAR;

/// Guest-physical address of the GiB with the code. Above 4 GiB, and a multiple of 8 GiB: 32-bit entries can't lead there.
pub const GATE: u64 = 1 << 36;
/// Guest-physical address of the table with the large page.
pub const LARGE: u64 = GATE + (2 << 30);
/// Bits of a guest-physical address that the processor must have.
pub const ADDRESS_BITS: u32 = 37;

/// A page of the gate view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// EPT, level 4: the root.
    Root,
    /// EPT, level 3 of the lowest 512 GiB.
    Low,
    /// EPT, levels 3, 2 and 1 of everything that leads to [`Frame::Top`].
    Top3,
    /// See [`Frame::Top3`].
    Top2,
    /// See [`Frame::Top3`].
    Top1,
    /// EPT, level 2 of [`GATE`].
    Gate2,
    /// EPT, level 1 of code.
    Gate1,
    /// EPT, level 1 of code and the APIC.
    Apic1,
    /// EPT, level 2 of [`LARGE`].
    Large2,
    /// EPT, level 1 of [`LARGE`].
    Large1,
    /// The guest's first table.
    Top,
    /// The guest's second table.
    Large,
    /// The code page.
    Code,
    /// The physical APIC's registers.
    Apic,
}

/// The frames that are tables, which a caller allocates and fills by [`entry`].
pub const TABLES: [Frame; 12] = [
    Frame::Root,
    Frame::Low,
    Frame::Top3,
    Frame::Top2,
    Frame::Top1,
    Frame::Gate2,
    Frame::Gate1,
    Frame::Apic1,
    Frame::Large2,
    Frame::Large1,
    Frame::Top,
    Frame::Large,
];

/// EPT entries: access, and memory type of the last level.
const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const WRITE_BACK: u64 = 6 << 3;
/// Type uncacheable, whatever the guest's PAT says.
const UNCACHEABLE_ALWAYS: u64 = 1 << 6;
const TABLE: u64 = READ | WRITE | EXECUTE;

/// Guest's entries: present, writable, supervisor, accessed.
const PRESENT: u64 = 1 << 0 | 1 << 1 | 1 << 5;
/// Dirty, a page.
const PAGE: u64 = 1 << 6 | 1 << 7;

/// The index of an address at a level.
const fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * (level - 1))) as usize & 511
}

/// Offset of the APIC's page in the GiB of the gate.
const APIC_OFFSET: u64 = APIC_LINEAR & ((1 << 30) - 1);

/// Entry `at` (0 to 511) of a table; `address` returns frames' physical addresses.
pub fn entry(table: Frame, at: usize, address: impl Fn(Frame) -> u64) -> u64 {
    let next = |frame| address(frame) | TABLE;
    let top = || address(Frame::Top) | READ | WRITE_BACK;
    let code = || address(Frame::Code) | EXECUTE | WRITE_BACK;
    match table {
        Frame::Root => next(if at == 0 { Frame::Low } else { Frame::Top3 }),
        Frame::Low if at == index(GATE, 3) => next(Frame::Gate2),
        Frame::Low if at == index(LARGE, 3) => next(Frame::Large2),
        Frame::Low | Frame::Top3 => next(Frame::Top2),
        Frame::Large2 if at == index(LARGE, 2) => next(Frame::Large1),
        Frame::Large2 | Frame::Top2 => next(Frame::Top1),
        Frame::Large1 if at == index(LARGE, 1) => address(Frame::Large) | READ | WRITE_BACK,
        Frame::Large1 | Frame::Top1 => top(),
        Frame::Gate2 => next(if at == index(APIC_OFFSET, 2) { Frame::Apic1 } else { Frame::Gate1 }),
        Frame::Apic1 if at == index(APIC_OFFSET, 1) => address(Frame::Apic) | READ | WRITE | UNCACHEABLE_ALWAYS,
        Frame::Apic1 | Frame::Gate1 => code(),
        Frame::Top if at == index(APIC_LINEAR, 4) => LARGE | PRESENT,
        Frame::Large if at == index(APIC_LINEAR, 3) => GATE | PRESENT | PAGE,
        Frame::Top | Frame::Large => GATE | PRESENT,
        Frame::Code | Frame::Apic => 0,
    }
}
