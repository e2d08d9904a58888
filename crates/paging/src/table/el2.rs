//! First-stage descriptors of the hypervisor's own translation regime.

use super::format::{Attributes, Format, MemoryType};
use super::vmsa::Vmsa;
use crate::registers::MairIndex;
use bitfield_struct::bitfield;

/// Outer shareable, as encoded in `SH`.
const OUTER_SHAREABLE: u8 = 0b10;
/// Inner shareable, as encoded in `SH`.
const INNER_SHAREABLE: u8 = 0b11;

/// Attributes of a stage 1 page or block. See "Stage 1 Block and Page descriptors" under "VMSAv8-64
/// descriptor formats" in the manual.
#[bitfield(u64)]
struct Descriptor {
    #[bits(2)]
    _kind: u8,
    #[bits(3)]
    attr_index: u8,
    _ns: bool,
    /// `AP[1]`: EL0 may access the page too. RES1 in a regime of one privilege level.
    ap1: bool,
    /// `AP[2]`: read-only.
    ap2: bool,
    #[bits(2)]
    sh: u8,
    af: bool,
    /// Not global: the entry belongs to the current ASID. RES0 in a regime of one privilege level.
    ng: bool,
    #[bits(36)]
    _address: u64,
    #[bits(5)]
    _res: u8,
    /// Privileged execute never. RES0 in a regime of one privilege level.
    pxn: bool,
    /// Unprivileged execute never, or `XN` in a regime of one privilege level.
    uxn: bool,
    #[bits(9)]
    _high: u16,
}

/// Permissions of a page of the hypervisor's address space. Loads are always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct El2Permissions {
    /// Stores.
    pub write: bool,
    /// Instruction fetches: at EL0 for a user page, else at EL2.
    pub execute: bool,
    /// A page of a program at the host's EL0 (with `HCR_EL2.{E2H, TGE}` both 1), and of its ASID only.
    /// [`El2::Nvhe`] has none.
    pub user: bool,
}

impl El2Permissions {
    /// The hypervisor's code.
    pub const CODE: Self = Self { write: false, execute: true, user: false };
    /// The hypervisor's constants.
    pub const READ: Self = Self { write: false, execute: false, user: false };
    /// The hypervisor's data.
    pub const READ_WRITE: Self = Self { write: true, execute: false, user: false };
    /// Code and data of another program at EL2. SCTLR_EL2.WXN must be clear while it runs.
    pub const ALL: Self = Self { write: true, execute: true, user: false };
}

/// The format of the hypervisor's own first-stage tables.
///
/// Replacing a block by a table, or the reverse, unmaps the range for a moment. In live tables the range must
/// not contain the code that makes the change, its stack, or the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum El2 {
    /// `HCR_EL2.E2H` is 1: the EL2&0 regime, with two privilege levels.
    Vhe,
    /// `HCR_EL2.E2H` is 0: the EL2 regime, with one.
    Nvhe,
}

impl Format for El2 {
    type Layout = Vmsa;
    type Permissions = El2Permissions;

    fn supports(&self, permissions: El2Permissions) -> bool {
        *self == Self::Vhe || !permissions.user
    }

    fn encode(&self, attributes: Attributes<El2Permissions>) -> u64 {
        let (index, sh) = match attributes.memory {
            MemoryType::Normal => (MairIndex::Normal, INNER_SHAREABLE),
            MemoryType::NonCacheable => (MairIndex::NonCacheable, OUTER_SHAREABLE),
            MemoryType::Device => (MairIndex::Device, OUTER_SHAREABLE),
        };
        let descriptor = Descriptor::new().with_attr_index(index as u8).with_sh(sh).with_af(true);
        self.with_permissions(descriptor.into(), attributes.permissions)
    }

    fn decode(&self, descriptor: u64) -> Attributes<El2Permissions> {
        let descriptor = Descriptor::from(descriptor);
        let user = *self == Self::Vhe && descriptor.ap1();
        let never = if *self == Self::Vhe && !user { descriptor.pxn() } else { descriptor.uxn() };
        Attributes {
            memory: match descriptor.attr_index() {
                index if index == MairIndex::Normal as u8 => MemoryType::Normal,
                index if index == MairIndex::NonCacheable as u8 => MemoryType::NonCacheable,
                _ => MemoryType::Device,
            },
            permissions: El2Permissions { write: !descriptor.ap2(), execute: !never, user },
        }
    }

    fn with_permissions(&self, descriptor: u64, permissions: El2Permissions) -> u64 {
        let El2Permissions { write, execute, user } = permissions;
        let descriptor = Descriptor::from(descriptor).with_ap2(!write);
        let descriptor = match self {
            // A page executable at one privilege level is not executable at the other.
            Self::Vhe => descriptor.with_ap1(user).with_ng(user).with_pxn(user || !execute).with_uxn(!user || !execute),
            Self::Nvhe => descriptor.with_ap1(true).with_uxn(!execute),
        };
        descriptor.into()
    }

    fn needs_break(&self, old: u64, new: u64) -> bool {
        Descriptor::from(old).ng() != Descriptor::from(new).ng()
    }

    fn is_accessed(&self, descriptor: u64) -> bool {
        Descriptor::from(descriptor).af()
    }
}
