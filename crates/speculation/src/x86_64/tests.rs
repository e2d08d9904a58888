//! Examples of CPUs, and properties of all of them.

use super::*;

const NEWEST: u64 = capability::RDCL_NO
    | capability::IBRS_ALL
    | capability::SKIP_L1DFL_VMENTRY
    | capability::MDS_NO
    | capability::TAA_NO
    | capability::FBSDP_NO
    | capability::RFDS_NO;

#[test]
fn a_cpu_without_enumerated_immunity_is_exposed() {
    let plan = Plan::new(&Identity::default());
    assert_eq!(plan, Plan { targets: Targets::Exposed, barrier: false, buffers: Data::Exposed, l1d: Data::Exposed });
    assert!(!plan.is_needed_at_exits());
}

#[test]
fn the_newest_cpus_set_ibrs_once() {
    let plan =
        Plan::new(&Identity { leaf_7_edx: leaf_7::IBRS_IBPB | leaf_7::ARCH_CAPABILITIES, capabilities: NEWEST, ..Identity::default() });
    assert_eq!(plan, Plan { targets: Targets::SetOnce, barrier: true, buffers: Data::Unaffected, l1d: Data::Unaffected });
    assert!(!plan.is_needed_at_exits());
}

#[test]
fn skylake_with_new_microcode_mitigates_at_exits_and_entries() {
    let plan = Plan::new(&Identity {
        leaf_7_edx: leaf_7::IBRS_IBPB | leaf_7::MD_CLEAR | leaf_7::L1D_FLUSH,
        capabilities: 0,
        ..Identity::default()
    });
    assert_eq!(plan, Plan { targets: Targets::SetAtExits, barrier: true, buffers: Data::ClearedAtEntry, l1d: Data::ClearedAtEntry });
    assert!(plan.is_needed_at_exits());
}

/// Each missing immunity bit alone requires clearing the buffers.
#[test]
fn one_missing_immunity_bit_clears_the_buffers() {
    for promise in [capability::MDS_NO, capability::TAA_NO, capability::FBSDP_NO, capability::RFDS_NO] {
        let identity =
            Identity { leaf_7_edx: leaf_7::MD_CLEAR | leaf_7::IBRS_IBPB, capabilities: NEWEST & !promise, ..Identity::default() };
        assert_eq!(Plan::new(&identity).buffers, Data::ClearedAtEntry, "without {promise:#x}");
    }
}

#[test]
fn all_uses_no_unsupported_register() {
    let plan = Plan::all(&Identity::default());
    assert_eq!((plan.barrier, plan.l1d, plan.buffers), (false, Data::Exposed, Data::ClearedAtEntry));
    assert!(plan.is_needed_at_exits());
}

#[test]
fn guests_see_only_features_whose_registers_they_have() {
    let of = |leaf_7_edx| Identity { leaf_7_edx, capabilities: u64::MAX, ..Identity::default() };
    let all = of(u32::MAX);
    let registers = leaf_7::IBRS_IBPB | leaf_7::STIBP | leaf_7::SSBD;
    assert_eq!(all.leaf_7_of_guests(), leaf_7::MD_CLEAR | leaf_7::ARCH_CAPABILITIES | registers);
    assert_eq!(all.control_of_guests(), control::IBRS | control::STIBP | control::SSBD);
    // IA32_TSX_CTRL and IA32_MCU_OPT_CTRL are not there.
    assert_eq!(all.capabilities_of_guests() & (1 << 7 | 1 << 18), 0);
    // Guests must know the effects of VERW, and the limits of IBRS.
    let told = capability::FB_CLEAR | capability::RFDS_CLEAR | capability::RRSBA;
    assert_eq!(all.capabilities_of_guests() & told, told);
    let without = of(!leaf_7::IBRS_IBPB);
    assert_eq!((without.leaf_7_of_guests() & registers, without.control_of_guests()), (0, 0));
    assert_eq!(of(leaf_7::IBRS_IBPB | leaf_7::SSBD).control_of_guests(), control::IBRS | control::SSBD);
}

/// A processor of AMD's: its family, and leaves 8000_0008H (EBX) and 8000_0021H (EAX, ECX).
fn amd(family: u32, leaf_8_ebx: u32, leaf_21_eax: u32, leaf_21_ecx: u32) -> Identity {
    Identity { amd: Some(Amd { family, leaf_8_ebx, leaf_21_eax, leaf_21_ecx }), ..Identity::default() }
}

/// Family, bits of its leaves, and the plan: branch targets, barrier between VMs, buffers.
#[test]
fn amds_processors_get_what_they_need() {
    use amd::{leaf_8::*, leaf_21::*, leaf_21_ecx::*};
    const CONTROLS: u32 = IBPB | IBRS | STIBP | SSBD;
    let cases = [
        ("K8", 0xf, 0, 0, 0, Targets::Exposed, false, Data::Unaffected),
        ("Zen 1", 0x17, IBPB, 0, 0, Targets::BarrierAtExits, true, Data::Unaffected),
        ("Zen 2", 0x17, CONTROLS, 0, 0, Targets::BarrierAtExits, true, Data::Unaffected),
        ("Zen 3, old microcode", 0x19, CONTROLS | BTC_NO, 0, 0, Targets::Exposed, true, Data::Exposed),
        (
            "Zen 3",
            0x19,
            CONTROLS | BTC_NO | IBRS_ALWAYS_ON,
            IBPB_BRTYPE | VERW_CLEAR,
            0,
            Targets::BarrierAtExits,
            true,
            Data::ClearedAtEntry,
        ),
        (
            "Zen 4",
            0x19,
            CONTROLS | BTC_NO,
            IBPB_BRTYPE | AUTOMATIC_IBRS,
            TSA_SQ_NO | TSA_L1_NO,
            Targets::BarrierAtExits,
            true,
            Data::Unaffected,
        ),
        ("Zen 5", 0x1a, CONTROLS | BTC_NO, AUTOMATIC_IBRS | BP_SPEC_REDUCE, 0, Targets::SetAutomatically, true, Data::Unaffected),
        ("immune", 0x1b, CONTROLS | BTC_NO, AUTOMATIC_IBRS | SRSO_NO, 0, Targets::SetAutomatically, true, Data::Unaffected),
        ("IBRS for good", 0x1b, CONTROLS | BTC_NO | IBRS_ALWAYS_ON, SRSO_NO, 0, Targets::SetOnce, true, Data::Unaffected),
        ("IBRS", 0x1b, CONTROLS | BTC_NO, SRSO_NO, 0, Targets::SetAtExits, true, Data::Unaffected),
        ("no IBRS", 0x1b, IBPB | BTC_NO, SRSO_NO, 0, Targets::BarrierAtExits, true, Data::Unaffected),
    ];
    for (name, family, leaf_8, eax, ecx, targets, barrier, buffers) in cases {
        let plan = Plan::new(&amd(family, leaf_8, eax, ecx));
        assert_eq!(plan, Plan { targets, barrier, buffers, l1d: Data::Unaffected }, "{name}");
        let at_exits = matches!(targets, Targets::BarrierAtExits | Targets::SetAtExits) || buffers == Data::ClearedAtEntry;
        assert_eq!(plan.is_needed_at_exits(), at_exits, "{name}");
    }
}

/// TSA needs both bits, and the predictors' reduction is set only where SRSO is possible.
#[test]
fn one_missing_immunity_of_amds_is_enough() {
    use amd::{leaf_21::*, leaf_21_ecx::*};
    for immune in [TSA_SQ_NO, TSA_L1_NO] {
        assert_eq!(Plan::new(&amd(0x19, 0, VERW_CLEAR, immune)).buffers, Data::ClearedAtEntry);
    }
    let reduces = |eax| Amd { leaf_21_eax: eax, ..Amd::default() }.reduces();
    assert!(reduces(BP_SPEC_REDUCE) && !reduces(BP_SPEC_REDUCE | SRSO_NO) && !reduces(0));
}

#[test]
fn all_of_amds_uses_no_unsupported_register() {
    let plan = Plan::all(&amd(0xf, 0, 0, 0));
    assert_eq!((plan.targets, plan.barrier, plan.buffers), (Targets::Exposed, false, Data::ClearedAtEntry));
    let plan = Plan::all(&amd(0x1b, amd::leaf_8::IBPB, amd::leaf_21::SRSO_NO, 0));
    assert_eq!((plan.targets, plan.barrier), (Targets::BarrierAtExits, true));
}

#[test]
fn guests_of_amds_see_only_features_whose_registers_they_have() {
    use amd::leaf_8::*;
    let all = amd(0x19, u32::MAX, 0, 0);
    // VIRT_SPEC_CTRL, predictive store forwarding.
    assert_eq!(all.leaf_8_of_guests() & (1 << 25 | 1 << 28), 0);
    assert_eq!((all.control_of_guests(), all.has_barrier_of_guests()), (control::IBRS | control::STIBP | control::SSBD, true));
    let barrier = amd(0x17, IBPB, 0, 0);
    assert_eq!((barrier.control_of_guests(), barrier.has_barrier_of_guests()), (0, true));
    assert!(!amd(0x17, SSBD, 0, 0).has_barrier_of_guests());
}
