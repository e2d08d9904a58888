//! Resolution of an L2 access that found no translation in the shadow, or insufficient permissions.

use super::format::{LeafSize, ShadowPermissions};
use super::stage2::Stage2;
use super::walk::{GuestMemory, Leaf, WalkFault, WalkFaultKind};
use stile_paging::PAGE_SIZE;
use stile_paging::table::{self, Attributes, MemoryType, Stage2Permissions, Translation};
use stile_sysreg::syndrome::{Ec, Esr};

/// The permission that an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To read.
    Read,
    /// To write.
    Write,
    /// To execute, which takes permission to read as well.
    Execute,
}

impl Need {
    /// Returns the permission needed by the access of an instruction or data abort with this syndrome. A walk of L2's
    /// first stage reads, and so does cache maintenance, regardless of WnR. The exception is DC IVAC, which needs permission to
    /// write (Arm ARM, DC IVAC), and is the only one with a permission fault on a readable page.
    pub fn of(esr: Esr) -> Self {
        if esr.ec() == Ec::INSTRUCTION_ABORT_LOWER {
            return if esr.instruction_abort().s1ptw() { Self::Read } else { Self::Execute };
        }
        let abort = esr.data_abort();
        let writes = abort.wnr() && (!abort.cm() || abort.fault().is_permission());
        if writes && !abort.s1ptw() { Self::Write } else { Self::Read }
    }

    pub(crate) const fn is_met(self, access: Stage2Permissions) -> bool {
        match self {
            Self::Read => access.read,
            Self::Write => access.write,
            Self::Execute => access.execute && access.read,
        }
    }
}

/// A mapping to add to the shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// From L2 addresses to the machine's.
    pub shadow: table::Mapping<ShadowPermissions>,
    /// L1's physical address of the first byte: the output of L1's stage, and the input of L0's.
    pub l1: u64,
}

/// The resolution of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// L1 denies it: forward the abort to L1 with this fault.
    Forward(WalkFault),
    /// Both stages allow it: add this mapping to the shadow ([`Pool::map`](super::Pool::map)), and L2
    /// retries.
    Map(Mapping),
    /// L1 allows it, but L0 has no mapping or denies it: an access to this L1 physical address, such as an
    /// emulated device that L1 assigned to L2.
    Absent {
        /// L1's physical address.
        address: u64,
    },
}

/// Resolves an access of L2 to its physical address `ipa`. `host` is L0's own second stage for L1, which
/// translates L1 physical addresses.
pub fn resolve(
    stage2: &Stage2,
    memory: &impl GuestMemory,
    host: impl FnOnce(u64) -> Option<Translation<Stage2Permissions>>,
    ipa: u64,
    need: Need,
) -> Resolution {
    let leaf = match stage2.walk(memory, ipa) {
        Ok(leaf) => leaf,
        Err(fault) => return Resolution::Forward(fault),
    };
    if !need.is_met(leaf.access) {
        return Resolution::Forward(WalkFault { kind: WalkFaultKind::Permission, level: leaf.level });
    }
    match host(leaf.output) {
        Some(below) if need.is_met(below.attributes.permissions) => Resolution::Map(combine(ipa, &leaf, &below)),
        _ => Resolution::Absent { address: leaf.output },
    }
}

/// Returns the largest mapping around `ipa` within both L1's and L0's entry, with the permissions that both grant.
fn combine(ipa: u64, leaf: &Leaf, below: &Translation<Stage2Permissions>) -> Mapping {
    let size = (1u64 << leaf.shift).min(below.level.size()).max(PAGE_SIZE);
    let start = |address: u64| address & !(size - 1);
    let (l1, l0) = (leaf.access, below.attributes.permissions);
    let attributes = Attributes {
        memory: weaker(leaf.memory, below.attributes.memory),
        permissions: ShadowPermissions {
            access: Stage2Permissions { read: l1.read && l0.read, write: l1.write && l0.write, execute: l1.execute && l0.execute },
            leaf: LeafSize::from_shift(leaf.shift),
        },
    };
    Mapping { shadow: table::Mapping { address: start(ipa), output: start(below.output), size, attributes }, l1: start(leaf.output) }
}

/// Combines the memory types of L1's and L0's second stages by the rule for stages 1 and 2: Arm ARM, "Combining stage 1 and
/// stage 2 memory type attributes".
const fn weaker(a: MemoryType, b: MemoryType) -> MemoryType {
    match (a, b) {
        (MemoryType::Device, _) | (_, MemoryType::Device) => MemoryType::Device,
        (MemoryType::NonCacheable, _) | (_, MemoryType::NonCacheable) => MemoryType::NonCacheable,
        (MemoryType::Normal, MemoryType::Normal) => MemoryType::Normal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_of_data_aborts() {
        const DATA_ABORT: u64 = 0x24 << 26;
        const TRANSLATION: u64 = 7;
        const PERMISSION: u64 = 0xf;
        const WNR: u64 = 1 << 6;
        const S1PTW: u64 = 1 << 7;
        const CM: u64 = 1 << 8;
        let need = |iss| Need::of(Esr(DATA_ABORT | iss));
        assert_eq!(need(TRANSLATION), Need::Read);
        assert_eq!(need(TRANSLATION | WNR), Need::Write);
        assert_eq!(need(PERMISSION | WNR), Need::Write);
        assert_eq!(need(PERMISSION | WNR | S1PTW), Need::Read, "a walk");
        assert_eq!(need(TRANSLATION | WNR | CM), Need::Read, "any maintenance");
        assert_eq!(need(PERMISSION | WNR | CM), Need::Write, "DC IVAC of what is read-only");
        assert_eq!(need(PERMISSION | WNR | CM | S1PTW), Need::Read, "maintenance, but for its walk");
    }
}
