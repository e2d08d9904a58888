//! Windows in the address space: user-mode memory, arbitrary physical addresses, random tables; and a
//! separate address space in which kernel code can access little of the program.

use core::arch::asm;
use core::cell::UnsafeCell;

use crate::cpu::{self, MAX_CPUS, Page};
use crate::layout::root;

/// Any physical address, a window for each CPU: the entries from the third on.
const WILD: u64 = 2 << 39;
const OWN_ENTRY: u64 = 2;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const FOR_USER: u64 = 4;
const UNCACHED: u64 = 3 << 3;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

unsafe extern "C" {
    static mut level_2: [u64; 4 * 512];
}

#[repr(C, align(4096))]
struct Tables(UnsafeCell<[[u64; 512]; TABLES]>);
// SAFETY: each CPU writes those that are its own, and the first one the others before it starts them.
unsafe impl Sync for Tables {}

/// Three for the user's window, three for each CPU's wild one, the sandbox's, and one for the end of 32-bit addresses.
const TABLES: usize = 3 + 3 * MAX_CPUS + 5 + 1;
static TABLE: Tables = Tables(UnsafeCell::new([[0; 512]; TABLES]));
const WILD_TABLES: usize = 3;
const SANDBOX: usize = WILD_TABLES + 3 * MAX_CPUS;

struct Pages(UnsafeCell<[Page; 2 * MAX_CPUS]>);
// SAFETY: user mode writes them; nothing depends on their contents.
unsafe impl Sync for Pages {}
static USER_DATA: Pages = Pages(UnsafeCell::new([const { Page([0; 4096]) }; 2 * MAX_CPUS]));

fn table(index: usize) -> *mut u64 {
    // SAFETY: `index` is below the number of tables, so that the address is within the static.
    unsafe { TABLE.0.get().cast::<u64>().add(512 * index) }
}

fn set(table: *mut u64, index: usize, value: u64) {
    // SAFETY: a table of this module, or the program's top one.
    unsafe { table.add(index).write_volatile(value) };
}

/// Makes the windows.
pub fn setup() {
    let root = root() as *mut u64;
    let all = PRESENT | WRITABLE | FOR_USER;
    set(root, 1, table(0) as u64 | all);
    set(table(0), 0, table(1) as u64 | all);
    set(table(1), 0, table(2) as u64 | all);
    for cpu in 0..MAX_CPUS {
        let wild = WILD_TABLES + 3 * cpu;
        set(root, OWN_ENTRY as usize + cpu, table(wild) as u64 | all);
        set(table(wild), 0, table(wild + 1) as u64 | all);
        set(table(wild + 1), 0, table(wild + 2) as u64 | all);
        let data = USER_DATA.0.get() as u64 + (2 * cpu * 4096) as u64;
        set(table(2), 4 * cpu + 1, data | all);
    }
}

/// Maps this CPU's page of code for user mode.
pub fn map_user_code() {
    set(table(2), 4 * cpu::this(), cpu::code_page() | PRESENT | WRITABLE | FOR_USER);
}

/// Maps two pages from a physical address on in this CPU's window, for both modes. Returns their address.
pub fn wild(physical: u64, cached: bool) -> u64 {
    let cpu = cpu::this();
    let last = table(WILD_TABLES + 3 * cpu + 2);
    let attributes = PRESENT | WRITABLE | FOR_USER | if cached { 0 } else { UNCACHED };
    let linear = WILD + (cpu as u64) * (1 << 39);
    for page in 0..2 {
        set(last, page as usize, (physical + 4096 * page) & ADDRESS | attributes);
        forget(linear + 4096 * page);
    }
    linear | physical & 0xfff
}

/// Corrupts one of the tables of this CPU's window: its top one, or one below. Returns an address that it
/// translates.
pub fn rubbish(level: usize, entry: u64) -> u64 {
    let cpu = cpu::this();
    let linear = WILD + (cpu as u64) * (1 << 39);
    set(table(WILD_TABLES + 3 * cpu + level), 0, entry);
    forget_all();
    linear
}

/// Puts the tables of this CPU's window right.
pub fn mend() {
    let wild = WILD_TABLES + 3 * cpu::this();
    let all = PRESENT | WRITABLE | FOR_USER;
    set(table(wild), 0, table(wild + 1) as u64 | all);
    set(table(wild + 1), 0, table(wild + 2) as u64 | all);
    set(table(wild + 2), 0, 0);
    forget_all();
}

fn forget(linear: u64) {
    // SAFETY: invalidating a translation is always correct.
    unsafe { asm!("invlpg [{}]", in(reg) linear, options(nostack, preserves_flags)) };
}

fn forget_all() {
    // SAFETY: the root is the program's own, which maps all of it.
    unsafe { asm!("mov cr3, {}", in(reg) root(), options(nostack, preserves_flags)) };
}

/// Maps a page at the end of the first 4 GiB, or restores the original mapping.
pub fn map_last(page: Option<u64>) {
    const LAST: usize = 4 * 512 - 1;
    let last = table(SANDBOX + 5);
    let entry = match page {
        Some(page) => {
            set(last, 511, page | PRESENT | WRITABLE);
            last as u64 | PRESENT | WRITABLE
        }
        None => (LAST as u64) << 21 | LARGE | UNCACHED | PRESENT | WRITABLE,
    };
    set((&raw mut level_2).cast(), LAST, entry);
    forget_all();
}

/// An address space for kernel code: the program is read-only, except for the CPUs' blocks; so the code can
/// write only its stack or its registers' window, [`crate::layout::user_data`]. Returns CR3. For one CPU.
pub fn sandbox() -> u64 {
    let [top, third, second, first, next] = core::array::from_fn(|n| table(SANDBOX + n));
    set(top, 0, third as u64 | PRESENT | WRITABLE);
    set(top, 1, table(0) as u64 | PRESENT | WRITABLE | FOR_USER);
    set(third, 0, second as u64 | PRESENT | WRITABLE);
    let blocks = cpu::blocks();
    for (n, last) in [first, next].into_iter().enumerate() {
        set(second, n, last as u64 | PRESENT | WRITABLE);
        for page in 0..512u64 {
            let address = (n as u64) << 21 | page << 12;
            let writable = if blocks.contains(&address) { WRITABLE } else { 0 };
            set(last, page as usize, address | PRESENT | writable);
        }
    }
    top as u64
}
