use super::*;
use core::ops::Range;
use proptest::prelude::*;

const RAM: Range<u64> = 0x4000_0000..0x8000_0000;
const ENTRY: Entry = Entry { address: 0x4008_0000, context_id: 0x1234 };

fn call(function_id: u32, x1: u64, x2: u64, x3: u64) -> Result<Call, Error> {
    decode(function_id.into(), x1, x2, x3)
}

#[test]
fn decodes_every_implemented_function() {
    let cpu_on = Call::CpuOn { target: 1, entry: ENTRY };
    let affinity = Call::AffinityInfo { target: 1, level: 0 };
    let asked = Call::Features { function_id: 1 };
    let expected = [
        (id::VERSION, Call::Version),
        (id::CPU_SUSPEND, Call::CpuSuspend),
        (id::CPU_SUSPEND_64, Call::CpuSuspend),
        (id::CPU_OFF, Call::CpuOff),
        (id::CPU_ON, cpu_on),
        (id::CPU_ON_64, cpu_on),
        (id::MIGRATE_INFO_TYPE, Call::MigrateInfoType),
        (id::SYSTEM_OFF, Call::SystemOff),
        (id::SYSTEM_RESET, Call::SystemReset),
        (id::FEATURES, asked),
    ];
    for (function_id, decoded) in expected {
        let call = call(function_id, 1, ENTRY.address, ENTRY.context_id);
        assert_eq!(call, Ok(decoded), "{function_id:#x}");
    }
    for function_id in [id::AFFINITY_INFO, id::AFFINITY_INFO_64] {
        assert_eq!(call(function_id, 1, 0, 0), Ok(affinity));
    }
    for function_id in [id::SYSTEM_RESET2, id::SYSTEM_RESET2_64] {
        assert_eq!(call(function_id, 0, 0, 0), Ok(Call::SystemReset));
    }
}

#[test]
fn answers_what_is_not_implemented() {
    let cpu_default_suspend = 0x8400_000c;
    let system_suspend = 0xc400_000e;
    let migrate = 0x8400_0005;
    let version_64 = 0xc400_0000;
    for function_id in [cpu_default_suspend, system_suspend, migrate, version_64, 0] {
        assert_eq!(call(function_id, 0, 0, 0), Err(Error::NotSupported));
        assert_eq!(features(function_id), u64::MAX);
    }
}

#[test]
fn features_agree_with_decode() {
    for low in 0..0x20 {
        for function_id in [0x8400_0000 | low, 0xc400_0000 | low] {
            let implemented = call(function_id, 0, 0, 0) != Err(Error::NotSupported);
            assert_eq!(features(function_id) == 0, implemented, "{function_id:#x}");
        }
    }
    assert_eq!(features(smccc::id::VERSION), 0);
}

#[test]
fn the_function_identifier_is_the_low_half_of_x0() {
    let x0 = 0xffff_ffff_0000_0000 | u64::from(id::VERSION);
    assert_eq!(decode(x0, 0, 0, 0), Ok(Call::Version));
}

#[test]
fn smc32_arguments_are_low_halves() {
    let high = 0xdead_beef_0000_0000;
    let arguments = [high | 1, high | 0x4000_0000, high | 7];
    let [x1, x2, x3] = arguments;
    let expect = |target, address, context_id| {
        let entry = Entry { address, context_id };
        Ok(Call::CpuOn { target, entry })
    };
    assert_eq!(call(id::CPU_ON, x1, x2, x3), expect(1, 0x4000_0000, 7));
    assert_eq!(call(id::CPU_ON_64, x1, x2, x3), expect(x1, x2, x3));
}

#[test]
fn rejects_bad_levels_and_resets() {
    let invalid = Err(Error::InvalidParameters);
    assert_eq!(call(id::AFFINITY_INFO_64, 0, 4, 0), invalid);
    assert_eq!(call(id::SYSTEM_RESET2, 1, 0, 0), invalid);
    assert_eq!(call(id::SYSTEM_RESET2_64, 0x8000_0000, 0, 0), invalid);
    let level_3 = Call::AffinityInfo { target: 0, level: 3 };
    assert_eq!(call(id::AFFINITY_INFO, 0, 3, 0), Ok(level_3));
}

#[test]
fn error_codes_are_sign_extended() {
    assert_eq!(Error::NotSupported.x0(), u64::MAX);
    assert_eq!(Error::InvalidAddress.x0() as i64, -9);
}

#[test]
fn a_vcpu_goes_from_off_through_pending_to_on() {
    let mut table = PowerTable::new(2);
    assert_eq!(table.state(0), PowerState::On);
    assert_eq!(table.state(1), PowerState::Off);
    assert_eq!(table.start(1), None);
    assert_eq!(table.cpu_on(1, ENTRY, &RAM), Ok(1));
    assert_eq!(table.state(1), PowerState::OnPending(ENTRY));
    assert_eq!(table.cpu_on(1, ENTRY, &RAM), Err(Error::OnPending));
    assert_eq!(table.start(1), Some(ENTRY));
    assert_eq!(table.start(1), None);
    assert_eq!(table.state(1), PowerState::On);
    assert_eq!(table.cpu_on(1, ENTRY, &RAM), Err(Error::AlreadyOn));
    assert_eq!(table.cpu_off(1), 1);
    assert_eq!(table.cpu_on(1, ENTRY, &RAM), Ok(1));
}

#[test]
fn only_vcpus_of_the_vm_can_be_named() {
    let mut table = PowerTable::new(2);
    for target in [2, 8, 0x100, 0x8000_0001, 1 << 32 | 1, 1 << 40 | 1, u64::MAX] {
        let result = table.cpu_on(target, ENTRY, &RAM);
        assert_eq!(result, Err(Error::InvalidParameters), "{target:#x}");
        let info = table.affinity_info(target, 0);
        assert_eq!(info, Err(Error::InvalidParameters), "{target:#x}");
    }
}

#[test]
fn sixteen_vcpus_are_a_cluster() {
    let mut table = PowerTable::new(40);
    assert_eq!(table.cpu_on(0x203, ENTRY, &RAM), Ok(35));
    assert_eq!(table.state(35), PowerState::OnPending(ENTRY));
    assert_eq!(
        [(0x203, 0), (0x203, 1), (0x100, 1), (0, 1), (0x203, 2)].map(|(at, level)| table.affinity_info(at, level)),
        [Ok(2), Ok(2), Ok(1), Ok(0), Ok(0)]
    );
    for target in [0x10, 0x110, 0x208, 0x300, 0x1_0000] {
        assert_eq!(table.cpu_on(target, ENTRY, &RAM), Err(Error::InvalidParameters), "{target:#x}");
    }
    assert_eq!(table.affinity_info(0x300, 1), Err(Error::InvalidParameters));
}

#[test]
fn entry_points_must_be_instructions_in_ram() {
    let mut table = PowerTable::new(2);
    for address in [0, 0x3fff_fffc, 0x8000_0000, 0x4000_0002, u64::MAX] {
        let entry = Entry { address, ..ENTRY };
        let result = table.cpu_on(1, entry, &RAM);
        assert_eq!(result, Err(Error::InvalidAddress), "{address:#x}");
        assert_eq!(table.state(1), PowerState::Off);
    }
}

#[test]
fn affinity_info_names_the_state() {
    let mut table = PowerTable::new(3);
    assert_eq!(table.affinity_info(0, 0), Ok(0));
    assert_eq!(table.affinity_info(1, 0), Ok(1));
    table.cpu_on(1, ENTRY, &RAM).unwrap();
    assert_eq!(table.affinity_info(1, 0), Ok(2));
}

#[test]
fn higher_levels_hold_all_vcpus() {
    let mut table = PowerTable::new(3);
    for (level, target) in [(1, 0x02), (2, 0x1234), (3, 0x12_3456)] {
        assert_eq!(table.affinity_info(target, level), Ok(0));
        let elsewhere = 1 << (8 * level);
        let invalid = Err(Error::InvalidParameters);
        assert_eq!(table.affinity_info(elsewhere, level), invalid);
    }
    table.cpu_on(2, ENTRY, &RAM).unwrap();
    table.cpu_off(0);
    assert_eq!(table.affinity_info(0, 1), Ok(2));
    table.start(2);
    table.cpu_off(2);
    assert_eq!(table.affinity_info(0, 1), Ok(1));
    assert_eq!(table.affinity_info(0, 4), Err(Error::InvalidParameters));
}

#[test]
fn reset_leaves_the_first_vcpu_on() {
    let mut table = PowerTable::new(2);
    table.cpu_on(1, ENTRY, &RAM).unwrap();
    table.cpu_off(0);
    table.reset();
    assert_eq!(table.state(0), PowerState::On);
    assert_eq!(table.state(1), PowerState::Off);
}

/// A model of a vCPU that repeatedly powers off and on: the steps of its own CPU, of which `off_told` may be delayed, and those of the
/// caller of `CPU_ON`. Each step is one critical section of the table's or of the distributor's lock.
#[derive(Clone)]
struct OffAndOn {
    table: PowerTable,
    /// The distributor's state.
    online: bool,
    /// The scheduler lets it run.
    runs: bool,
    /// Recorded calls of `CPU_OFF` that have not reached the distributor.
    off_untold: usize,
    /// A recorded `CPU_ON` has not reached the distributor.
    on_untold: bool,
    offs: usize,
}

impl OffAndOn {
    /// Explores all interleavings from here. Returns the number of final states.
    fn explore(&self) -> usize {
        let mut ends = 0;
        let mut step = |possible: bool, act: fn(&mut OffAndOn)| {
            if possible {
                let mut next = self.clone();
                act(&mut next);
                ends += next.explore();
            }
        };
        step(self.runs && self.offs < 3, |it| {
            it.table.cpu_off(1);
            (it.runs, it.off_untold, it.offs) = (false, it.off_untold + 1, it.offs + 1);
        });
        step(self.off_untold > 0, |it| {
            if it.table.is_off(1) {
                it.online = false;
            }
            it.off_untold -= 1;
        });
        step(self.table.is_off(1), |it| {
            it.table.cpu_on(1, ENTRY, &RAM).unwrap();
            it.table.start(1);
            it.on_untold = true;
        });
        step(self.on_untold, |it| (it.online, it.on_untold, it.runs) = (true, false, true));
        if self.off_untold == 0 && !self.on_untold {
            assert_eq!(self.online, !self.table.is_off(1));
        }
        ends + usize::from(self.off_untold == 0 && self.runs && self.offs == 3)
    }
}

#[test]
fn a_vcpu_that_is_turned_on_again_at_once_is_never_taken_for_off() {
    let mut table = PowerTable::new(2);
    table.cpu_on(1, ENTRY, &RAM).unwrap();
    table.start(1);
    let start = OffAndOn { table, online: true, runs: true, off_untold: 0, on_untold: false, offs: 0 };
    assert!(start.explore() > 10);
}

proptest! {
    #[test]
    fn nothing_a_guest_says_panics(regs in any::<[u64; 4]>(), low in 0u32..0x20, wide: bool) {
        let function_id = 0x8400_0000 | low | u32::from(wide) << 30;
        let mut table = PowerTable::new(8);
        let [x0, x1, x2, x3] = regs;
        let _ = decode(x0, x1, x2, x3);
        let _ = match call(function_id, x1, x2, x3) {
            Ok(Call::CpuOn { target, entry }) => table.cpu_on(target, entry, &RAM).map(|_| 0),
            Ok(Call::AffinityInfo { target, level }) => table.affinity_info(target, level),
            Ok(Call::Features { function_id }) => Ok(features(function_id)),
            _ => Ok(0),
        };
    }

    #[test]
    fn the_count_of_running_vcpus_is_right(
        steps in prop::collection::vec((0usize..10, 0u8..3), 0..60),
    ) {
        let mut table = PowerTable::new(8);
        for (vcpu, action) in steps {
            match action {
                0 => { let _ = table.cpu_on(vcpu as u64, ENTRY, &RAM); }
                1 => { table.start(vcpu); }
                _ => {
                    let left = table.cpu_off(vcpu);
                    let states = (0..8).map(|vcpu| table.state(vcpu));
                    let counted = states.filter(|&state| state != PowerState::Off).count();
                    prop_assert_eq!(left, counted);
                }
            }
        }
    }
}
