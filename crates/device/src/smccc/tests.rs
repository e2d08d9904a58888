use super::*;

const HOST: Workarounds = Workarounds { one: 0, two: 0, three: 1 };

#[test]
fn calls_have_owners() {
    assert_eq!(service(0x8400_0000), Service::Psci);
    assert_eq!(service(0xc400_0003), Service::Psci);
    assert_eq!(service(0x8400_001f), Service::Psci);
    assert_eq!(service(0x8400_0020), Service::Unknown);
    assert_eq!(service(id::VERSION), Service::Arch);
    assert_eq!(service(id::ARCH_WORKAROUND_1), Service::Arch);
    assert_eq!(service(id::VENDOR_HYP_CALL_UID), Service::VendorHyp);
}

#[test]
fn what_is_not_offered_is_unknown() {
    let trng_version = 0x8400_0050;
    let sdei_version = 0xc400_0020;
    let paravirtual_time_smc32 = 0x8500_0020;
    let yielding = 0x0400_0000;
    for function_id in [trng_version, sdei_version, paravirtual_time_smc32, yielding, 0, !0] {
        assert_eq!(service(function_id), Service::Unknown, "{function_id:#x}");
    }
}

#[test]
fn stolen_time_is_found_step_by_step() {
    // As Linux looks for it.
    assert_eq!(arch(id::ARCH_FEATURES, id::PV_TIME_FEATURES.into(), &HOST), Answer::X0(SUCCESS));
    assert_eq!(service(id::PV_TIME_FEATURES), Service::PvTime);
    assert_eq!(paravirtual_time(id::PV_TIME_FEATURES, id::PV_TIME_ST.into()), PvTime::X0(SUCCESS));
    assert_eq!(service(id::PV_TIME_ST), Service::PvTime);
    assert_eq!(paravirtual_time(id::PV_TIME_ST, 0), PvTime::StolenTime);
    // Live physical time is not offered.
    let live_physical_time = 0xc500_0022;
    assert_eq!(paravirtual_time(id::PV_TIME_FEATURES, live_physical_time), PvTime::X0(NOT_SUPPORTED));
    assert_eq!(service(live_physical_time as u32), Service::Unknown);
}

#[test]
fn version_is_1_1() {
    assert_eq!(arch(id::VERSION, 0, &HOST), Answer::X0(0x1_0001));
}

#[test]
fn features_tell_what_the_firmware_offers() {
    let features = |function_id: u32| arch(id::ARCH_FEATURES, function_id.into(), &HOST);
    assert_eq!(features(id::VERSION), Answer::X0(0));
    assert_eq!(features(id::ARCH_FEATURES), Answer::X0(0));
    assert_eq!(features(id::ARCH_WORKAROUND_1), Answer::X0(0));
    assert_eq!(features(id::ARCH_WORKAROUND_2), Answer::X0(NOT_SUPPORTED));
    assert_eq!(features(id::ARCH_WORKAROUND_3), Answer::X0(1));
    let soc_id = 0x8000_0002;
    assert_eq!(features(soc_id), Answer::X0(NOT_SUPPORTED));
}

#[test]
fn features_look_at_the_low_half_of_their_argument() {
    let x1 = 0xdead_beef_0000_0000 | u64::from(id::ARCH_WORKAROUND_1);
    assert_eq!(arch(id::ARCH_FEATURES, x1, &HOST), Answer::X0(0));
}

#[test]
fn negative_answers_are_sign_extended() {
    let not_required = Workarounds { two: -2, ..Workarounds::NONE };
    let x1 = id::ARCH_WORKAROUND_2.into();
    let answer = arch(id::ARCH_FEATURES, x1, &not_required);
    assert_eq!(answer, Answer::X0(-2i64 as u64));
}

#[test]
fn workarounds_are_forwarded_only_where_they_do_something() {
    let call = |function_id| arch(function_id, 0, &HOST);
    assert_eq!(call(id::ARCH_WORKAROUND_1), Answer::Forward);
    assert_eq!(call(id::ARCH_WORKAROUND_2), Answer::X0(NOT_SUPPORTED));
    assert_eq!(call(id::ARCH_WORKAROUND_3), Answer::X0(0));
    let none = Workarounds::default();
    assert_eq!(arch(id::ARCH_WORKAROUND_1, 0, &none), Answer::X0(NOT_SUPPORTED));
}

#[test]
fn smc64_variants_of_architecture_calls_do_not_exist() {
    let answer = arch(id::VERSION | FUNCTION_64, 0, &HOST);
    assert_eq!(answer, Answer::X0(NOT_SUPPORTED));
}

#[test]
fn the_uid_is_its_uuid_in_memory_order() {
    let Answer::X0To3(words) = vendor_hyp(id::VENDOR_HYP_CALL_UID) else {
        panic!("no UID");
    };
    let bytes: std::vec::Vec<u8> = words.iter().flat_map(|&word| (word as u32).to_le_bytes()).collect();
    let uuid = 0x880a_d1f8_5953_4f74_947d_6d58_33fd_5815_u128;
    assert_eq!(bytes, uuid.to_be_bytes());
    let revision = 0x8600_ff03;
    assert_eq!(vendor_hyp(revision), Answer::X0(NOT_SUPPORTED));
}
