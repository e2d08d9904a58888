//! Code pages with changeable mappings, and the local APIC's registers.

use core::arch::asm;

/// Address of the local APIC's registers.
pub const APIC: u64 = 0xfee0_0000;
/// Address of the window's first page: 4 KiB pages, by tables that the tests change.
pub const WINDOW: u64 = 1 << 30;
/// Frames that can be mapped there.
pub const FRAMES: usize = 4;

pub const PAGE: u64 = 4096;
/// Present and writable.
const PRESENT_WRITABLE: u64 = 0b11;
const LARGE: u64 = 1 << 7;
const UNCACHED: u64 = 0b11 << 3;

#[repr(C, align(4096))]
struct Page([u64; 512]);

const EMPTY: Page = Page([0; 512]);

static mut FRAME: [Page; FRAMES] = [EMPTY; FRAMES];
/// The fourth GiB, in pages of 2 MiB.
static mut HIGH: Page = EMPTY;
/// Tables of the window: the first root's, and the second root's own.
static mut WINDOW_2: [Page; 2] = [EMPTY; 2];
static mut WINDOW_1: [Page; 2] = [EMPTY; 2];
static mut SECOND_4: Page = EMPTY;
static mut SECOND_3: Page = EMPTY;

/// A root of the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Root {
    First,
    Second,
}

/// Maps the fourth GiB and the window. The tables of `boot.s`, which CR3 names, are the first root's.
pub fn setup() {
    let first_4 = root();
    let entry = |table: u64, index: u64, value: u64| write(table + 8 * index, &value.to_le_bytes());
    let read = |table: u64, index: u64| {
        // SAFETY: callers pass the address of a page table of this program, which is identity-mapped, and an index below 512.
        unsafe { ((table + 8 * index) as *const u64).read_volatile() }
    };
    let first_3 = read(first_4, 0) & !(PAGE - 1);
    for i in 0..512 {
        entry(&raw const HIGH as u64, i, (3 << 30) + (i << 21) + LARGE + UNCACHED + PRESENT_WRITABLE);
    }
    let window = |which: usize| {
        // SAFETY: takes addresses of statics; nothing is read or written.
        let (table_2, table_1) = unsafe { (&raw const WINDOW_2[which] as u64, &raw const WINDOW_1[which] as u64) };
        entry(table_2, 0, table_1 + PRESENT_WRITABLE);
        table_2
    };
    let (windows, high) = ([window(0), window(1)], &raw const HIGH as u64);
    entry(first_3, 1, windows[0] + PRESENT_WRITABLE);
    entry(first_3, 3, high + PRESENT_WRITABLE);
    let (second_4, second_3) = (&raw const SECOND_4 as u64, &raw const SECOND_3 as u64);
    entry(second_3, 0, read(first_3, 0));
    entry(second_3, 1, windows[1] + PRESENT_WRITABLE);
    entry(second_3, 3, high + PRESENT_WRITABLE);
    entry(second_4, 0, second_3 + PRESENT_WRITABLE);
    for page in 0..FRAMES as u64 {
        for root in [Root::First, Root::Second] {
            map(root, page, Some(page as usize));
        }
    }
}

/// CR3.
pub fn root() -> u64 {
    let root: u64;
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nostack, preserves_flags)) };
    root
}

/// CR3 of a root. The first one's is its value at [`setup`].
pub fn second_root() -> u64 {
    &raw const SECOND_4 as u64
}

/// Changes CR3.
pub fn set_root(root: u64) {
    // SAFETY: both roots map the program alike.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// The target of a window page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Frame(usize),
    /// The page of a device.
    Device(u64),
}

/// Maps a page of the window to a frame, or unmaps it, and invalidates the old translation.
pub fn map(root: Root, page: u64, frame: Option<usize>) {
    map_to(root, page, frame.map(Place::Frame));
}

/// Maps a page of the window to any place, and invalidates the old translation.
pub fn map_to(root: Root, page: u64, place: Option<Place>) {
    put_entry(root, page, place);
    // SAFETY: invalidating a translation is always correct.
    unsafe { asm!("invlpg [{}]", in(reg) WINDOW + page * PAGE, options(nostack, preserves_flags)) };
}

/// Maps a page of the window without invalidation.
pub fn map_quietly(root: Root, page: u64, frame: Option<usize>) {
    put_entry(root, page, frame.map(Place::Frame));
}

fn put_entry(root: Root, page: u64, place: Option<Place>) {
    // SAFETY: takes the address of a static; nothing is read or written.
    let table = unsafe { &raw const WINDOW_1[root as usize] as u64 };
    let entry = match place {
        Some(Place::Frame(index)) => frame(index) + PRESENT_WRITABLE,
        Some(Place::Device(address)) => address + UNCACHED + PRESENT_WRITABLE,
        None => 0,
    };
    write(table + 8 * page, &entry.to_le_bytes());
}

/// Address of a frame, outside of the window.
pub fn frame(index: usize) -> u64 {
    // SAFETY: takes the address of a static; nothing is read or written.
    unsafe { &raw const FRAME[index] as u64 }
}

/// Writes bytes of code or of tables.
pub fn write(address: u64, bytes: &[u8]) {
    for (i, &byte) in bytes.iter().enumerate() {
        // SAFETY: the callers write frames and tables of this module, or tables' entries.
        unsafe { ((address + i as u64) as *mut u8).write_volatile(byte) };
    }
}
