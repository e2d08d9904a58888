//! Examples of CPUs and firmware, and properties of all of them.

use std::vec::Vec;

use super::*;

const A57: u64 = 0x411f_d070;
const A76: u64 = 0x414f_d0b1;
const A53: u64 = 0x410f_d034;
const A73: u64 = 0x410f_d092;

const SILENT: Identity = Identity { midr: 0, csv2: 0, ssbs: 0, clrbhb: false, ecbhb: false, firmware: Workarounds::NONE };

fn plan(identity: Identity) -> Plan {
    Plan::new(&identity)
}

#[test]
fn newest_cpus_need_nothing() {
    let identity = Identity { csv2: 3, ssbs: 2, ..SILENT };
    assert_eq!(plan(identity), Plan::NONE);
}

#[test]
fn in_order_cpus_need_nothing() {
    assert_eq!(plan(Identity { midr: A53, ..SILENT }), Plan::NONE);
}

#[test]
fn an_unknown_cpu_without_features_is_exposed() {
    let plan = plan(SILENT);
    assert!(plan.is_exposed());
    assert_eq!(plan, Plan { targets: Targets::Exposed, history: History::Exposed, store_bypass: StoreBypass::Exposed });
}

#[test]
fn cortex_a76_clears_its_history_by_a_loop() {
    let plan = plan(Identity { midr: A76, csv2: 1, ssbs: 1, ..SILENT });
    assert_eq!(plan, Plan { history: History::Loop(24), ..Plan::NONE });
}

#[test]
fn cortex_a57_depends_on_firmware_for_its_targets() {
    let identity = Identity { midr: A57, ..SILENT };
    assert_eq!(plan(identity).targets, Targets::Exposed);
    let one = Workarounds { one: 0, ..Workarounds::NONE };
    assert_eq!(plan(Identity { firmware: one, ..identity }).targets, Targets::Firmware(id::ARCH_WORKAROUND_1));
    let three = Workarounds { three: 0, ..one };
    assert_eq!(plan(Identity { firmware: three, ..identity }).targets, Targets::Firmware(id::ARCH_WORKAROUND_3));
    assert_eq!(plan(Identity { firmware: three, ..identity }).history, History::Loop(8));
}

#[test]
fn cortex_a73_clears_its_history_by_firmware() {
    let firmware = Workarounds { one: 0, two: -2, three: 0 };
    let plan = plan(Identity { midr: A73, firmware, ..SILENT });
    assert_eq!(plan.history, History::Firmware);
    assert_eq!(plan.store_bypass, StoreBypass::Unaffected);
    assert!(!plan.is_exposed());
}

#[test]
fn an_instruction_is_preferred_to_a_loop() {
    assert_eq!(plan(Identity { midr: A76, csv2: 1, clrbhb: true, ..SILENT }).history, History::Instruction);
    assert_eq!(plan(Identity { midr: A76, csv2: 1, clrbhb: true, ecbhb: true, ..SILENT }).history, History::Unaffected);
}

/// An additional feature or workaround never makes an unexposed CPU exposed.
#[test]
fn additional_features_never_expose() {
    let answers = [-2, -1, 0, 1];
    let mut identities = Vec::new();
    for midr in [0, A53, A57, A73, A76] {
        for csv2 in 0..4 {
            for bits in 0..8 {
                for one in [-1, 0, 1] {
                    for two in answers {
                        for three in [-1, 0, 1] {
                            let firmware = Workarounds { one, two, three };
                            identities.push(Identity { midr, csv2, ssbs: bits & 1, clrbhb: bits & 2 != 0, ecbhb: bits & 4 != 0, firmware });
                        }
                    }
                }
            }
        }
    }
    for identity in identities.iter().filter(|identity| !Plan::new(identity).is_exposed()) {
        for more in [
            Identity { csv2: (identity.csv2 + 1).min(3), ..*identity },
            Identity { ssbs: 1, ..*identity },
            Identity { clrbhb: true, ..*identity },
            Identity { ecbhb: true, ..*identity },
            Identity { firmware: Workarounds { one: 0, ..identity.firmware }, ..*identity },
            Identity { firmware: Workarounds { two: 0, ..identity.firmware }, ..*identity },
            Identity { firmware: Workarounds { three: 0, ..identity.firmware }, ..*identity },
        ] {
            assert!(!Plan::new(&more).is_exposed(), "{identity:?} is not exposed, but {more:?} is");
        }
    }
}

#[test]
fn all_clears_every_history() {
    for csv2 in 0..4 {
        for clrbhb in [false, true] {
            let plan = Plan::all(&Identity { csv2, clrbhb, ..SILENT });
            assert_eq!(plan.history, if clrbhb { History::Instruction } else { History::Loop(32) });
        }
    }
    assert_eq!(Plan::all(&Identity { midr: A57, ..SILENT }).history, History::Loop(8));
}

#[test]
fn guests_see_the_workarounds_of_the_neediest_cpu() {
    let big = Workarounds { one: 0, two: 0, three: 0 };
    let little = Workarounds { one: 1, two: -2, three: 1 };
    let silent = Workarounds::NONE;
    assert_eq!(reported([big, little]), Workarounds { one: 0, two: -2, three: 0 });
    assert_eq!(reported([little, silent]), Workarounds { one: -1, two: -2, three: -1 });
    assert_eq!(reported([big]), Workarounds { one: 0, two: 1, three: 0 });
    assert_eq!(reported([]), Workarounds::NONE);
}

#[test]
fn cpus_with_speculative_at() {
    // Cortex-A55 r2p0, A53 r0p4, A57 r1p0 and r1p3, A72 r0p3, A76 r2p0, Neoverse N1 r1p0.
    for midr in [0x412f_d050, 0x410f_d034, 0x411f_d070, 0x411f_d073, 0x410f_d083, 0x412f_d0b0, 0x411f_d0c0] {
        assert!(has_speculative_at(midr), "{midr:#x}");
    }
    // Cortex-A55 r2p1, A76 r3p0 and r4p1, Neoverse N1 r4p1, another implementer's 0xd07.
    for midr in [0x412f_d051, 0x413f_d0b0, 0x414f_d0b1, 0x414f_d0c1, 0xc01f_d070] {
        assert!(!has_speculative_at(midr), "{midr:#x}");
    }
}
