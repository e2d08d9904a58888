//! Intel's second stage: extended page tables. Here "the manual" is the Intel 64 and IA-32 Architectures
//! Software Developer's Manual.

use super::Level;
use super::format::{Attributes, Format, MemoryType};
use super::intel::Intel;

/// Bits 2 to 0: read, write and execute access. An entry with all three clear is not present.
const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const ACCESS: u64 = READ | WRITE | EXECUTE;
/// Bits 5 to 3: the memory type of a page.
const TYPE: u64 = 0b111 << 3;
const UNCACHEABLE: u64 = 0 << 3;
const WRITE_BACK: u64 = 6 << 3;
/// Bit 6: ignore the guest's PAT.
const IGNORE_PAT: u64 = 1 << 6;

/// Intel's layout of EPT entries: see "The Extended Page Table Mechanism (EPT)" in the manual.
#[derive(Debug, Clone, Copy)]
pub struct EptLayout;

impl Intel for EptLayout {
    const PRESENT: u64 = ACCESS;
    const TABLE: u64 = ACCESS;
    const LEAF: u64 = 0;
}

/// A guest's permissions on a page. Its own tables may restrict them further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EptPermissions {
    /// Stores. Loads are always allowed: an entry without read access is a misconfiguration with write
    /// access, and execute-only is optional.
    pub write: bool,
    /// Instruction fetches.
    pub execute: bool,
}

impl EptPermissions {
    /// All accesses.
    pub const ALL: Self = Self { write: true, execute: true };
}

/// The format of extended page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ept {
    /// The level of the largest pages: 1 if the processor supports 1 GiB pages, else 2.
    pub largest: Level,
}

impl Format for Ept {
    type Layout = EptLayout;
    type Permissions = EptPermissions;

    fn supports(&self, _: EptPermissions) -> bool {
        true
    }

    fn encode(&self, attributes: Attributes<EptPermissions>) -> u64 {
        let memory = match attributes.memory {
            // The guest's PAT could only slow its own RAM down.
            MemoryType::Normal => WRITE_BACK | IGNORE_PAT,
            // The guest's PAT may select write combining, the equivalent of non-cacheable RAM.
            MemoryType::NonCacheable => UNCACHEABLE,
            MemoryType::Device => UNCACHEABLE | IGNORE_PAT,
        };
        self.with_permissions(memory, attributes.permissions)
    }

    fn decode(&self, descriptor: u64) -> Attributes<EptPermissions> {
        let memory = match (descriptor & TYPE, descriptor & IGNORE_PAT != 0) {
            (WRITE_BACK, _) => MemoryType::Normal,
            (_, false) => MemoryType::NonCacheable,
            (_, true) => MemoryType::Device,
        };
        let permissions = EptPermissions { write: descriptor & WRITE != 0, execute: descriptor & EXECUTE != 0 };
        Attributes { memory, permissions }
    }

    fn with_permissions(&self, descriptor: u64, permissions: EptPermissions) -> u64 {
        let write = if permissions.write { WRITE } else { 0 };
        let execute = if permissions.execute { EXECUTE } else { 0 };
        descriptor & !ACCESS | READ | write | execute
    }

    fn largest(&self) -> Level {
        self.largest
    }

    // Accessed and dirty flags are not enabled in the EPT pointer.
    fn is_accessed(&self, _: u64) -> bool {
        true
    }
}
