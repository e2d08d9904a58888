//! Memory and segments that attacks in long mode and outside of it share.

use core::sync::atomic::AtomicU64;

/// NMIs that the first CPU has taken.
#[unsafe(no_mangle)]
pub static NMIS: AtomicU64 = AtomicU64::new(0);

/// Three pages of code below 1 MiB, of which the second one is everywhere in the last GiB, and ends attacks elsewhere.
pub const LOW: u64 = 0x1_f000;

/// The second page of code.
pub const fn middle() -> u64 {
    LOW + 4096
}

/// Tables: three of long mode, then those of the other modes.
pub static mut TABLES: [Table; 9] = [const { Table([0; 512]) }; 9];

/// A page table.
#[repr(C, align(4096))]
pub struct Table([u64; 512]);

/// Operand of LGDT and LIDT.
#[repr(C, packed)]
pub struct Pointer {
    /// Of the table, which is a byte longer.
    pub limit: u16,
    /// Address of the table.
    pub base: u64,
}

/// Selector of data.
pub const DATA: u64 = 0x10;
/// Selector of 32-bit code.
pub const CODE_32: u64 = 0x18;
/// Selector of user mode's data.
pub const USER_DATA: u64 = 0x23;
/// Selector of user mode's 32-bit code.
pub const USER_32: u64 = 0x33;
/// Selector of 16-bit code, from [`LOW`] on.
pub const CODE_16: u64 = 0x50;
/// Selector of user mode's 16-bit code, from [`LOW`] on.
pub const USER_16: u64 = 0x5b;
