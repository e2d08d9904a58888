//! Address spaces of tasks.

use pc::tasks::{Machine, word};

const PG: u32 = 1 << 31;
const PSE: u32 = 1 << 4;
const PAE: u32 = 1 << 5;

/// A page, or a table of 32-bit entries.
#[repr(C, align(4096))]
pub struct Table(pub [u32; 1024]);
const EMPTY: Table = Table([0; 1024]);
/// Two roots, a table below each, and a page below that.
static mut ROOTS: [Table; 2] = [EMPTY; 2];
static mut MIDDLE: [Table; 2] = [EMPTY; 2];
/// The tables of the last level; the first entry maps a page at 1 GiB.
pub static mut LAST: [Table; 2] = [EMPTY; 2];
/// The pages at 1 GiB.
pub static mut PAGES: [Table; 2] = [EMPTY; 2];

unsafe extern "C" {
    /// Four page directories that identity-map 4 GiB with 2 MiB pages (boot.s).
    static level_2: u8;
}

const PRESENT_WRITABLE: u32 = 0b11;

/// Builds two identity-mapped address spaces, each with its own page at 1 GiB. Returns CR3 of both.
fn tables(pae: bool) -> [u32; 2] {
    // SAFETY: these tests alone use the tables, and no program runs.
    unsafe {
        [0, 1].map(|n| {
            let (root, middle) = (&raw mut ROOTS[n].0, &raw mut MIDDLE[n].0);
            let (last, page) = (&raw mut LAST[n].0, &raw mut PAGES[n].0);
            (*last)[0] = page as u32 | PRESENT_WRITABLE;
            (*last)[1] = 0;
            (*page)[0] = 0x1111 * (n as u32 + 1);
            if pae {
                *root = [0; 1024];
                for entry in 0..4 {
                    (*root)[2 * entry] = &raw const level_2 as u32 + 4096 * entry as u32 + 1;
                }
                (*root)[2] = middle as u32 | 1;
                (*middle)[0] = last as u32 | PRESENT_WRITABLE;
            } else {
                for entry in 0..1024 {
                    (*root)[entry] = (entry as u32) << 22 | 1 << 7 | PRESENT_WRITABLE;
                }
                (*root)[256] = last as u32 | PRESENT_WRITABLE;
            }
            root as u32
        })
    }
}

/// A machine of two tasks with paging, each with its own address space, and CR3 of both. `other` is the other task's code.
pub fn paged(other: u32, pae: bool) -> (Machine, [u32; 2]) {
    let roots = tables(pae);
    let mut machine = Machine::new(other);
    machine.control = [if pae { PAE } else { PSE }, roots[0], PG];
    machine.main()[word::CR3] = roots[0];
    machine.other()[word::CR3] = roots[1];
    (machine, roots)
}
