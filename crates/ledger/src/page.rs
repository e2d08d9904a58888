//! The key of an access to a guest-physical address at which there is nothing.

use core::fmt;

use crate::Access;

/// In the key of a page: the guest wrote.
const PAGE_WRITE: u32 = 1 << 31;
/// In the key of a page: the page's number. The highest stands for all pages from there on (8 TiB).
const PAGE_NUMBER: u32 = PAGE_WRITE - 1;

/// The key of an access to a guest-physical address at which there is nothing: its 4 KiB page, and
/// its direction.
pub const fn page(gpa: u64, write: bool) -> u32 {
    let number = gpa >> 12;
    let number = if number < PAGE_NUMBER as u64 { number as u32 } else { PAGE_NUMBER };
    number | if write { PAGE_WRITE } else { 0 }
}

/// Writes its name.
pub(crate) fn write(key: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = key & PAGE_NUMBER;
    let access = if key & PAGE_WRITE != 0 { Access::Write } else { Access::Read };
    let address = u64::from(number) << 12;
    let above = if number == PAGE_NUMBER { "+" } else { "" };
    write!(f, "unmapped {address:#010x}{above} {access}")
}
