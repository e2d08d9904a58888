use super::*;
use crate::field::Width;
use crate::group::Group;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

/// A VMCS without changes.
fn quiet() -> Vmcs12 {
    let mut vmcs = Vmcs12::new();
    vmcs.take_changes();
    vmcs
}

#[test]
fn widths_and_halves() {
    let mut vmcs = quiet();
    let all = FieldSet::ALL;
    let mut write = |encoding: u64, value| vmcs.vmwrite(encoding, value, &all, false);
    assert_eq!(write(0x0802, 0xffff_1234_5678), Ok(Field::GUEST_CS));
    assert_eq!(write(0x4802, 0xffff_1234_5678), Ok(Field::GUEST_CS_LIMIT));
    assert_eq!(write(0x2010, 0x1111_2222_3333_4444), Ok(Field::TSC_OFFSET));
    assert_eq!(write(0x2011, 0x5555_5555_6666_7777), Ok(Field::TSC_OFFSET));
    assert_eq!(write(0x6803, 0), Err(AccessError::Unsupported), "only 64-bit fields have high halves");
    assert_eq!(write(0x4402, 0), Err(AccessError::ReadOnly));
    assert_eq!(write(0x1_0000_2010, 0), Err(AccessError::Unsupported));
    assert_eq!(write(0x3010, 0), Err(AccessError::Unsupported), "bit 12 is reserved");
    assert_eq!(write(0x7ffe, 0), Err(AccessError::Unsupported));
    assert_eq!(vmcs.vmread(0x0802, &all), Ok(0x5678));
    assert_eq!(vmcs.vmread(0x4802, &all), Ok(0x1234_5678));
    assert_eq!(vmcs.vmread(0x2010, &all), Ok(0x6666_7777_3333_4444));
    assert_eq!(vmcs.vmread(0x2011, &all), Ok(0x6666_7777));
    assert_eq!(vmcs.vmread(0x2010, &FieldSet::EMPTY), Err(AccessError::Unsupported));
    assert_eq!(vmcs.vmwrite(0x4402, 7, &all, true), Ok(Field::EXIT_REASON));
}

#[test]
fn only_changes_count() {
    let mut vmcs = quiet();
    vmcs.set(Field::GUEST_RIP, 0);
    assert!(vmcs.take_changes().is_empty());
    vmcs.set(Field::GUEST_RIP, 1);
    vmcs.set_from_exit(Field::GUEST_RSP, 2);
    assert_eq!(vmcs.changed_groups(), Group::Pointers.alone());
    let changes: Vec<_> = vmcs.take_changes().slots().filter_map(|slot| vmcs.by_slot(slot)).collect();
    assert_eq!(changes, [(Field::GUEST_RIP, 1)]);
    assert_eq!((vmcs.changed_groups(), vmcs.get(Field::GUEST_RSP)), (Groups::NONE, 2));
    vmcs.touch();
    assert_eq!(vmcs.take_changes().slots().count(), COUNT);
}

#[test]
fn each_field_has_its_own_slot() {
    for (slot, row) in FIELDS.iter().enumerate() {
        assert_eq!(row.field.slot(), Some(slot), "{}", row.name);
        assert_eq!(Field::decode(row.field.0.into()), Some((row.field, false)), "{}", row.name);
        let high = Field::decode(row.field.high().0.into());
        assert_eq!(high.is_some(), row.field.width() == Width::Bits64, "{}", row.name);
    }
    let known = (0..=u32::MAX >> 15).filter(|&encoding| Field(encoding).slot().is_some()).count();
    assert_eq!(known, COUNT);
}

proptest! {
    /// Any sequence of VMWRITEs, against a map.
    #[test]
    fn like_a_map(writes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u64>()), 0..60)) {
        let mut vmcs = quiet();
        let mut model = BTreeMap::new();
        for (index, high, value) in writes {
            let row = &FIELDS[index.index(COUNT)];
            let high = high && row.field.width() == Width::Bits64;
            let encoding = u64::from(row.field.0) + u64::from(high);
            prop_assert_eq!(vmcs.vmwrite(encoding, value, &FieldSet::ALL, true), Ok(row.field));
            let old = model.entry(row.field).or_insert(0u64);
            *old = match row.field.width() {
                Width::Bits16 => value % (1 << 16),
                Width::Bits32 => value % (1 << 32),
                Width::Bits64 if high => (value << 32) | (*old % (1 << 32)),
                Width::Bits64 | Width::Natural => value,
            };
        }
        let changed: Vec<_> = vmcs.take_changes().slots().map(|slot| FIELDS[slot].field).collect();
        for row in FIELDS {
            let expected = model.get(&row.field).copied().unwrap_or(0);
            prop_assert_eq!(vmcs.get(row.field), expected, "{}", row.name);
            prop_assert!(expected == 0 || changed.contains(&row.field), "{}", row.name);
        }
        // To memory and back.
        let mut region = vec![0; 512];
        vmcs.set_launched(true);
        vmcs.store(|at, word| region[at] = word);
        let mut other = Vmcs12::new();
        other.load(|at| region[at]);
        prop_assert!(other.is_launched());
        prop_assert_eq!(other.values, vmcs.values);
    }

    /// For any contents of the region, each value fits its field.
    #[test]
    fn any_region(words in prop::collection::vec(any::<u64>(), 512)) {
        let mut vmcs = Vmcs12::new();
        vmcs.load(|at| words[at]);
        for row in FIELDS {
            prop_assert_eq!(vmcs.get(row.field) & !row.field.width().mask(), 0);
        }
    }
}
