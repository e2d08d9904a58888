//! Intel's first stage in 64-bit mode, for the hypervisor itself. Here "the manual" is the Intel 64 and IA-32
//! Architectures Software Developer's Manual.

use super::Level;
use super::format::{Attributes, Format, MemoryType};
use super::intel::Intel;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
/// PWT and PCD select a PAT entry: 3 (both set) is uncacheable, 2 (PCD) is uncacheable unless the MTRRs say
/// otherwise, with the PAT's reset value (the manual, "Programming the PAT").
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const NO_EXECUTE: u64 = 1 << 63;

/// Intel's layout of paging-structure entries: see "4-Level Paging and 5-Level Paging" in the manual.
#[derive(Debug, Clone, Copy)]
pub struct Ia32eLayout;

impl Intel for Ia32eLayout {
    const PRESENT: u64 = PRESENT;
    const TABLE: u64 = PRESENT | WRITABLE;
    const LEAF: u64 = PRESENT;
}

/// The hypervisor's permissions on its own pages. Loads are always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ia32ePermissions {
    /// Stores.
    pub write: bool,
    /// Instruction fetches.
    pub execute: bool,
}

impl Ia32ePermissions {
    /// Constants.
    pub const READ: Self = Self { write: false, execute: false };
    /// Data.
    pub const READ_WRITE: Self = Self { write: true, execute: false };
    /// Code.
    pub const CODE: Self = Self { write: false, execute: true };
    /// Code and data of another program ([`Foreign`](super::Foreign)).
    pub const ALL: Self = Self { write: true, execute: true };
}

/// The format of the hypervisor's own tables: supervisor pages, CR0.WP and IA32_EFER.NXE set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ia32e {
    /// The level of the largest pages: 1 if the processor supports 1 GiB pages, else 2.
    pub largest: Level,
}

impl Format for Ia32e {
    type Layout = Ia32eLayout;
    type Permissions = Ia32ePermissions;

    /// W^X: no page is both writable and executable.
    fn supports(&self, permissions: Ia32ePermissions) -> bool {
        !(permissions.write && permissions.execute)
    }

    fn encode(&self, attributes: Attributes<Ia32ePermissions>) -> u64 {
        let memory = match attributes.memory {
            MemoryType::Normal => 0,
            MemoryType::NonCacheable => CACHE_DISABLE,
            MemoryType::Device => CACHE_DISABLE | WRITE_THROUGH,
        };
        // Set in advance: no page walk has to write.
        self.with_permissions(memory | ACCESSED | DIRTY, attributes.permissions)
    }

    fn decode(&self, descriptor: u64) -> Attributes<Ia32ePermissions> {
        let memory = match (descriptor & CACHE_DISABLE != 0, descriptor & WRITE_THROUGH != 0) {
            (false, _) => MemoryType::Normal,
            (true, false) => MemoryType::NonCacheable,
            (true, true) => MemoryType::Device,
        };
        let permissions = Ia32ePermissions { write: descriptor & WRITABLE != 0, execute: descriptor & NO_EXECUTE == 0 };
        Attributes { memory, permissions }
    }

    fn with_permissions(&self, descriptor: u64, permissions: Ia32ePermissions) -> u64 {
        let write = if permissions.write { WRITABLE } else { 0 };
        let execute = if permissions.execute { 0 } else { NO_EXECUTE };
        descriptor & !(WRITABLE | NO_EXECUTE) | write | execute
    }

    fn largest(&self) -> Level {
        self.largest
    }

    // The processor sets the flag itself.
    fn is_accessed(&self, _: u64) -> bool {
        true
    }
}
