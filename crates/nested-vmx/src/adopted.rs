//! Fields that one L1 accesses at most entries of its L2s, and KVM does not: they are shadowed for this L1, beside those of
//! [`crate::shadowed`].
//!
//! An access that exits costs some hundred times what a shadowed field costs at an exit of L2 and an entry. Accesses that exit are counted:
//! KVM makes none at most entries, Xen 4.20 reads GUEST_RSP, GUEST_CR3 and GUEST_CR4 after each exit, and writes GUEST_RSP before each
//! entry.

use crate::field::{Field, Kind, Width};
use crate::fields::{COUNT, FIELDS};
use crate::shadowed;

/// The most fields that are adopted, which bounds what an exit of L2 costs.
pub const MOST: usize = 4;

/// The number of entries after which accesses are compared with them.
const WINDOW: u64 = 1024;

/// The accesses that an adopted field allows without an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// VMREAD.
    Read,
    /// VMREAD and VMWRITE.
    Write,
}

/// The access that a field can have if it is adopted. `None`: it cannot be.
pub fn access(field: Field) -> Option<Access> {
    // The second encoding of a 64-bit field exits.
    if shadowed::contains(field) || field.slot().is_none() || matches!(field.width(), Width::Bits64) {
        return None;
    }
    match field {
        // An instruction that fails stores it; L2's control registers are composed by the masks, and the index is the processor's.
        Field::INSTRUCTION_ERROR | Field::CR0_MASK | Field::CR4_MASK | Field::GUEST_SMBASE | Field::PAGE_MODIFICATION_LOG_INDEX => None,
        // Each exit saves it.
        Field::GUEST_RSP => Some(Access::Write),
        // Other state of L2 is saved when it is asked for, and must not replace what L1 has written since.
        _ if matches!(field.kind(), Kind::Guest | Kind::ReadOnly) => Some(Access::Read),
        _ => Some(Access::Write),
    }
}

/// The adopted fields of an L1's virtual processor.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// Fields with their slots, in the order of adoption.
    fields: [Option<(Field, usize, Access)>; MOST],
    /// Accesses that exited since the window began, by slot.
    accesses: [u16; COUNT],
    /// L1's entries of L2s when the window began.
    since: Option<u64>,
}

impl Default for Adopted {
    fn default() -> Self {
        Self::new()
    }
}

impl Adopted {
    /// None, and nothing counted.
    pub const fn new() -> Self {
        Self { fields: [None; MOST], accesses: [0; COUNT], since: None }
    }

    /// The adopted fields with their slots. The position of each stays.
    pub fn fields(&self) -> impl Iterator<Item = (Field, usize, Access)> + use<> {
        self.fields.into_iter().flatten()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.fields[0].is_none()
    }

    /// Whether this field is adopted.
    pub fn contains(&self, field: Field) -> bool {
        self.fields().any(|(adopted, ..)| adopted == field)
    }

    /// Counts an access that exited, after this many `entries` of L2s by L1. Returns whether it is time to [`adopt`](Self::adopt).
    pub fn count(&mut self, field: Field, entries: u64) -> bool {
        if let Some(accesses) = field.slot().and_then(|slot| self.accesses.get_mut(slot)) {
            *accesses = accesses.saturating_add(1);
        }
        entries.wrapping_sub(*self.since.get_or_insert(entries)) >= WINDOW
    }

    /// Adopts the fields that L1 accessed at half of the entries or more since the last call, as far as there is room, and begins anew.
    /// Returns whether there are new ones.
    pub fn adopt(&mut self, entries: u64) -> bool {
        let passed = entries.wrapping_sub(self.since.replace(entries).unwrap_or(entries));
        let mut is_new = false;
        for (slot, accesses) in core::mem::replace(&mut self.accesses, [0; COUNT]).into_iter().enumerate() {
            let Some(row) = FIELDS.get(slot).filter(|_| u64::from(accesses) * 2 >= passed) else { continue };
            let Some(access) = access(row.field).filter(|_| !self.contains(row.field)) else { continue };
            if let Some(free) = self.fields.iter_mut().find(|field| field.is_none()) {
                *free = Some((row.field, slot, access));
                is_new = true;
            }
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// An L1 that makes these accesses at each entry, and does nothing else.
    fn after(entries: u64, accesses: &[Field]) -> Adopted {
        let mut adopted = Adopted::new();
        for entry in 0..=entries {
            for &field in accesses {
                if !adopted.contains(field) && adopted.count(field, entry) {
                    adopted.adopt(entry);
                }
            }
        }
        adopted
    }

    #[test]
    fn what_xen_accesses_at_each_entry_is_adopted() {
        let of_xen = [Field::GUEST_RSP, Field::GUEST_CR3, Field::GUEST_CR4, Field::GUEST_RSP];
        assert!(after(WINDOW - 1, &of_xen).is_empty());
        let mut fields: Vec<_> = after(WINDOW, &of_xen).fields().map(|(field, _, access)| (field.0, access)).collect();
        fields.sort_unstable_by_key(|(field, _)| *field);
        let [cr3, cr4, rsp] = [Field::GUEST_CR3, Field::GUEST_CR4, Field::GUEST_RSP].map(|field| field.0);
        assert_eq!(fields, [(cr3, Access::Read), (cr4, Access::Read), (rsp, Access::Write)]);
    }

    /// A guest hypervisor sets a VMCS up by some hundred VMWRITEs, and a device's emulation reads fields now and then.
    #[test]
    fn rare_accesses_are_not() {
        let mut adopted = Adopted::new();
        let all: Vec<_> = FIELDS.iter().map(|row| row.field).collect();
        for entries in (0..100 * WINDOW).step_by(3) {
            let field = if entries == 0 { Field::HOST_RIP } else { all[entries as usize % all.len()] };
            if adopted.count(field, entries) {
                adopted.adopt(entries);
            }
        }
        assert!(adopted.is_empty());
    }

    #[test]
    fn some_fields_never_are() {
        let shadowed = shadowed::ALL.map(|(field, _)| field);
        let never = [Field::CR0_MASK, Field::CR4_MASK, Field::INSTRUCTION_ERROR, Field::TSC_OFFSET, Field(0x6c3e)];
        assert!(shadowed.into_iter().chain(never).all(|field| access(field).is_none()));
    }

    proptest! {
        /// Compared with a plain model: of any counts, those of half the entries, in the order of their slots.
        #[test]
        fn those_of_half_the_entries_are_adopted(counts in prop::collection::vec((0..COUNT, 0_u64..2000), 0..8), passed in WINDOW..3000) {
            let mut adopted = Adopted::new();
            adopted.count(Field::TSC_OFFSET, 7);
            let mut expected = [0; COUNT];
            for &(slot, count) in &counts {
                expected[slot] += count;
                (0..count).for_each(|_| { adopted.count(FIELDS[slot].field, 7); });
            }
            let is_due = adopted.count(Field::TSC_OFFSET, 7 + passed);
            prop_assert!(is_due);
            let often = (0..COUNT).filter(|slot| expected[*slot] * 2 >= passed);
            let of_all: Vec<_> = often.filter_map(|slot| Some((FIELDS[slot].field, slot, access(FIELDS[slot].field)?))).take(MOST).collect();
            prop_assert_eq!(adopted.adopt(7 + passed), !of_all.is_empty());
            prop_assert_eq!(adopted.fields().collect::<Vec<_>>(), of_all);
        }
    }
}
