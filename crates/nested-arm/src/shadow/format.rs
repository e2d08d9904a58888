//! Shadow descriptors: second-stage descriptors, with a note in the software-defined bits.

use stile_paging::table::{Attributes, Format, Stage2, Stage2Permissions, Vmsa};

/// Bits 58 to 55 of a descriptor are ignored by the hardware: Arm ARM, "VMSAv8-64 descriptor formats".
const NOTE_SHIFT: u32 = 55;
const NOTE: u64 = 0xf << NOTE_SHIFT;

/// The size of the L1 page or block to which a shadow entry belongs. L1 may invalidate it by any address in
/// it, and all of it must then be unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LeafSize {
    /// 4 KiB.
    K4 = 1,
    /// 16 KiB.
    K16,
    /// 64 KiB.
    K64,
    /// 2 MiB.
    M2,
    /// 32 MiB.
    M32,
    /// 512 MiB.
    M512,
    /// 1 GiB.
    G1,
}

impl LeafSize {
    const ALL: [Self; 7] = [Self::K4, Self::K16, Self::K64, Self::M2, Self::M32, Self::M512, Self::G1];

    /// log2 of the size in bytes.
    pub const fn shift(self) -> u32 {
        match self {
            Self::K4 => 12,
            Self::K16 => 14,
            Self::K64 => 16,
            Self::M2 => 21,
            Self::M32 => 25,
            Self::M512 => 29,
            Self::G1 => 30,
        }
    }

    /// The smallest size of at least 2^`shift` bytes, or the largest size.
    pub const fn from_shift(shift: u32) -> Self {
        match shift {
            0..=12 => Self::K4,
            13..=14 => Self::K16,
            15..=16 => Self::K64,
            17..=21 => Self::M2,
            22..=25 => Self::M32,
            26..=29 => Self::M512,
            _ => Self::G1,
        }
    }

    /// Decodes a descriptor's note. Shadow descriptors always have one; the fallback, the largest size, is
    /// conservative.
    fn from_note(descriptor: u64) -> Self {
        let code = (descriptor & NOTE) >> NOTE_SHIFT;
        code.checked_sub(1).and_then(|at| Self::ALL.get(at as usize)).copied().unwrap_or(Self::G1)
    }
}

/// L2's permissions on a page, and the size of L1's entry for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowPermissions {
    /// The permissions that both stages grant.
    pub access: Stage2Permissions,
    /// The size of L1's entry.
    pub leaf: LeafSize,
}

/// The format of shadow tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow(pub Stage2);

impl Format for Shadow {
    type Layout = Vmsa;
    type Permissions = ShadowPermissions;

    fn supports(&self, permissions: ShadowPermissions) -> bool {
        self.0.supports(permissions.access)
    }

    fn encode(&self, Attributes { memory, permissions }: Attributes<ShadowPermissions>) -> u64 {
        let plain = self.0.encode(Attributes { memory, permissions: permissions.access });
        plain & !NOTE | (permissions.leaf as u64) << NOTE_SHIFT
    }

    fn decode(&self, descriptor: u64) -> Attributes<ShadowPermissions> {
        let Attributes { memory, permissions } = self.0.decode(descriptor);
        Attributes { memory, permissions: ShadowPermissions { access: permissions, leaf: LeafSize::from_note(descriptor) } }
    }

    fn with_permissions(&self, descriptor: u64, permissions: ShadowPermissions) -> u64 {
        let plain = self.0.with_permissions(descriptor, permissions.access);
        plain & !NOTE | (permissions.leaf as u64) << NOTE_SHIFT
    }

    fn is_accessed(&self, descriptor: u64) -> bool {
        self.0.is_accessed(descriptor)
    }
}
