//! Exits of L2 that L1 asked for: examples, and comparison with plain models.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use stile_nested_vmx::controls::{pin, primary, secondary};
use stile_nested_vmx::intercepts::{
    Exit, MSR_BITMAP_WORDS, Operands, Verdict, has_addresses, has_instruction_information, is_absent_instruction, msr_bit, verdict,
};
use stile_nested_vmx::{Field, Vmcs12};

#[test]
fn information_of_exits() {
    let reasons = |has: fn(u64) -> bool| (0..0x100).filter(|&reason| has(reason)).collect::<Vec<_>>();
    assert_eq!(reasons(has_instruction_information), [19, 21, 22, 23, 25, 27, 30, 46, 47, 50, 53, 57, 58, 61]);
    assert_eq!(reasons(has_addresses), [28, 30, 48, 49]);
}

/// L2's registers, and words of L1's memory that are not 0.
#[derive(Default, Debug)]
struct Machine {
    registers: [u64; 16],
    memory: BTreeMap<u64, u64>,
    /// Addresses from here on are not RAM.
    end: Option<u64>,
}

impl Operands for Machine {
    fn register(&self, number: usize) -> u64 {
        self.registers[number]
    }

    fn word(&self, address: u64) -> Option<u64> {
        assert!(address.is_multiple_of(8));
        let exists = self.end.is_none_or(|end| address < end);
        exists.then(|| self.memory.get(&address).copied().unwrap_or(0))
    }
}

impl Machine {
    fn set_bit(&mut self, base: u64, bit: u64) {
        *self.memory.entry(base + bit / 64 * 8).or_default() |= 1 << (bit % 64);
    }
}

fn vmcs(fields: &[(Field, u64)]) -> Vmcs12 {
    let mut vmcs = Vmcs12::new();
    for &(field, value) in fields {
        vmcs.set(field, value);
    }
    vmcs
}

fn of(reason: u16, vmcs: &Vmcs12) -> Verdict {
    verdict(&Exit { reason, ..Exit::default() }, vmcs, &Machine::default())
}

#[test]
fn controls_decide() {
    let none = Vmcs12::new();
    let activated = u64::from(primary::SECONDARY);
    let rows: &[(u16, Field, u32)] = &[
        (7, Field::PRIMARY_CONTROLS, primary::INTERRUPT_WINDOW),
        (8, Field::PRIMARY_CONTROLS, primary::NMI_WINDOW),
        (12, Field::PRIMARY_CONTROLS, primary::HLT),
        (14, Field::PRIMARY_CONTROLS, primary::INVLPG),
        (15, Field::PRIMARY_CONTROLS, primary::RDPMC),
        (16, Field::PRIMARY_CONTROLS, primary::RDTSC),
        (29, Field::PRIMARY_CONTROLS, primary::MOV_DR),
        (36, Field::PRIMARY_CONTROLS, primary::MWAIT),
        (39, Field::PRIMARY_CONTROLS, primary::MONITOR),
        (40, Field::PRIMARY_CONTROLS, primary::PAUSE),
        (40, Field::SECONDARY_CONTROLS, secondary::PAUSE_LOOPS),
        (43, Field::PRIMARY_CONTROLS, primary::TPR_SHADOW),
        (44, Field::SECONDARY_CONTROLS, secondary::APIC_ACCESSES),
        (45, Field::SECONDARY_CONTROLS, secondary::INTERRUPT_DELIVERY),
        (46, Field::SECONDARY_CONTROLS, secondary::DESCRIPTOR_TABLES),
        (47, Field::SECONDARY_CONTROLS, secondary::DESCRIPTOR_TABLES),
        (52, Field::PIN_CONTROLS, pin::PREEMPTION_TIMER),
        (54, Field::SECONDARY_CONTROLS, secondary::WBINVD),
        (56, Field::SECONDARY_CONTROLS, secondary::APIC_REGISTERS),
        (57, Field::SECONDARY_CONTROLS, secondary::RDRAND),
        (61, Field::SECONDARY_CONTROLS, secondary::RDSEED),
    ];
    for &(reason, field, bit) in rows {
        assert_eq!(of(reason, &none), Verdict::Keep, "{reason}");
        let mut with = vmcs(&[(Field::PRIMARY_CONTROLS, activated)]);
        with.set(field, with.get(field) | u64::from(bit));
        assert_eq!(of(reason, &with), Verdict::Forward, "{reason}");
        if field == Field::SECONDARY_CONTROLS {
            with.set(Field::PRIMARY_CONTROLS, 0);
            assert_eq!(of(reason, &with), Verdict::Keep, "{reason}: secondary controls are not activated");
        }
    }
    let both = vmcs(&[
        (Field::PRIMARY_CONTROLS, activated | u64::from(primary::RDTSC | primary::INVLPG)),
        (Field::SECONDARY_CONTROLS, u64::from(secondary::RDTSCP | secondary::INVPCID)),
    ]);
    assert_eq!([51, 58].map(|reason| of(reason, &both)), [Verdict::Forward; 2]);
    assert_eq!([51, 58].map(|reason| of(reason, &none)), [Verdict::Keep; 2]);
    for reason in [2, 9, 10, 11, 13, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 33, 50, 53, 55, 59] {
        assert_eq!(of(reason, &none), Verdict::Forward, "{reason}");
    }
    for reason in [1, 3, 4, 5, 6, 34, 41, 62, 63, 64, 1000] {
        assert_eq!(of(reason, &none), Verdict::Keep, "{reason}");
    }
    assert_eq!([48, 49].map(|reason| of(reason, &none)), [Verdict::SecondStage; 2]);
}

/// L0 steps L2, too: the exit is L1's if L1 has set the flag, or injects the exit.
#[test]
fn monitor_trap_flag() {
    const TRAP: u16 = 37;
    let injects = |information: u64| vmcs(&[(Field::ENTRY_INTERRUPTION, information)]);
    assert_eq!(of(TRAP, &Vmcs12::new()), Verdict::Keep);
    assert_eq!(of(TRAP, &vmcs(&[(Field::PRIMARY_CONTROLS, primary::MONITOR_TRAP.into())])), Verdict::Forward);
    assert_eq!(of(TRAP, &injects(1 << 31 | 7 << 8)), Verdict::Forward);
    assert_eq!(of(TRAP, &injects(7 << 8)), Verdict::Keep, "an exit has ended it");
    assert_eq!(of(TRAP, &injects(1 << 31 | 0x41)), Verdict::Keep);
}

/// L1 sees no exit of an instruction that it does not have, and what is no instruction raises no #UD.
#[test]
fn instructions_that_no_guest_has() {
    let none = Vmcs12::new();
    let absent: Vec<u16> = (0..=u16::MAX).filter(|&reason| is_absent_instruction(reason.into())).collect();
    assert_eq!(absent, [60, 63, 64, 65, 67, 68, 69, 70, 72, 73, 76, 77, 78, 79]);
    for reason in absent {
        assert_eq!(of(reason, &none), Verdict::Keep, "{reason}");
    }
    // Sub-page permissions, bus locks, an instruction that takes too long; the failure of an entry.
    for reason in [66, 74, 75, 1 << 31 | 77] {
        assert!(!is_absent_instruction(reason), "{reason}");
    }
}

#[test]
fn exceptions() {
    let with = |bitmap: u64, mask: u64, matching: u64| {
        vmcs(&[(Field::EXCEPTION_BITMAP, bitmap), (Field::PAGE_FAULT_MASK, mask), (Field::PAGE_FAULT_MATCH, matching)])
    };
    let sees = |vmcs: &Vmcs12, interruption: u32, error_code: u32| {
        let exit = Exit { reason: 0, interruption, error_code, ..Exit::default() };
        verdict(&exit, vmcs, &Machine::default()) == Verdict::Forward
    };
    assert!(sees(&with(1 << 3, 0, 0), 0x8000_0603, 0) && !sees(&with(1 << 3, 0, 0), 0x8000_0306, 0));
    assert!(!sees(&with(u64::MAX, 0, 0), 0x8000_0202, 0), "a physical NMI");
    let page_fault = 0x8000_0b0e;
    // Bit 14, mask, match, error code, expected.
    for (bit, mask, matching, code, expected) in [
        (1, 0, 0, 7, true),
        (0, 0, 0, 7, false),
        (1, 0, 1, 7, false),
        (0, 0, 1, 7, true),
        (1, 1, 1, 2, false),
        (1, 1, 1, 3, true),
        (0, 1, 1, 2, true),
    ] {
        assert_eq!(sees(&with(bit << 14, mask, matching), page_fault, code), expected, "{bit} {mask} {matching} {code}");
    }
}

#[test]
fn control_registers() {
    let vmcs = vmcs(&[
        (Field::PRIMARY_CONTROLS, u64::from(primary::CR3_LOAD | primary::CR8_STORE)),
        (Field::CR0_MASK, 1 << 0 | 1 << 3),
        (Field::CR0_SHADOW, 1 << 3),
        (Field::CR4_MASK, 1 << 5),
        (Field::CR4_SHADOW, 1 << 5),
        (Field::CR3_TARGETS, 2),
        (Field::CR3_TARGET_1, 0x2000),
        (Field::CR3_TARGET_2, 0x3000),
    ]);
    let sees = |qualification: u64, value: u64| {
        let mut machine = Machine::default();
        machine.registers[11] = value;
        verdict(&Exit { reason: 28, qualification: qualification | 11 << 8, ..Exit::default() }, &vmcs, &machine) == Verdict::Forward
    };
    // MOV to CR0: PE and TS are L1's.
    assert!(sees(0x00, 0) && sees(0x00, 9) && !sees(0x00, 8) && !sees(0x00, 0xffff_fff8));
    // CLTS.
    assert!(sees(0x20, 0));
    // LMSW that sets PE; that does not change TS; that changes it.
    assert!(sees(0x30 | 9 << 16, 0) && !sees(0x30 | 8 << 16, 0) && !sees(0x30 | 0xe << 16, 0) && sees(0x30, 0));
    assert!(sees(0x04, 0) && !sees(0x04, 0xffff_ffff));
    // Targets: the first is 0, and only two count.
    assert!(!sees(0x03, 0) && !sees(0x03, 0x2000) && sees(0x03, 0x3000) && !sees(0x13, 0));
    assert!(!sees(0x08, 0) && sees(0x18, 0));
}

#[test]
fn lmsw_does_not_clear_pe() {
    let vmcs = vmcs(&[(Field::CR0_MASK, 1), (Field::CR0_SHADOW, 1)]);
    let exit = Exit { reason: 28, qualification: 0x30, ..Exit::default() };
    assert_eq!(verdict(&exit, &vmcs, &Machine::default()), Verdict::Keep);
}

#[test]
fn words_of_the_msr_bitmap() {
    let mut seen = BTreeSet::new();
    for number in (0..0x2000).chain(0xc000_0000..0xc000_2000) {
        for is_write in [false, true] {
            let (word, bit) = msr_bit(number, is_write).expect("covered");
            assert!(word < MSR_BITMAP_WORDS && bit < 64 && seen.insert((word, bit)), "{number:#x}");
        }
    }
    assert_eq!(msr_bit(0xc000_0080, true), Some((386, 0)));
    assert_eq!([0x2000, 0xbfff_ffff, 0xc000_2000, u32::MAX].map(|number| msr_bit(number, false)), [None; 4]);
}

/// A port near borders.
fn port() -> impl Strategy<Value = u16> {
    prop_oneof![any::<u16>(), 0x7ff8u16..0x8008, 0xfff8u16..=0xffff, 0u16..8, 60u16..70]
}

proptest! {
    #[test]
    fn ports(
        exiting in prop::collection::btree_set(port(), 0..8),
        (port, size) in (port(), prop::sample::select(vec![1u64, 2, 4])),
        flags in 0u64..16,
        uses in any::<(bool, bool)>(),
        end in prop::sample::select(vec![None, Some(0x2000), Some(0x1000)]),
    ) {
        let mut machine = Machine { end, ..Machine::default() };
        for &port in &exiting {
            machine.set_bit(if port < 0x8000 { 0x1000 } else { 0x2000 }, u64::from(port % 0x8000));
        }
        let controls = [(uses.0, primary::IO_BITMAPS), (uses.1, primary::UNCONDITIONAL_IO)];
        let controls = controls.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit);
        let vmcs = vmcs(&[
            (Field::PRIMARY_CONTROLS, controls.into()),
            (Field::IO_BITMAP_A, 0x1000),
            (Field::IO_BITMAP_B, 0x2000),
        ]);
        let mut ports = (0..size).map(|offset| u64::from(port) + offset);
        let expected = if uses.0 {
            ports.any(|port| {
                let is_outside = end.is_some_and(|end| end == 0x1000 || port >= 0x8000);
                port > 0xffff || exiting.contains(&(port as u16)) || is_outside
            })
        } else {
            uses.1
        };
        let qualification = u64::from(port) << 16 | flags << 3 | (size - 1);
        let found = verdict(&Exit { reason: 30, qualification, ..Exit::default() }, &vmcs, &machine);
        prop_assert_eq!(found == Verdict::Forward, expected);
    }

    #[test]
    fn msrs(
        exiting in prop::collection::btree_set((0u32..0x4000, any::<bool>()), 0..8),
        chosen in any::<prop::sample::Index>(),
        other in any::<(u32, bool)>(),
        uses_exiting in any::<bool>(),
    ) {
        // Numbers from 2000H on stand for those from C0000000H on.
        let number = |low: u32| if low < 0x2000 { low } else { 0xc000_0000 + low - 0x2000 };
        let mut machine = Machine::default();
        for &(low, is_write) in &exiting {
            // The four parts of the bitmap, of 1 KiB each: reads of low MSRs, reads of high ones, writes.
            machine.set_bit(0x3000 + if is_write { 0x800 } else { 0 }, u64::from(low));
        }
        let (register, is_write) = match exiting.len() {
            length if uses_exiting && length > 0 => {
                let (low, is_write) = *exiting.iter().nth(chosen.index(length)).expect("in range");
                (number(low), is_write)
            }
            _ => other,
        };
        machine.registers[1] = 0xffff_ffff_0000_0000 | u64::from(register);
        let vmcs = vmcs(&[(Field::PRIMARY_CONTROLS, primary::MSR_BITMAPS.into()), (Field::MSR_BITMAP, 0x3000)]);
        let is_covered = (0..0x4000).any(|low| number(low) == register);
        let expected = !is_covered || exiting.iter().any(|&(low, write)| number(low) == register && write == is_write);
        let exit = Exit { reason: if is_write { 32 } else { 31 }, ..Exit::default() };
        prop_assert_eq!(verdict(&exit, &vmcs, &machine) == Verdict::Forward, expected);
        prop_assert_eq!(verdict(&exit, &Vmcs12::new(), &machine), Verdict::Forward, "without a bitmap");
    }
}
