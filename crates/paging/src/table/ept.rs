//! Intel's second stage: extended page tables. "The manual" is here the Intel 64 and IA-32 Architectures Software Developer's Manual.

use super::Level;
use super::format::{Attributes, Format, MemoryType};
use super::intel::Intel;

/// Bits 2 to 0: read, write and execute access. An entry with none of them is not present.
const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const ACCESS: u64 = READ | WRITE | EXECUTE;
/// Bits 5 to 3: the memory type of a page.
const TYPE: u64 = 0b111 << 3;
const UNCACHEABLE: u64 = 0 << 3;
const WRITE_BACK: u64 = 6 << 3;
/// Bit 6: the guest's own memory type (PAT) counts for nothing.
const IGNORE_PAT: u64 = 1 << 6;

/// Intel's layout of EPT entries: see "The Extended Page Table Mechanism (EPT)" in the manual.
#[derive(Debug, Clone, Copy)]
pub struct EptLayout;

impl Intel for EptLayout {
    const PRESENT: u64 = ACCESS;
    const TABLE: u64 = ACCESS;
    const LEAF: u64 = 0;
}

/// What a guest may do with a page. Its own tables may allow less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EptPermissions {
    /// Stores. Loads are always allowed: an entry that forbids them would have to forbid all.
    pub write: bool,
    /// Instruction fetches.
    pub execute: bool,
}

impl EptPermissions {
    /// Everything.
    pub const ALL: Self = Self { write: true, execute: true };
}

/// The format of extended page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ept {
    /// The level of the largest pages: 1 where the processor has those of 1 GiB, or else 2.
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
            // What the guest's PAT says would only slow its own RAM down.
            MemoryType::Normal => WRITE_BACK | IGNORE_PAT,
            // Write combining, which non-cacheable RAM would be, is left to the guest's PAT.
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

    // Accessed and dirty flags are not switched on in the EPT pointer.
    fn is_accessed(&self, _: u64) -> bool {
        true
    }
}
