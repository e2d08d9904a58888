//! A VMCS of L1.
//!
//! Stile works on its own copy: L1 can write to its VMCS region while the VMCS is active, which the SDM forbids ("Software Use of
//! Virtual-Machine Control Structures"), and must not change what has been checked. The region is read when the VMCS becomes current and
//! written when it ceases to be.
//!
//! The region's layout, in words of 64 bits ([`crate::capability::REVISION`] identifies it):
//!
//! | word | content |
//! | --- | --- |
//! | 0 | revision identifier, shadow-VMCS indicator (bit 31), VMX-abort indicator (bits 63:32) |
//! | 1 | launch state: 1 if launched |
//! | 8 and up | the fields, in the order of [`crate::fields::FIELDS`] |

use crate::controls::primary;
use crate::field::{Field, Kind};
use crate::fields::{COUNT, FIELDS};
use crate::group::Groups;
use crate::result::InstructionError;
use crate::set::FieldSet;

/// The shadow-VMCS indicator in the region's first word.
pub const SHADOW: u64 = 1 << 31;
/// The byte offset of the VMX-abort indicator in the region.
pub const ABORT_OFFSET: u64 = 4;
/// The word of the launch state.
pub const LAUNCH_WORD: usize = 1;
/// The word of the first field.
const FIRST_FIELD: usize = 8;
const _: () = assert!(FIRST_FIELD + COUNT <= 512, "a region has 4 KiB");

/// L1's VMCS, with the set of fields that changed since [`Vmcs12::take_changes`].
#[derive(Clone, Debug)]
pub struct Vmcs12 {
    /// Each value fits its field's width.
    values: [u64; COUNT],
    changed: FieldSet,
    groups: Groups,
    is_launched: bool,
}

/// Reason for which VMREAD or VMWRITE fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// No such field.
    Unsupported,
    /// VMWRITE to a read-only field.
    ReadOnly,
}

impl From<AccessError> for InstructionError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Unsupported => Self::UnsupportedField,
            AccessError::ReadOnly => Self::WriteReadOnly,
        }
    }
}

impl Default for Vmcs12 {
    fn default() -> Self {
        Self::new()
    }
}

impl Vmcs12 {
    /// All fields zero, all changed, clear.
    pub const fn new() -> Self {
        Self { values: [0; COUNT], changed: FieldSet::ALL, groups: Groups::ALL, is_launched: false }
    }

    /// Reads L1's region, word by word, when the VMCS becomes current. All fields count as changed.
    pub fn load(&mut self, mut word: impl FnMut(usize) -> u64) {
        self.is_launched = word(LAUNCH_WORD) & 1 != 0;
        for (slot, (value, row)) in self.values.iter_mut().zip(FIELDS).enumerate() {
            *value = word(FIRST_FIELD + slot) & row.field.width().mask();
        }
        self.touch();
    }

    /// Writes the fields and the launch state to L1's region, word by word.
    pub fn store(&self, mut write: impl FnMut(usize, u64)) {
        write(LAUNCH_WORD, u64::from(self.is_launched));
        for (slot, value) in self.values.iter().enumerate() {
            write(FIRST_FIELD + slot, *value);
        }
    }

    /// Whether VMLAUNCH has succeeded since the last VMCLEAR.
    pub const fn is_launched(&self) -> bool {
        self.is_launched
    }

    /// Sets the launch state.
    pub const fn set_launched(&mut self, is_launched: bool) {
        self.is_launched = is_launched;
    }

    /// Returns a field. Zero if it does not exist.
    #[inline(always)]
    pub fn get(&self, field: Field) -> u64 {
        field.slot().and_then(|slot| self.values.get(slot)).copied().unwrap_or(0)
    }

    /// Returns the field with this slot. Zero if it does not exist.
    #[inline(always)]
    pub fn get_slot(&self, slot: usize) -> u64 {
        self.values.get(slot).copied().unwrap_or(0)
    }

    /// All fields, by slot.
    #[inline(always)]
    pub const fn values(&self) -> &[u64; COUNT] {
        &self.values
    }

    /// All fields, by slot, for VM exits to store theirs. As with [`set_from_exit`](Self::set_from_exit) they do not count as changed; the
    /// caller stores values that fit the fields' widths.
    #[inline(always)]
    pub const fn values_mut(&mut self) -> &mut [u64; COUNT] {
        &mut self.values
    }

    /// Returns the low 32 bits of a field.
    #[inline(always)]
    pub fn get32(&self, field: Field) -> u32 {
        self.get(field) as u32
    }

    /// The secondary processor-based controls, which are all 0 while they are not activated.
    #[inline(always)]
    pub fn secondary(&self) -> u32 {
        let is_active = self.get32(Field::PRIMARY_CONTROLS) & primary::SECONDARY != 0;
        if is_active { self.get32(Field::SECONDARY_CONTROLS) } else { 0 }
    }

    /// Sets a field, truncated to its width. It counts as changed if its value does.
    #[inline(always)]
    pub fn set(&mut self, field: Field, value: u64) {
        if let Some(slot) = field.slot() {
            self.set_slot(slot, value);
        }
    }

    /// As [`set`](Self::set), for the field with this slot.
    #[inline(always)]
    pub fn set_slot(&mut self, slot: usize, value: u64) {
        let (Some(old), Some(row)) = (self.values.get_mut(slot), FIELDS.get(slot)) else { return };
        let value = value & row.field.width().mask();
        if *old != value {
            *old = value;
            self.changed.insert(slot);
            self.groups = self.groups.union(row.group.alone());
        }
    }

    /// Sets a field that the processor stores at VM exits and failing VMX instructions, truncated to its width. It does not count as
    /// changed: VMCS02 has the value already, or entries do not read it.
    #[inline(always)]
    pub fn set_from_exit(&mut self, field: Field, value: u64) {
        if let Some(old) = field.slot().and_then(|slot| self.values.get_mut(slot)) {
            *old = value & field.width().mask();
        }
    }

    /// L1's VMREAD of an encoding, with `existing` fields. The caller truncates the value to the operand size.
    ///
    /// # Errors
    /// If the encoding has no field.
    pub fn vmread(&self, encoding: u64, existing: &FieldSet) -> Result<u64, AccessError> {
        let (slot, _, is_high) = find(encoding, existing)?;
        let value = self.values.get(slot).copied().unwrap_or(0);
        Ok(if is_high { value >> 32 } else { value })
    }

    /// L1's VMWRITE. Outside 64-bit mode the caller passes the operand's 32 bits, zero-extended: a wider field's high bits are cleared.
    /// `write_any` allows writes to read-only fields.
    ///
    /// # Errors
    /// If the encoding has no field, or the field is read-only.
    pub fn vmwrite(&mut self, encoding: u64, value: u64, existing: &FieldSet, write_any: bool) -> Result<Field, AccessError> {
        let (slot, field, is_high) = find(encoding, existing)?;
        if matches!(field.kind(), Kind::ReadOnly) && !write_any {
            return Err(AccessError::ReadOnly);
        }
        let old = self.values.get(slot).copied().unwrap_or(0);
        self.set_slot(slot, if is_high { old & 0xffff_ffff | value << 32 } else { value });
        Ok(field)
    }

    /// The groups with fields that changed.
    #[inline(always)]
    pub const fn changed_groups(&self) -> Groups {
        self.groups
    }

    /// Returns the changed fields, and forgets that they changed.
    #[inline(always)]
    pub fn take_changes(&mut self) -> FieldSet {
        self.groups = Groups::NONE;
        core::mem::take(&mut self.changed)
    }

    /// Marks all fields as changed: the VMCS that mirrored them is no longer valid.
    pub const fn touch(&mut self) {
        self.changed = FieldSet::ALL;
        self.groups = Groups::ALL;
    }

    /// Marks some fields as changed: the VMCS that mirrored them may have other values.
    pub fn touch_fields(&mut self, fields: &[Field]) {
        for slot in fields.iter().filter_map(|field| field.slot()) {
            self.changed.insert(slot);
            self.groups = self.groups.union(FIELDS.get(slot).map_or(Groups::NONE, |row| row.group.alone()));
        }
    }

    /// A field and its value, by slot.
    #[inline(always)]
    pub fn by_slot(&self, slot: usize) -> Option<(Field, u64)> {
        Some((FIELDS.get(slot)?.field, *self.values.get(slot)?))
    }
}

/// The field of an encoding: its slot, and whether only its high half is accessed.
fn find(encoding: u64, existing: &FieldSet) -> Result<(usize, Field, bool), AccessError> {
    let (field, is_high) = Field::decode(encoding).ok_or(AccessError::Unsupported)?;
    let slot = field.slot().filter(|&slot| existing.contains(slot)).ok_or(AccessError::Unsupported)?;
    Ok((slot, field, is_high))
}

#[cfg(test)]
mod tests;
