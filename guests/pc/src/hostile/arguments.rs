//! Arguments on the command line.

use core::sync::atomic::{AtomicU32, Ordering};

use pc::machine;

/// Address of the loader's information.
static INFORMATION: AtomicU32 = AtomicU32::new(0);

/// The text after `name=` on the command line.
pub fn argument(name: &str) -> Option<&'static str> {
    let line = machine::command_line(INFORMATION.load(Ordering::Relaxed));
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// The number after `name=`.
pub fn number(name: &str, default: u64) -> u64 {
    argument(name).and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Sets the address of the loader's information.
pub fn set_information(address: u32) {
    INFORMATION.store(address, Ordering::Relaxed);
}
