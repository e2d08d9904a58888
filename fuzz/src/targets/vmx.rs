//! A guest hypervisor's VMCSs, VM entries and exits.

// Shared with the tests of crate `nested-vmx`.
#[path = "../../../crates/nested-vmx/tests/checks/examples.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod examples;
#[path = "../../../crates/nested-vmx/tests/checks/plain.rs"]
mod plain;

use stile_nested_vmx::checks::{self, EntryFailure, Processor, msr_area};
use stile_nested_vmx::controls::exit;
use stile_nested_vmx::fields::FIELDS;
use stile_nested_vmx::intercepts::{self, Exit, Operands, Verdict};
use stile_nested_vmx::invalidate::{invept, invvpid};
use stile_nested_vmx::model::{Constant, featured, processor, valid};
use stile_nested_vmx::{Field, FieldSet, Groups, Vmcs12};

use crate::input::Input;
use crate::marks::reach;
use crate::target::{Target, none};

/// VM entries of VMCSs that L1 changes between them, against a model of the manual; an entry that checks only what changed has the same
/// result as one that checks everything.
pub const ENTRIES: Target = Target {
    name: "vmx-entries",
    run: entries,
    seeds: none,
    mutations: 4000,
    marks: &["enters", "controls", "host state", "guest state", "link pointer", "PDPTEs", "again"],
};

/// VMREAD and VMWRITE of any encoding, regions of any contents, and L2's exits under any controls.
pub const EXITS: Target = Target {
    name: "vmx-exits",
    run: exits,
    seeds: none,
    mutations: 4000,
    marks: &["written", "refused", "loaded", "forwarded", "kept", "second stage", "invalidated"],
};

fn entries(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let capabilities = featured();
    let mut vmcs = valid(&capabilities);
    input.pick(examples::STARTS)(&mut vmcs);
    let is_long = vmcs.get32(Field::EXIT_CONTROLS) & exit::HOST_64 != 0;
    let processor = Processor { is_long, ..processor(&capabilities) };
    let memory = input.pick(&[0, u64::MAX, 0x30, 0x1001, capabilities.revision().into()]);
    let mut passed = false;
    while !input.is_empty() {
        for _ in 0..input.below(4) {
            let field = FIELDS[input.below(FIELDS.len())].field;
            let (toggles, value) = (input.bit(), input.value());
            vmcs.set(field, if toggles { vmcs.get(field) ^ value } else { value });
        }
        let changed = if passed { vmcs.changed_groups() } else { Groups::ALL };
        let found = checks::check(&vmcs, &processor, &Constant(memory), changed);
        let whole = checks::check(&vmcs, &processor, &Constant(memory), Groups::ALL);
        let text = |result: &Result<(), (&'static checks::Rule, EntryFailure)>| result.as_ref().err().map(|(rule, _)| rule.text);
        assert_eq!(text(&found), text(&whole), "what did not change");
        let outcome = match found {
            Ok(()) => {
                reach(if passed { "again" } else { "enters" });
                passed = true;
                vmcs.take_changes();
                plain::Outcome::Enters
            }
            Err((_, EntryFailure::Instruction(error))) => {
                reach(if error as u32 == 7 { "controls" } else { "host state" });
                plain::Outcome::Fails(error as u32)
            }
            Err((_, EntryFailure::GuestState(qualification))) => {
                reach(match qualification {
                    2 => "PDPTEs",
                    4 => "link pointer",
                    _ => "guest state",
                });
                plain::Outcome::Exits(qualification)
            }
            Err((_, EntryFailure::MsrLoading(_))) => unreachable!("not checked here"),
        };
        assert_eq!(outcome, plain::enter(&|field| vmcs.get(Field(field)), is_long, memory));
    }
}

/// L2's registers and L1's memory: a few values.
struct Few {
    values: [u64; 16],
    has_memory: bool,
}

impl Operands for Few {
    fn register(&self, number: usize) -> u64 {
        self.values[number]
    }

    fn word(&self, address: u64) -> Option<u64> {
        assert!(address.is_multiple_of(8) || !address.is_multiple_of(4096));
        self.has_memory.then_some(self.values[(address >> 3) as usize % 16])
    }
}

fn exits(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let capabilities = featured();
    let existing = capabilities.existing_fields();
    let mut vmcs = Vmcs12::new();
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => {
                let encoding = if input.bit() { u64::from(input.half()) } else { input.value() };
                let (value, write_any) = (input.value(), input.bit());
                let before = vmcs.clone();
                match vmcs.vmwrite(encoding, value, &existing, write_any) {
                    Ok(field) => {
                        reach("written");
                        let read = vmcs.vmread(encoding, &existing).expect("a field that exists");
                        let mask = if encoding & 1 != 0 { 0xffff_ffff } else { field.width().mask() };
                        assert_eq!(read, value & mask, "{field:x?}");
                    }
                    Err(_) => {
                        reach("refused");
                        assert!(FIELDS.iter().all(|row| vmcs.get(row.field) == before.get(row.field)));
                    }
                }
            }
            1 => {
                let words = [(); 8].map(|()| input.value());
                vmcs.load(|word| words[word % 8]);
                reach("loaded");
                let mut region = vec![0; 512];
                vmcs.store(|word, value| region[word] = value);
                let mut other = Vmcs12::new();
                other.load(|word| region[word]);
                assert!(FIELDS.iter().all(|row| vmcs.get(row.field) == other.get(row.field)));
                assert!(FIELDS.iter().all(|row| vmcs.get(row.field) & !row.field.width().mask() == 0));
                assert_eq!(vmcs.take_changes(), FieldSet::ALL);
            }
            2 => {
                let exit = Exit {
                    reason: u16::from(input.byte()) % 72,
                    qualification: input.value(),
                    interruption: input.word(),
                    error_code: input.word(),
                };
                let operands = Few { values: [input.value(); 16], has_memory: input.bit() };
                reach(match intercepts::verdict(&exit, &vmcs, &operands) {
                    Verdict::Forward => "forwarded",
                    Verdict::Keep => "kept",
                    Verdict::SecondStage => "second stage",
                });
            }
            _ => {
                let (kind, descriptor) = (u64::from(input.byte() & 7), [input.value(), input.value()]);
                let processor = processor(&capabilities);
                if invept(kind, descriptor, &processor).is_ok() || invvpid(kind, descriptor, &processor).is_ok() {
                    reach("invalidated");
                }
                let entry = msr_area::Entry::new(descriptor);
                assert!(entry.reserved == 0 || !entry.may_load(false) && !entry.may_store(false));
            }
        }
    }
}
