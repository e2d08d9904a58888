//! AMD's second stage: nested paging, whose tables have the format of a first stage in long mode. Here "the manual" is the
//! AMD64 Architecture Programmer's Manual, Volume 2.

use super::Level;
use super::ept::EptPermissions;
use super::format::{Attributes, Format};
use super::ia32e::{Ia32e, Ia32ePermissions};
use super::intel::Intel;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
/// All of a guest's accesses count as those of a user ("Nested Paging and VMRUN/#VMEXIT").
const USER: u64 = 1 << 2;

/// The layout of nested page tables.
#[derive(Debug, Clone, Copy)]
pub struct NptLayout;

impl Intel for NptLayout {
    const PRESENT: u64 = PRESENT;
    const TABLE: u64 = PRESENT | WRITABLE | USER;
    const LEAF: u64 = PRESENT | USER;
}

/// The format of nested page tables; EFER.NXE of the host is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Npt {
    /// The level of the largest pages: 1 if the processor supports 1 GiB pages, else 2.
    pub largest: Level,
}

impl Npt {
    /// The format of a first stage with these pages, whose attributes have the same encoding.
    const fn first_stage(self) -> Ia32e {
        Ia32e { largest: self.largest }
    }
}

const fn to_first_stage(EptPermissions { write, execute }: EptPermissions) -> Ia32ePermissions {
    Ia32ePermissions { write, execute }
}

impl Format for Npt {
    type Layout = NptLayout;
    type Permissions = EptPermissions;

    fn supports(&self, _: EptPermissions) -> bool {
        true
    }

    /// The guest's PAT combines with the memory type ("Combining Memory Types, MTRRs").
    fn encode(&self, Attributes { memory, permissions }: Attributes<EptPermissions>) -> u64 {
        self.first_stage().encode(Attributes { memory, permissions: to_first_stage(permissions) })
    }

    fn decode(&self, descriptor: u64) -> Attributes<EptPermissions> {
        let Attributes { memory, permissions: Ia32ePermissions { write, execute } } = self.first_stage().decode(descriptor);
        Attributes { memory, permissions: EptPermissions { write, execute } }
    }

    fn with_permissions(&self, descriptor: u64, permissions: EptPermissions) -> u64 {
        self.first_stage().with_permissions(descriptor, to_first_stage(permissions))
    }

    fn largest(&self) -> Level {
        self.largest
    }

    // The processor sets the flag itself.
    fn is_accessed(&self, _: u64) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::format::{Entry, Layout, MemoryType};

    #[test]
    fn entries_are_a_users() {
        let format = Npt { largest: Level::L1 };
        let permissions = EptPermissions { write: true, execute: true };
        let bits = format.encode(Attributes { memory: MemoryType::Normal, permissions });
        // Present, writable, user, accessed, dirty, large.
        assert_eq!(NptLayout::leaf_descriptor(Level::L2, 0x4020_0000, bits), 0x4020_00e7);
        assert_eq!(NptLayout::table_descriptor(Level::L0, 0x1000), 0x1007);
        assert_eq!(NptLayout::entry(Level::L2, 0x4020_00e7), Entry::Leaf(0x4020_0000));
        let tracked = EptPermissions { write: false, ..permissions };
        let changed = format.with_permissions(0x4020_00e7, tracked);
        assert_eq!(changed, 0x4020_00e5);
        assert_eq!(format.decode(changed), Attributes { memory: MemoryType::Normal, permissions: tracked });
    }
}
