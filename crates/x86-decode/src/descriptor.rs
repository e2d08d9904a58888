//! Segment descriptors ("Segment Descriptors").

/// Access rights.
pub(crate) const ACCESSED: u32 = 1;
pub(crate) const READABLE_OR_WRITABLE: u32 = 1 << 1;
pub(crate) const CONFORMING: u32 = 1 << 2;
pub(crate) const CODE: u32 = 1 << 3;
/// S: a code or data segment, not a system segment.
pub(crate) const SEGMENT: u32 = 1 << 4;
pub(crate) const PRESENT: u32 = 1 << 7;
pub(crate) const LONG: u32 = 1 << 13;
pub(crate) const BIG: u32 = 1 << 14;
pub(crate) const UNUSABLE: u32 = 1 << 16;

/// System segment types.
pub(crate) const LDT: u32 = 2;
pub(crate) const TASK_16: u32 = 1;
pub(crate) const TASK: u32 = 9;
pub(crate) const BUSY: u32 = 2;
/// The busy bit in a descriptor's eight bytes.
pub(crate) const BUSY_ENTRY: u64 = (BUSY as u64) << 40;

/// A descriptor in a segment register's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Base address.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u32,
    /// Access rights as in the VMCS ("Guest Register State").
    pub rights: u32,
    /// The descriptor's eight bytes, and their linear address.
    pub(crate) entry: u64,
    pub(crate) at: u64,
}

impl Descriptor {
    /// Returns the result of loading a null selector at this privilege level.
    pub(crate) const fn null(level: u8) -> Self {
        Self { base: 0, limit: 0, rights: UNUSABLE | (level as u32) << 5, entry: 0, at: 0 }
    }

    /// Returns a placeholder for CS during a task switch, before its descriptor is loaded: CS must always be a code segment.
    pub(crate) const fn no_code(level: u8) -> Self {
        Self { rights: PRESENT | SEGMENT | CODE | READABLE_OR_WRITABLE | ACCESSED | (level as u32) << 5, ..Self::null(level) }
    }

    /// Returns the segment of a selector in virtual-8086 mode.
    pub(crate) const fn virtual_8086(selector: u16) -> Self {
        const RIGHTS: u32 = PRESENT | SEGMENT | READABLE_OR_WRITABLE | ACCESSED | 3 << 5;
        Self { base: (selector as u64) << 4, limit: 0xffff, rights: RIGHTS, ..Self::null(3) }
    }

    pub(crate) const fn new(entry: u64, at: u64) -> Self {
        let base = entry >> 16 & 0xff_ffff | entry >> 56 << 24;
        let limit = (entry & 0xffff | entry >> 32 & 0xf_0000) as u32;
        let limit = if entry >> 55 & 1 != 0 { limit << 12 | 0xfff } else { limit };
        let rights = (entry >> 40) as u32 & 0xf0ff;
        Self { base, limit, rights, entry, at }
    }

    pub(crate) const fn is(&self, bits: u32) -> bool {
        self.rights & bits == bits
    }

    pub(crate) const fn level(&self) -> u8 {
        (self.rights >> 5 & 3) as u8
    }

    pub(crate) const fn is_present(&self) -> bool {
        self.is(PRESENT)
    }

    /// Whether it is a 16-bit or 32-bit TSS with this busy flag.
    pub(crate) const fn is_task(&self, busy: bool) -> bool {
        let kind = self.rights & 0x1f;
        matches!(kind & !BUSY, TASK | TASK_16) && (kind & BUSY != 0) == busy
    }

    pub(crate) const fn busy(self) -> Self {
        Self { rights: self.rights | BUSY, ..self }
    }

    /// Whether it is a present LDT.
    pub(crate) const fn is_ldt(&self) -> bool {
        self.rights & 0x1f == LDT && self.is_present()
    }

    /// Whether it is 64-bit code.
    pub(crate) const fn is_long(&self) -> bool {
        self.is(LONG)
    }
}
