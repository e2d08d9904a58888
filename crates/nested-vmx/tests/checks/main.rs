//! The rules of a VM entry: an example for each, and comparison with a plain model.

mod examples;
mod plain;

use proptest::prelude::*;
use stile_nested_vmx::checks::{self, EntryFailure, Memory, Processor, Rule};
use stile_nested_vmx::controls::exit;
use stile_nested_vmx::fields::FIELDS;
use stile_nested_vmx::model::{Constant, featured, processor, valid};
use stile_nested_vmx::{Field, Group, Groups, Vmcs12};

fn check(vmcs: &Vmcs12, memory: &dyn Memory) -> Result<(), (&'static Rule, EntryFailure)> {
    checks::check(vmcs, &processor(&featured()), memory, Groups::ALL)
}

/// Applies an example's valid change. Returns the VMCS, and whether L1 is in IA-32e mode: as its host state is.
fn start(change: examples::Change) -> (Vmcs12, bool) {
    let mut vmcs = valid(&featured());
    change(&mut vmcs);
    let is_long = vmcs.get32(Field::EXIT_CONTROLS) & exit::HOST_64 != 0;
    (vmcs, is_long)
}

/// The text of the rule that fails.
fn failing(vmcs: &Vmcs12, is_long: bool, changed: Groups) -> Option<&'static str> {
    let capabilities = featured();
    let processor = Processor { is_long, ..processor(&capabilities) };
    checks::check(vmcs, &processor, &Constant(0), changed).err().map(|(rule, _)| rule.text)
}

/// The check that is left out would pass.
#[test]
fn entries_that_need_no_check() {
    let mut vmcs = valid(&featured());
    let pointers = Group::Pointers.alone();
    for (rip, long, needs_none) in [
        (0xffff_ffff_8100_0000, true, true),
        (0x7fff_ffff_ffff, true, true),
        (0x8000_0000_0000, true, false),
        (0x7fff_ffff, false, true),
        (0xffff_ffff_8100_0000, false, false),
    ] {
        vmcs.set(Field::GUEST_RIP, rip);
        vmcs.set(Field::GUEST_CS_RIGHTS, if long { 0xa09b } else { 0xc09b });
        let remaining = if needs_none { Groups::NONE } else { pointers };
        assert_eq!(checks::remaining(&vmcs, pointers), remaining, "{rip:#x}");
        assert!(!needs_none || failing(&vmcs, true, pointers).is_none(), "{rip:#x}");
        assert_eq!(checks::remaining(&vmcs, Groups::NONE), Groups::NONE);
        let unchecked = Groups::of(&[Group::Unchecked, Group::Information]);
        assert_eq!(checks::remaining(&vmcs, pointers.union(unchecked)), remaining);
        let event = Group::Event.alone();
        assert_eq!(checks::remaining(&vmcs, pointers.union(event)), remaining.union(event));
    }
}

#[test]
fn a_valid_vmcs_passes() {
    let capabilities = featured();
    check(&valid(&capabilities), &Constant(0)).map_err(|(rule, _)| rule.text).expect("valid");
    let mut small = capabilities;
    small.secondary.may = 0;
    small.primary.may = small.primary.must;
    checks::check(&valid(&small), &processor(&small), &Constant(0), Groups::ALL).map_err(|(rule, _)| rule.text).expect("valid");
}

#[test]
fn each_rule_has_an_example() {
    let rules: Vec<_> = checks::SECTIONS.iter().flat_map(|sections| sections.iter()).flat_map(|section| section.rules).collect();
    for rule in &rules {
        assert!(examples::EXAMPLES.iter().any(|example| example.rule == rule.text), "no example: {}", rule.text);
        assert_eq!(rules.iter().filter(|other| other.text == rule.text).count(), 1, "{}", rule.text);
    }
    for example in examples::EXAMPLES {
        assert!(rules.iter().any(|rule| rule.text == example.rule), "no rule: {}", example.rule);
        let (mut vmcs, is_long) = start(example.valid);
        assert_eq!(failing(&vmcs, is_long, Groups::ALL), None, "before: {}", example.rule);
        (example.invalid)(&mut vmcs);
        assert_eq!(failing(&vmcs, is_long, Groups::ALL), Some(example.rule));
    }
}

#[test]
fn a_rule_is_checked_if_a_field_that_it_reads_changed() {
    for example in examples::EXAMPLES {
        let (mut vmcs, is_long) = start(example.valid);
        vmcs.take_changes();
        (example.invalid)(&mut vmcs);
        let changed = vmcs.changed_groups();
        assert_eq!(failing(&vmcs, is_long, changed), Some(example.rule), "{changed:x?}");
    }
}

#[test]
fn exits_of_failed_entries() {
    assert_eq!(EntryFailure::GuestState(4).exit(), Some((0x8000_0021, 4)));
    assert_eq!(EntryFailure::MsrLoading(3).exit(), Some((0x8000_0022, 3)));
}

#[test]
fn the_link_pointer_names_a_vmcs_of_the_revision() {
    let capabilities = featured();
    let mut vmcs = valid(&capabilities);
    vmcs.set(Field::VMCS_LINK, 0x9000);
    let revision = capabilities.revision().into();
    assert!(check(&vmcs, &Constant(revision)).is_ok());
    assert_eq!(check(&vmcs, &Constant(revision | 1 << 31)).map_err(|found| found.1), Err(EntryFailure::GuestState(4)));
    vmcs.set(Field::VMCS_LINK, 0x7000);
    assert_eq!(check(&vmcs, &Constant(revision)).map_err(|found| found.1), Err(EntryFailure::GuestState(4)), "the current VMCS");
}

#[test]
fn pdptes_in_memory() {
    let mut vmcs = valid(&featured());
    examples::pae(&mut vmcs);
    vmcs.set(Field::SECONDARY_CONTROLS, 0);
    for (word, expected) in [(0, true), (0x1001, true), (0x1003, false), (0x1e0, true), (1 << 40 | 1, false), (1 << 63 | 1, false)] {
        assert_eq!(check(&vmcs, &Constant(word)).is_ok(), expected, "{word:#x}");
    }
}

/// Values at which rules differ.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u32..64).prop_map(|bit| (1 << bit) - 1),
        (0u32..64).prop_map(|bit| !0 << bit),
        0u64..0x200,
        (0u64..0x200).prop_map(|low| 0x8000_0000 | low | (low & 1) << 11),
        Just(0x8005_0033),
    ]
}

/// A field, mostly one that rules read.
fn field() -> impl Strategy<Value = Field> {
    (0..FIELDS.len()).prop_filter_map("unread", |slot| {
        let row = &FIELDS[slot];
        (!matches!(row.group, Group::Information | Group::Unchecked)).then_some(row.field)
    })
}

/// Toggles of one bit, or values, of one to three fields of a VMCS that was valid.
fn mutations() -> impl Strategy<Value = Vec<(Field, bool, u64)>> {
    prop::collection::vec((field(), any::<bool>(), value()), 1..4)
}

fn outcome(vmcs: &Vmcs12, is_long: bool, memory: u64) -> plain::Outcome {
    let capabilities = featured();
    let processor = Processor { is_long, ..processor(&capabilities) };
    match checks::check(vmcs, &processor, &Constant(memory), Groups::ALL) {
        Ok(()) => plain::Outcome::Enters,
        Err((_, EntryFailure::Instruction(error))) => plain::Outcome::Fails(error as u32),
        Err((_, EntryFailure::GuestState(qualification))) => plain::Outcome::Exits(qualification),
        Err((_, EntryFailure::MsrLoading(_))) => unreachable!("not checked here"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn like_the_plain_model(
        change in prop::sample::select(examples::STARTS),
        mutations in mutations(),
        memory in prop::sample::select(vec![0u64, u64::MAX, 0x30, 0x1001]),
    ) {
        let (mut vmcs, is_long) = start(change);
        for (field, toggles, value) in mutations {
            let old = vmcs.get(field);
            vmcs.set(field, if toggles { old ^ 1 << (value % 64) } else { value });
        }
        let expected = plain::enter(&|field| vmcs.get(Field(field)), is_long, memory);
        prop_assert_eq!(outcome(&vmcs, is_long, memory), expected);
    }
}
