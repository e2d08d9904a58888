//! Second-stage descriptors.

use super::format::{Attributes, Format, MemoryType};
use super::vmsa::Vmsa;
use bitfield_struct::bitfield;

/// Outer shareable, as encoded in `SH`.
const OUTER_SHAREABLE: u8 = 0b10;
/// Inner shareable, as encoded in `SH`.
const INNER_SHAREABLE: u8 = 0b11;

/// Attributes of a stage 2 page or block. See "Stage 2 Block and Page descriptors" under "VMSAv8-64
/// descriptor formats" in the manual.
#[bitfield(u64)]
struct Descriptor {
    #[bits(2)]
    _kind: u8,
    #[bits(4)]
    mem_attr: u8,
    s2ap_read: bool,
    s2ap_write: bool,
    #[bits(2)]
    sh: u8,
    af: bool,
    _fnxs: bool,
    #[bits(36)]
    _address: u64,
    #[bits(5)]
    _res: u8,
    /// `XN[0]`: RES0 without FEAT_XNX; with it, 0 applies `XN[1]` to EL1 and EL0 alike.
    xn0: bool,
    /// `XN[1]`.
    xn: bool,
    #[bits(9)]
    _high: u16,
}

/// A guest's permissions on a page. Its own first stage may restrict them further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stage2Permissions {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Instruction fetches, at EL1 and EL0. Effective only with `read`.
    pub execute: bool,
}

impl Stage2Permissions {
    /// All accesses.
    pub const ALL: Self = Self { read: true, write: true, execute: true };
    /// Loads and stores.
    pub const READ_WRITE: Self = Self { read: true, write: true, execute: false };
    /// Loads and instruction fetches.
    pub const READ_EXECUTE: Self = Self { read: true, write: false, execute: true };
    /// Loads only.
    pub const READ: Self = Self { read: true, write: false, execute: false };
}

/// The format of second-stage tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stage2 {
    /// Whether the tables are used with `HCR_EL2.FWB` set (FEAT_S2FWB): the second stage then overrides the
    /// first stage's cacheability, and `MemAttr` has another encoding.
    pub forced_write_back: bool,
}

impl Stage2 {
    /// See "Stage 2 memory type and Cacheability attributes" in the manual: with FWB 0, outer attributes in
    /// the high half and inner ones in the low half; with FWB 1, a code of three bits.
    const fn mem_attr(self, memory: MemoryType) -> u8 {
        match (memory, self.forced_write_back) {
            (MemoryType::Normal, false) => 0b1111,
            (MemoryType::Normal, true) => 0b0110,
            (MemoryType::NonCacheable, _) => 0b0101,
            (MemoryType::Device, _) => 0b0001,
        }
    }

    /// The nearest memory type that this crate encodes.
    const fn memory_type(self, mem_attr: u8) -> MemoryType {
        match (self.forced_write_back, mem_attr) {
            (false, 0b0000..=0b0011) | (true, 0b0000..=0b0011 | 0b1000..=0b1011) => MemoryType::Device,
            (false, 0b1111) | (true, 0b0110 | 0b0111 | 0b1110 | 0b1111) => MemoryType::Normal,
            _ => MemoryType::NonCacheable,
        }
    }
}

impl Format for Stage2 {
    type Layout = Vmsa;
    type Permissions = Stage2Permissions;

    fn supports(&self, _: Stage2Permissions) -> bool {
        true
    }

    fn encode(&self, attributes: Attributes<Stage2Permissions>) -> u64 {
        // Hardware treats Device and non-cacheable memory as outer shareable for any `SH`.
        let sh = match attributes.memory {
            MemoryType::Normal => INNER_SHAREABLE,
            MemoryType::NonCacheable | MemoryType::Device => OUTER_SHAREABLE,
        };
        let descriptor = Descriptor::new().with_mem_attr(self.mem_attr(attributes.memory)).with_sh(sh).with_af(true);
        self.with_permissions(descriptor.into(), attributes.permissions)
    }

    fn decode(&self, descriptor: u64) -> Attributes<Stage2Permissions> {
        let descriptor = Descriptor::from(descriptor);
        Attributes {
            memory: self.memory_type(descriptor.mem_attr()),
            permissions: Stage2Permissions {
                read: descriptor.s2ap_read(),
                write: descriptor.s2ap_write(),
                // With FEAT_XNX, `XN[0]` set forbids one of the two exception levels.
                execute: !descriptor.xn() && !descriptor.xn0(),
            },
        }
    }

    fn with_permissions(&self, descriptor: u64, permissions: Stage2Permissions) -> u64 {
        Descriptor::from(descriptor)
            .with_s2ap_read(permissions.read)
            .with_s2ap_write(permissions.write)
            .with_xn0(false)
            .with_xn(!permissions.execute)
            .into()
    }

    fn is_accessed(&self, descriptor: u64) -> bool {
        Descriptor::from(descriptor).af()
    }
}
