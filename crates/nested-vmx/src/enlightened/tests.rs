use core::cell::RefCell;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::layout::bytes;
use super::*;
use crate::checks;
use crate::field::Width;
use crate::fields::FIELDS;
use crate::model;
use crate::set::FieldSet;

/// A page, and how often each byte was read.
struct Page {
    bytes: RefCell<Vec<u8>>,
    reads: RefCell<Vec<u8>>,
}

impl Page {
    fn new(bytes: Vec<u8>) -> Self {
        assert_eq!(bytes.len(), 4096);
        Self { bytes: RefCell::new(bytes), reads: RefCell::new(vec![0; 4096]) }
    }

    /// The page of a VMCS.
    fn of(vmcs: &Vmcs12) -> Self {
        let page = Self::new(vec![0; 4096]);
        for place in LAYOUT {
            page.write(place.offset, place.field.width(), vmcs.get(place.field));
        }
        page
    }
}

impl Region for Page {
    fn read(&self, offset: usize, width: Width) -> u64 {
        let range = offset..offset + bytes(width);
        self.reads.borrow_mut()[range.clone()].iter_mut().for_each(|count| *count += 1);
        self.bytes.borrow()[range].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    }

    fn write(&self, offset: usize, width: Width, value: u64) {
        self.bytes.borrow_mut()[offset..offset + bytes(width)].copy_from_slice(&value.to_le_bytes()[..bytes(width)]);
    }
}

/// Offsets as the TLFS gives them: at least one after each change of width.
#[test]
fn offsets_of_the_specification() {
    let expected = [
        (Field::HOST_ES, 8),
        (Field::HOST_TR, 20),
        (Field::HOST_PAT, 24),
        (Field::HOST_RIP, 80),
        (Field::HOST_SYSENTER_CS, 88),
        (Field::PIN_CONTROLS, 92),
        (Field::SECONDARY_CONTROLS, 100),
        (Field::IO_BITMAP_A, 104),
        (Field::MSR_BITMAP, 120),
        (Field::GUEST_ES, 128),
        (Field::GUEST_TR, 142),
        (Field::GUEST_ES_LIMIT, 144),
        (Field::GUEST_IDTR_LIMIT, 180),
        (Field::GUEST_ES_RIGHTS, 184),
        (Field::GUEST_TR_RIGHTS, 212),
        (Field::GUEST_ES_BASE, 216),
        (Field::GUEST_IDTR_BASE, 288),
        (Field::EXIT_MSR_STORE_AREA, 320),
        (Field::CR3_TARGET_0, 344),
        (Field::PAGE_FAULT_MASK, 376),
        (Field::ENTRY_MSR_LOADS, 396),
        (Field::TSC_OFFSET, 400),
        (Field::VMCS_LINK, 416),
        (Field::GUEST_PDPTE3, 472),
        (Field::GUEST_PENDING_DEBUG, 480),
        (Field::GUEST_ACTIVITY, 504),
        (Field::CR0_MASK, 512),
        (Field::GUEST_DR7, 568),
        (Field::HOST_FS_BASE, 576),
        (Field::HOST_RSP, 616),
        (Field::EPT_POINTER, 624),
        (Field::VPID, 632),
        (Field::GUEST_PHYSICAL, 680),
        (Field::EXIT_REASON, 692),
        (Field::EXIT_QUALIFICATION, 720),
        (Field::GUEST_LINEAR, 760),
        (Field::GUEST_RSP, 768),
        (Field::GUEST_INTERRUPTIBILITY, 784),
        (Field::TPR_THRESHOLD, 812),
        (Field::GUEST_RIP, 816),
    ];
    for (field, offset) in expected {
        assert_eq!(place(field).map(|place| place.offset), Some(offset), "{field:?}");
    }
    assert_eq!((ERROR_OFFSET, CLEAN_OFFSET), (688, 824));
}

#[test]
fn places_are_aligned_and_disjoint() {
    let mut owner = vec![None; 4096];
    owner[..8].fill(Some(Field(0)));
    owner[ERROR_OFFSET..ERROR_OFFSET + 4].fill(Some(Field::INSTRUCTION_ERROR));
    owner[CLEAN_OFFSET..CLEAN_OFFSET + 4].fill(Some(Field(1)));
    for place in LAYOUT.iter().chain(&INFORMATION) {
        let size = bytes(place.field.width());
        assert_eq!(place.offset % size, 0, "{:?}", place.field);
        for owner in &mut owner[place.offset..place.offset + size] {
            assert_eq!(owner.replace(place.field), None, "{:?}", place.field);
        }
    }
}

#[test]
fn what_the_layout_lacks_is_not_offered() {
    let without = capabilities(model::featured());
    let offered = without.existing_fields();
    for row in FIELDS {
        let has = place(row.field).is_some() || row.field == Field::INSTRUCTION_ERROR;
        // Of these the first is unused outside SMM, and the layout has no place for the other.
        let excepted = [Field::EXECUTIVE_VMCS, Field::GUEST_SMBASE].contains(&row.field);
        let slot = row.field.slot().expect("a slot");
        assert!(has || excepted || !offered.contains(slot) || row.needs_only_what_stile_lacks(), "{}", row.name);
    }
    assert_eq!(capabilities(without), without);
}

impl crate::fields::Row {
    /// The model's processor has features which Stile does not offer.
    fn needs_only_what_stile_lacks(&self) -> bool {
        use crate::capability::offered;
        use crate::fields::Needs;
        match self.needs {
            Needs::Secondary(bit) => offered::SECONDARY & bit == 0,
            Needs::Nothing | Needs::Pin(_) | Needs::Primary(_) => false,
        }
    }
}

#[test]
fn a_group_that_is_clean_is_not_read() {
    let page = Page::new(vec![0x11; 4096]);
    let mut vmcs = Vmcs12::new();
    vmcs.take_changes();
    load(&mut vmcs, &page, clean::ALL);
    let read: Vec<_> = vmcs.take_changes().slots().map(|slot| FIELDS[slot].field).collect();
    assert_eq!(read, [Field::TPR_THRESHOLD, Field::GUEST_RIP]);
    load(&mut vmcs, &page, clean::ALL & !clean::EVENT);
    for place in LAYOUT {
        let is_read = [clean::NONE, clean::EVENT, clean::ALL].contains(&place.clean);
        assert_eq!(vmcs.get(place.field) != 0, is_read, "{:?}", place.field);
    }
}

/// L1 makes L2 leave IA-32e mode, with PDPTEs equal to those of its last entry with PAE paging: L2 has had others since.
#[test]
fn pdptes_are_loaded_after_ia32e_mode() {
    const IA32E_GUEST: u64 = 1 << 9;
    let pdptes = [Field::GUEST_PDPTE0, Field::GUEST_PDPTE1, Field::GUEST_PDPTE2, Field::GUEST_PDPTE3];
    let changed_by = |before: u64, after: u64| {
        let mut vmcs = Vmcs12::new();
        vmcs.set(Field::ENTRY_CONTROLS, before);
        let page = Page::of(&vmcs);
        vmcs.take_changes();
        page.write(place(Field::ENTRY_CONTROLS).expect("of the layout").offset, Width::Bits32, after);
        reload(&mut vmcs, &page, clean::ALL & !clean::ENTRY);
        let has_group = vmcs.changed_groups().intersects(crate::Group::Pdptes.alone());
        let changes: Vec<_> = vmcs.take_changes().slots().map(|slot| FIELDS[slot].field).collect();
        let all = pdptes.iter().all(|field| changes.contains(field));
        assert!(all == has_group && all == pdptes.iter().any(|field| changes.contains(field)));
        all
    };
    assert!(changed_by(IA32E_GUEST, 0));
    assert!(!changed_by(0, IA32E_GUEST) && !changed_by(IA32E_GUEST, IA32E_GUEST) && !changed_by(0, 0));
}

#[test]
fn exits_store_what_l1_reads() {
    let mut vmcs = Vmcs12::new();
    for (slot, row) in FIELDS.iter().enumerate() {
        vmcs.set(row.field, 0x1111_2222_3333_4400 + slot as u64);
    }
    let page = Page::new(vec![0; 4096]);
    store_information(&vmcs, &page);
    store_guest(&vmcs, &page);
    for place in LAYOUT.iter().chain(&INFORMATION) {
        let field = place.field;
        let is_guest = matches!(field.kind(), crate::Kind::Guest) && field != Field::VMCS_LINK;
        let is_information = INFORMATION.iter().any(|place| place.field == field) && !(0x6402..=0x6408).contains(&field.0);
        let expected = is_guest || is_information || [Field::ENTRY_INTERRUPTION, Field::ENTRY_CONTROLS].contains(&field);
        let stored = page.read(place.offset, field.width());
        assert_eq!(stored, if expected { vmcs.get(field) } else { 0 }, "{field:?}");
        assert_eq!(expected, STORED_GUEST.contains(&field) || STORED_INFORMATION.contains(&field), "{field:?}");
    }
}

/// A VMCS that enters, with some fields changed: by one bit, as most rules are broken.
fn nearly_valid() -> impl Strategy<Value = (Vmcs12, Vec<(Field, u64)>)> {
    let change = (any::<prop::sample::Index>(), 0..64u32).prop_map(|(index, bit)| (LAYOUT[index.index(LAYOUT.len())].field, 1u64 << bit));
    prop::collection::vec(change, 0..6).prop_map(|changes| (model::valid(&capabilities(model::featured())), changes))
}

proptest! {
    /// An entry by the page equals an entry by VMWRITEs of the same fields, with any clean fields that admit the changes.
    #[test]
    fn as_a_plain_vmcs((mut plain, changes) in nearly_valid(), pretended in any::<u32>()) {
        let offer = capabilities(model::featured());
        // Unused, and not in the layout.
        plain.set(Field::APIC_ACCESS, 0);
        let page = Page::of(&plain);
        let mut enlightened = Vmcs12::new();
        activate(&mut enlightened, &page);
        for row in FIELDS {
            prop_assert_eq!(enlightened.get(row.field), plain.get(row.field), "{}", row.name);
        }
        plain.take_changes();
        enlightened.take_changes();
        let mut dirty = 0;
        for (field, bit) in changes {
            let place = place(field).expect("of the layout");
            plain.vmwrite(field.0.into(), plain.get(field) ^ bit, &FieldSet::ALL, false).expect("a field that L1 writes");
            page.write(place.offset, field.width(), page.read(place.offset, field.width()) ^ bit);
            dirty |= place.clean;
        }
        page.reads.borrow_mut().fill(0);
        load(&mut enlightened, &page, pretended & !dirty);
        prop_assert!(page.reads.borrow().iter().all(|&count| count <= 1), "each byte is read at most once");
        for row in FIELDS {
            prop_assert_eq!(enlightened.get(row.field), plain.get(row.field), "{}", row.name);
        }
        let processor = model::processor(&offer);
        let memory = model::Constant(0);
        let failure = |vmcs: &Vmcs12| checks::check(vmcs, &processor, &memory, vmcs.changed_groups()).map_err(|(_, failure)| failure);
        prop_assert_eq!(failure(&enlightened), failure(&plain));
        let changed = |vmcs: &mut Vmcs12| vmcs.take_changes().slots().collect::<Vec<_>>();
        prop_assert!(changed(&mut enlightened).iter().all(|slot| changed(&mut plain.clone()).contains(slot)));
    }

    /// Whatever the page and the clean fields: what changed counts as changed, and is checked. A page that passed and is then overwritten at
    /// random passes only if a check of everything does.
    #[test]
    fn no_clean_field_skips_a_check(words in prop::collection::vec((0..103usize, any::<u64>()), 0..4), clean in any::<u32>()) {
        let offer = capabilities(model::featured());
        let (processor, memory) = (model::processor(&offer), model::Constant(0));
        let page = Page::of(&model::valid(&offer));
        let mut vmcs = Vmcs12::new();
        activate(&mut vmcs, &page);
        prop_assert!(checks::check(&vmcs, &processor, &memory, vmcs.changed_groups()).is_ok());
        vmcs.take_changes();
        for (word, value) in words {
            page.write(8 * word, Width::Bits64, value);
        }
        load(&mut vmcs, &page, clean);
        let quick = checks::check(&vmcs, &processor, &memory, vmcs.changed_groups()).is_ok();
        prop_assert_eq!(quick, checks::check(&vmcs, &processor, &memory, crate::Groups::ALL).is_ok());
        for row in FIELDS {
            prop_assert_eq!(vmcs.get(row.field) & !row.field.width().mask(), 0, "{}", row.name);
        }
    }
}
