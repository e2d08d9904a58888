//! Addresses of the program's tables and of user mode's memory.

/// The memory of user mode: the second entry of the top-level table. Each CPU has four pages: its code, its
/// data, and two not-present ones.
const USER: u64 = 1 << 39;

unsafe extern "C" {
    static level_4: [u64; 512];
}

/// CR3 of the program.
pub fn root() -> u64 {
    &raw const level_4 as u64
}

/// Address of a CPU's code in user mode.
pub fn user_code(cpu: usize) -> u64 {
    USER + (cpu as u64 * 4) * 4096
}

/// Address of user mode's data page. The next page is not present.
pub fn user_data(cpu: usize) -> u64 {
    user_code(cpu) + 4096
}
