//! Simulated guest memory with page tables and code; pages can be write-protected.

use std::collections::BTreeSet;
use stile_x86_decode::cache::{Protect, Protector};
use stile_x86_walk::model::Memory;

pub const PAGE: u64 = 4096;
/// Number of pages.
pub const PAGES: u64 = 16;
/// The first page of code.
pub const CODE: u64 = 8;

/// Write-protected pages.
#[derive(Default)]
pub struct Protected(pub BTreeSet<u64>);

impl Protector for Protected {
    fn protect(&mut self, page: u64) -> bool {
        assert_eq!(page % PAGE, 0);
        self.0.insert(page);
        true
    }
}

pub struct Guest {
    pub memory: Memory,
    pub protected: Protected,
}

/// The tables: two 4-level roots that share lower tables, and one root of 32-bit paging.
pub const ROOTS: [u64; 2] = [0, 1];
pub const DIRECTORY: u64 = 3;
pub const TABLES: [u64; 2] = [4, 5];
pub const ROOT_32: u64 = 6;
pub const TABLE_32: u64 = 7;

const OPEN: u64 = 0x67;

impl Guest {
    /// Linear pages 0 to 7 map the code pages in every mode.
    pub fn new() -> Self {
        let guest = Self { memory: Memory::new((PAGES * PAGE) as usize), protected: Protected::default() };
        for root in ROOTS {
            guest.memory.put(root * PAGE, &(2 * PAGE + OPEN).to_le_bytes());
        }
        guest.memory.put(2 * PAGE, &(DIRECTORY * PAGE + OPEN).to_le_bytes());
        guest.memory.put(DIRECTORY * PAGE, &(TABLES[0] * PAGE + OPEN).to_le_bytes());
        guest.memory.put(ROOT_32 * PAGE, &((TABLE_32 * PAGE + OPEN) as u32).to_le_bytes());
        for i in 0..8 {
            for table in TABLES {
                guest.memory.put(table * PAGE + i * 8, &((CODE + i) * PAGE + OPEN).to_le_bytes());
            }
            guest.memory.put(TABLE_32 * PAGE + i * 4, &(((CODE + i) * PAGE + OPEN) as u32).to_le_bytes());
        }
        guest
    }

    /// Writes memory as the guest or a device. Releases protection first, as the hypervisor would.
    pub fn write(&mut self, address: u64, bytes: &[u8], cache: &mut Protect) {
        let bytes = &bytes[..bytes.len().min((PAGES * PAGE - address) as usize)];
        for page in [address, address + bytes.len() as u64 - 1].map(|address| address / PAGE * PAGE) {
            if self.protected.0.remove(&page) {
                cache.forget(page);
            }
        }
        self.memory.put(address, bytes);
    }
}
