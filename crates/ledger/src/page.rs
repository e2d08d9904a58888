//! The key of an access to an unmapped guest-physical address.

use core::fmt;

use crate::Access;

/// In a page key: the access was a write.
const PAGE_WRITE: u32 = 1 << 31;
/// In a page key: the page number. The highest stands for all pages from there on (8 TiB).
const PAGE_NUMBER: u32 = PAGE_WRITE - 1;

/// The key of an access to an unmapped guest-physical address: 4 KiB page and direction.
pub const fn page(gpa: u64, write: bool) -> u32 {
    let number = gpa >> 12;
    let number = if number < PAGE_NUMBER as u64 { number as u32 } else { PAGE_NUMBER };
    number | if write { PAGE_WRITE } else { 0 }
}

/// Writes the key's name.
pub(crate) fn write(key: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = key & PAGE_NUMBER;
    let access = if key & PAGE_WRITE != 0 { Access::Write } else { Access::Read };
    let address = u64::from(number) << 12;
    let above = if number == PAGE_NUMBER { "+" } else { "" };
    write!(f, "unmapped {address:#010x}{above} {access}")
}
