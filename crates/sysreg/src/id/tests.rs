use super::*;
use hosts::{CORTEX_A57, CORTEX_A76, MAX, NEOVERSE_N1, NEOVERSE_V1};
use proptest::prelude::*;

mod hosts;

const POLICY: Policy = Policy { pa_bits: 40, nested: false, e2h0: false, hcrx: false, sve: true };

const HOSTS: [(&str, HostIdRegisters); 5] =
    [("cortex-a57", CORTEX_A57), ("cortex-a76", CORTEX_A76), ("neoverse-n1", NEOVERSE_N1), ("neoverse-v1", NEOVERSE_V1), ("max", MAX)];

fn named(register: &str) -> &'static Register {
    REGISTERS.iter().find(|row| row.name == register).unwrap_or_else(|| panic!("no {register}"))
}

fn field(view: &[u64; SPACE], register: &str, field: &str) -> u64 {
    let row = named(register);
    let field = row.fields.iter().find(|row| row.name == field).unwrap_or_else(|| panic!("no {field}"));
    view[row.index()] >> field.lsb & 0xf
}

#[test]
fn a_plain_armv8_processor_as_a_guest_sees_it() {
    let view = guest_view(&CORTEX_A57, &POLICY);
    // EL0 with AArch32, EL1 without, no EL2 and EL3, GICv3.
    assert_eq!(view[4 << 3], 0x0100_0012);
    // 40 bits of addresses where the processor has 44, and no Secure memory.
    assert_eq!(view[7 << 3], 0x0122);
    // Six breakpoints, four watchpoints, no PMU.
    assert_eq!(view[5 << 3], 0x1030_5006);
    assert_eq!(view[6 << 3], CORTEX_A57.0[6 << 3]);
    // The AArch32 instructions, with no SMC.
    assert_eq!(view[2 << 3 | 4], 0x0001_0142);
    assert_eq!(view[3 << 3], CORTEX_A57.0[3 << 3]);
}

#[test]
fn what_is_never_offered() {
    for (cpu, host) in HOSTS {
        let view = guest_view(&host, &POLICY);
        let absent = [
            ("ID_AA64PFR0_EL1", "EL2"),
            ("ID_AA64PFR0_EL1", "EL3"),
            ("ID_AA64PFR0_EL1", "RAS"),
            ("ID_AA64PFR0_EL1", "MPAM"),
            ("ID_AA64PFR0_EL1", "AMU"),
            ("ID_AA64PFR0_EL1", "SEL2"),
            ("ID_AA64PFR0_EL1", "RME"),
            ("ID_AA64PFR1_EL1", "MTE"),
            ("ID_AA64PFR1_EL1", "SME"),
            ("ID_AA64PFR1_EL1", "NMI"),
            ("ID_AA64PFR1_EL1", "GCS"),
            ("ID_AA64DFR0_EL1", "PMUVer"),
            ("ID_AA64DFR0_EL1", "PMSVer"),
            ("ID_AA64DFR0_EL1", "TraceVer"),
            ("ID_AA64DFR0_EL1", "TraceBuffer"),
            ("ID_AA64DFR0_EL1", "BRBE"),
            ("ID_AA64ISAR1_EL1", "LS64"),
            ("ID_AA64ISAR2_EL1", "WFxT"),
            ("ID_AA64ISAR2_EL1", "MOPS"),
            ("ID_AA64MMFR0_EL1", "FGT"),
            ("ID_AA64MMFR1_EL1", "VH"),
            ("ID_AA64MMFR1_EL1", "LO"),
            ("ID_AA64MMFR1_EL1", "HCX"),
            ("ID_AA64MMFR2_EL1", "NV"),
            ("ID_AA64MMFR2_EL1", "FWB"),
            ("ID_DFR0_EL1", "PerfMon"),
            ("ID_PFR0_EL1", "RAS"),
        ];
        for (register, name) in absent {
            assert_eq!(field(&view, register, name), 0, "{cpu}: {register}.{name}");
        }
        for register in ["ID_AA64SMFR0_EL1", "ID_AA64MMFR3_EL1", "ID_AA64DFR1_EL1"] {
            assert_eq!(view[named(register).index()], 0, "{cpu}: {register}");
        }
        assert_eq!(field(&view, "ID_AA64PFR0_EL1", "EL1"), 1, "{cpu}");
        assert_eq!(field(&view, "ID_AA64PFR0_EL1", "GIC"), 1, "{cpu}");
        assert_eq!(field(&view, "ID_AA64MMFR0_EL1", "PARange"), 2, "{cpu}");
    }
}

#[test]
fn what_max_keeps_and_loses() {
    let view = guest_view(&MAX, &POLICY);
    let seen = |register, name| field(&view, register, name);
    let host = |register, name| field(&MAX.0, register, name);
    // CSV2 values above 1 imply SCXTNUM_ELx, which is not switched.
    assert_eq!((host("ID_AA64PFR0_EL1", "CSV2"), seen("ID_AA64PFR0_EL1", "CSV2")), (3, 1));
    assert_eq!((host("ID_AA64MMFR0_EL1", "ECV"), seen("ID_AA64MMFR0_EL1", "ECV")), (2, 1));
    assert_eq!((host("ID_AA64DFR0_EL1", "DebugVer"), seen("ID_AA64DFR0_EL1", "DebugVer")), (10, 8));
    let kept = [
        ("ID_AA64PFR0_EL1", "SVE"),
        ("ID_AA64PFR0_EL1", "FP"),
        ("ID_AA64PFR0_EL1", "AdvSIMD"),
        ("ID_AA64PFR0_EL1", "DIT"),
        ("ID_AA64PFR1_EL1", "BT"),
        ("ID_AA64PFR1_EL1", "SSBS"),
        ("ID_AA64MMFR0_EL1", "TGran4"),
        ("ID_AA64MMFR0_EL1", "TGran64"),
        ("ID_AA64MMFR0_EL1", "TGran16"),
        ("ID_AA64MMFR1_EL1", "HAFDBS"),
        ("ID_AA64MMFR1_EL1", "PAN"),
        ("ID_AA64MMFR2_EL1", "CnP"),
        ("ID_AA64MMFR2_EL1", "VARange"),
        ("ID_AA64MMFR2_EL1", "E0PD"),
        ("ID_AA64ISAR2_EL1", "BC"),
        ("ID_AA64ISAR2_EL1", "RPRES"),
    ];
    for (register, name) in kept {
        let value = host(register, name);
        assert_eq!(seen(register, name), value, "{register}.{name}");
    }
    for register in ["ID_AA64ISAR0_EL1", "ID_AA64ISAR1_EL1", "ID_AA64ZFR0_EL1"] {
        let index = named(register).index();
        assert_eq!(view[index], MAX.0[index], "{register}");
    }
}

#[test]
fn policy_decides() {
    let of = |policy| guest_view(&MAX, &policy);
    let sve_off = of(Policy { sve: false, ..POLICY });
    assert_eq!(field(&sve_off, "ID_AA64PFR0_EL1", "SVE"), 0);
    assert_eq!(sve_off[named("ID_AA64ZFR0_EL1").index()], 0);
    let hcrx = of(Policy { hcrx: true, ..POLICY });
    assert_eq!(field(&hcrx, "ID_AA64ISAR2_EL1", "MOPS"), 1);
    let ranges = [(32, 0), (36, 1), (39, 1), (40, 2), (44, 4), (48, 5), (51, 5), (52, 6), (56, 6)];
    for (pa_bits, range) in ranges {
        let view = of(Policy { pa_bits, ..POLICY });
        assert_eq!(field(&view, "ID_AA64MMFR0_EL1", "PARange"), range, "{pa_bits}");
    }
}

#[test]
fn a_vm_with_an_el2() {
    let view = guest_view(&MAX, &Policy { nested: true, ..POLICY });
    let seen = [
        ("ID_AA64PFR0_EL1", "EL2", 1),
        ("ID_AA64MMFR1_EL1", "VH", 1),
        ("ID_AA64MMFR1_EL1", "VMIDBits", 2),
        ("ID_AA64MMFR1_EL1", "HCX", 1),
        ("ID_AA64MMFR0_EL1", "FGT", 1),
        // Without EVT L1 traps CTR_EL0 by HCR_EL2.TID2, and L2's kernel reads it for each page of instructions that it writes.
        ("ID_AA64MMFR2_EL1", "EVT", 2),
        // HCR_EL2.E2H is RES1.
        ("ID_AA64MMFR4_EL1", "E2H0", 0xe),
        // One level of nesting; and the second-stage features that the shadow walker supports.
        ("ID_AA64MMFR2_EL1", "NV", 0),
        ("ID_AA64MMFR4_EL1", "NV_frac", 0),
        ("ID_AA64MMFR1_EL1", "HAFDBS", 0),
        ("ID_AA64MMFR1_EL1", "XNX", 0),
        ("ID_AA64MMFR1_EL1", "nTLBPA", 0),
        ("ID_AA64MMFR2_EL1", "FWB", 0),
        ("ID_AA64MMFR0_EL1", "TGran4_2", 0),
    ];
    for (register, name, value) in seen {
        assert_eq!(field(&view, register, name), value, "{register}.{name}");
    }
    let either = guest_view(&MAX, &Policy { nested: true, e2h0: true, ..POLICY });
    assert_eq!([("ID_AA64MMFR1_EL1", "VH"), ("ID_AA64MMFR4_EL1", "E2H0")].map(|(register, name)| field(&either, register, name)), [1, 0]);
}

#[test]
fn without_aarch32_its_registers_are_zero() {
    let mut host = CORTEX_A57;
    host.0[4 << 3] = 0x0111_1111;
    let view = guest_view(&host, &POLICY);
    assert_eq!(view[..4 << 3], [0; 4 << 3]);
    assert_eq!(view[4 << 3] & 0xf, 1);
}

#[test]
fn absent_floating_point_stays_absent() {
    let mut host = CORTEX_A57;
    host.0[4 << 3] |= 0x00ff_0000;
    let view = guest_view(&host, &POLICY);
    assert_eq!(view[4 << 3] & 0x00ff_0000, 0x00ff_0000);
    // An undefined greater value implies half precision.
    host.0[4 << 3] = 0x0023_0011;
    assert_eq!(guest_view(&host, &POLICY)[4 << 3] & 0x00ff_0000, 0x0011_0000);
}

#[test]
fn names() {
    assert_eq!(name(SysReg::new(3, 0, 0, 4, 0)), Some("ID_AA64PFR0_EL1"));
    assert_eq!(name(SysReg::new(3, 0, 0, 3, 6)), Some("ID_MMFR5_EL1"));
    assert_eq!(name(SysReg::new(3, 0, 0, 4, 3)), None);
    assert_eq!(name(SysReg::new(3, 0, 0, 0, 0)), None);
}

fn policy() -> impl Strategy<Value = Policy> {
    any::<(u8, bool, bool, bool, bool)>().prop_map(|(pa_bits, nested, e2h0, hcrx, sve)| Policy { pa_bits, nested, e2h0, hcrx, sve })
}

proptest! {
    /// On any processor, known or not: nothing outside of the named fields; no field above the
    /// processor's value unless the policy sets it; and the view of a view is the same view.
    #[test]
    fn never_more_than_the_processor_has(
        registers in prop::collection::vec(any::<u64>(), SPACE),
        policy in policy(),
    ) {
        let host = HostIdRegisters(registers.try_into().unwrap());
        let view = guest_view(&host, &policy);
        for (index, &value) in view.iter().enumerate() {
            let Some(register) = REGISTERS.iter().find(|register| register.index() == index) else {
                prop_assert_eq!(value, 0);
                continue;
            };
            let mut rest = value;
            for field in register.fields {
                let seen = value >> field.lsb & 0xf;
                let of_host = host.0[index] >> field.lsb & 0xf;
                let lowered = match field.treatment {
                    Treatment::Fixed(_) | Treatment::FixedIf(..) => true,
                    // Negative: absent.
                    Treatment::SignedUpTo(most) if of_host < 8 => seen <= most.into(),
                    Treatment::SignedUpTo(_) => seen == of_host,
                    _ => seen <= of_host,
                };
                prop_assert!(lowered, "{}.{}", register.name, field.name);
                rest &= !(0xf << field.lsb);
            }
            prop_assert_eq!(rest, 0);
        }
        prop_assert_eq!(guest_view(&HostIdRegisters(view), &policy), view);
    }
}
