//! Memory as all ways to start describe it.

/// What a range of guest-physical addresses is; the numbers are those of all the formats ("Address Range Types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Memory to be used.
    Memory = 1,
    /// Not to be used.
    Reserved = 2,
    /// ACPI tables, to be used when they have been read.
    Acpi = 3,
}

/// A range of guest-physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// What it is.
    pub kind: Kind,
}

/// A file that was loaded beside the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// The guest-physical address of its first byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// The guest-physical address of its command line, ended by a zero; 0 for none.
    pub command_line: u64,
}
