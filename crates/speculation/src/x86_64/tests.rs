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
    let plan = Plan::new(&Identity { leaf_7_edx: leaf_7::IBRS_IBPB | leaf_7::ARCH_CAPABILITIES, capabilities: NEWEST });
    assert_eq!(plan, Plan { targets: Targets::SetOnce, barrier: true, buffers: Data::Unaffected, l1d: Data::Unaffected });
    assert!(!plan.is_needed_at_exits());
}

#[test]
fn skylake_with_new_microcode_mitigates_at_exits_and_entries() {
    let plan = Plan::new(&Identity { leaf_7_edx: leaf_7::IBRS_IBPB | leaf_7::MD_CLEAR | leaf_7::L1D_FLUSH, capabilities: 0 });
    assert_eq!(plan, Plan { targets: Targets::SetAtExits, barrier: true, buffers: Data::ClearedAtEntry, l1d: Data::ClearedAtEntry });
    assert!(plan.is_needed_at_exits());
}

/// Each missing immunity bit alone requires clearing the buffers.
#[test]
fn one_missing_immunity_bit_clears_the_buffers() {
    for promise in [capability::MDS_NO, capability::TAA_NO, capability::FBSDP_NO, capability::RFDS_NO] {
        let identity = Identity { leaf_7_edx: leaf_7::MD_CLEAR | leaf_7::IBRS_IBPB, capabilities: NEWEST & !promise };
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
    let of = |leaf_7_edx| Identity { leaf_7_edx, capabilities: u64::MAX };
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
