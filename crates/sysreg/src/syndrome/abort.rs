//! Syndromes of data and instruction aborts.

use bitfield_struct::bitfield;

/// The ISS of a data abort: Arm ARM, "ISS encoding for an exception from a Data Abort".
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct DataAbort {
    /// Data fault status code; see [`DataAbort::fault`].
    #[bits(6)]
    pub dfsc: u8,
    /// The access is a write. Also set for cache maintenance.
    pub wnr: bool,
    /// The fault is on the second stage's translation of a first-stage table's address.
    pub s1ptw: bool,
    /// The access is a cache maintenance or address translation instruction.
    pub cm: bool,
    /// External abort type.
    pub ea: bool,
    /// `FAR_EL2` is not valid.
    pub fnv: bool,
    /// Synchronous error type.
    #[bits(2)]
    pub set: u8,
    /// The access came from EL2 code run at EL1 (FEAT_NV2).
    pub vncr: bool,
    /// Acquire or release semantics.
    pub ar: bool,
    /// The register is 64 bits wide.
    pub sf: bool,
    /// The register's number, 0 to 31; 31 is the zero register.
    #[bits(5)]
    pub srt: u8,
    /// The loaded value is sign-extended.
    pub sse: bool,
    /// Base-2 logarithm of the access's size in bytes.
    #[bits(2)]
    pub sas: u8,
    /// `sas`, `sse`, `srt`, `sf` and `ar` are valid.
    pub isv: bool,
    #[bits(7)]
    __: u8,
}

impl DataAbort {
    /// Returns the fault of the access.
    #[inline]
    pub const fn fault(self) -> Fault {
        Fault::new(self.dfsc())
    }

    /// Whether this is cache maintenance by an address that is not mapped. (Address translation instructions fault in the
    /// second stage only for their table walk.)
    #[inline]
    pub const fn is_unmapped_maintenance(self) -> bool {
        self.cm() && !self.s1ptw() && self.fault().is_translation()
    }

    /// The access's size in bytes: 1, 2, 4 or 8. Valid if `isv` is.
    #[inline]
    pub const fn size(self) -> u64 {
        1 << self.sas()
    }

    /// Returns the register's value after a load when memory holds `raw`: cut to the access's size, and
    /// extended as the instruction asks. Valid if `isv` is.
    #[inline]
    pub const fn loaded_value(self, raw: u64) -> u64 {
        let unused = self.unused_bits();
        let top = raw << unused;
        let value = if self.sse() { (top as i64 >> unused) as u64 } else { top >> unused };
        // Writing a 32-bit register clears the upper half.
        if self.sf() { value } else { value as u32 as u64 }
    }

    /// Returns the value that a store writes when its register holds `raw`: cut to the access's size. Valid if
    /// `isv` is.
    #[inline]
    pub const fn store_value(self, raw: u64) -> u64 {
        let unused = self.unused_bits();
        raw << unused >> unused
    }

    /// Number of bits of a 64-bit register that the access doesn't use: 56, 48, 32 or 0.
    #[inline]
    const fn unused_bits(self) -> u32 {
        64 - (8 << self.sas() as u32)
    }
}

/// The ISS of an instruction abort: Arm ARM, "ISS encoding for an exception from an Instruction
/// Abort".
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct InstructionAbort {
    /// Instruction fault status code; see [`InstructionAbort::fault`].
    #[bits(6)]
    pub ifsc: u8,
    #[bits(1)]
    __: u8,
    /// The fault is on the second stage's translation of a first-stage table's address.
    pub s1ptw: bool,
    #[bits(1)]
    __: u8,
    /// External abort type.
    pub ea: bool,
    /// `FAR_EL2` is not valid.
    pub fnv: bool,
    /// Synchronous error type.
    #[bits(2)]
    pub set: u8,
    #[bits(19)]
    __: u32,
}

impl InstructionAbort {
    /// Returns the fault of the fetch.
    #[inline]
    pub const fn fault(self) -> Fault {
        Fault::new(self.ifsc())
    }
}

/// A fault status code, `DFSC` or `IFSC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault(u8);

/// Meaning of a fault status code, as far as a hypervisor tells faults apart. Levels are those of
/// the translation table walk, -1 to 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An address in a descriptor or table base register, or an input address that is not translated, exceeds the
    /// physical address size.
    AddressSize(i8),
    /// Nothing is mapped.
    Translation(i8),
    /// The entry's access flag is clear.
    AccessFlag(i8),
    /// The entry forbids the access.
    Permission(i8),
    /// The memory system reported an error on the access itself.
    External,
    /// The memory system reported an error on a translation table walk.
    ExternalOnWalk(i8),
    /// The address is misaligned.
    Alignment,
    /// The TLB holds more than one entry for the address.
    TlbConflict,
    /// An exclusive or atomic access to memory that doesn't support it.
    UnsupportedExclusiveOrAtomic,
    /// Another fault; its code.
    Other(u8),
}

impl Fault {
    /// A synchronous external abort, not on a translation table walk.
    pub const EXTERNAL: Self = Self(0b01_0000);

    /// The fault with this code, cut to six bits.
    #[inline]
    pub const fn new(bits: u8) -> Self {
        Self(bits & 0x3f)
    }

    /// The code, below 64.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether this is a translation fault at level 0 to 3. Accesses to emulated devices and to
    /// memory that is mapped on demand take it.
    #[inline]
    pub const fn is_translation(self) -> bool {
        self.0 & !3 == 0b00_0100
    }

    /// Whether this is a permission fault at level 0 to 3.
    #[inline]
    pub const fn is_permission(self) -> bool {
        self.0 & !3 == 0b00_1100
    }

    /// Returns the meaning of the code.
    pub const fn kind(self) -> FaultKind {
        let level = (self.0 & 3) as i8;
        match self.0 {
            0b00_0000..=0b00_0011 => FaultKind::AddressSize(level),
            0b00_0100..=0b00_0111 => FaultKind::Translation(level),
            0b00_1000..=0b00_1011 => FaultKind::AccessFlag(level),
            0b00_1100..=0b00_1111 => FaultKind::Permission(level),
            // Also with a parity or ECC error.
            0b01_0000 | 0b01_1000 => FaultKind::External,
            0b01_0100..=0b01_0111 | 0b01_1100..=0b01_1111 => FaultKind::ExternalOnWalk(level),
            0b01_0011 | 0b01_1011 => FaultKind::ExternalOnWalk(-1),
            0b10_0001 => FaultKind::Alignment,
            0b10_1001 => FaultKind::AddressSize(-1),
            0b10_1011 => FaultKind::Translation(-1),
            0b11_0000 => FaultKind::TlbConflict,
            0b11_0101 => FaultKind::UnsupportedExclusiveOrAtomic,
            other => FaultKind::Other(other),
        }
    }
}
