//! Informational calls.

use payload::harness::Test;
use payload::prelude::*;
use payload::psci::{self, call, id};
use payload::tests;

pub const TESTS: &[Test] = tests![version, features, features_unknown, migration, affinity_of_this, affinity_of_none, unknown_functions];

fn version() -> Outcome {
    let version = call(id::VERSION, [0; 3]);
    if machine::is_stile() {
        check_eq!(version, 0x1_0001, "PSCI_VERSION");
    }
    check!(version >> 16 == 1, "PSCI_VERSION is {version:#x}, expected 1.x");
    Ok(())
}

fn features() -> Outcome {
    for function in [
        id::VERSION,
        id::CPU_SUSPEND,
        id::CPU_SUSPEND_32,
        id::CPU_OFF,
        id::CPU_ON,
        id::CPU_ON_32,
        id::AFFINITY_INFO,
        id::AFFINITY_INFO_32,
        id::MIGRATE_INFO_TYPE,
        id::SYSTEM_OFF,
        id::SYSTEM_RESET,
        id::FEATURES,
    ] {
        let result = call(id::FEATURES, [u64::from(function), 0, 0]);
        check!(result >= 0, "PSCI_FEATURES of {function:#x} is {result}");
        // Only CPU_SUSPEND has feature flags.
        check!(result == 0 || function & 0xFF == 1, "PSCI_FEATURES of {function:#x} is {result:#x}");
    }
    if machine::is_stile() {
        check_eq!(call(id::FEATURES, [u64::from(id::SMCCC_VERSION), 0, 0]), 0, "PSCI_FEATURES of SMCCC_VERSION");
        let version = call(id::SMCCC_VERSION, [0; 3]);
        check!(version >= 0x1_0001, "SMCCC_VERSION is {version:#x}");
    }
    Ok(())
}

fn features_unknown() -> Outcome {
    for function in [0x8400_00FF, 0xC400_00FF, 0xC400_0002, 0x0000_0000, 0xFFFF_FFFF, 0x8300_0000] {
        let result = call(id::FEATURES, [function, 0, 0]);
        check!(result == psci::NOT_SUPPORTED, "PSCI_FEATURES of {function:#x} is {result}");
    }
    Ok(())
}

/// No trusted OS exists.
fn migration() -> Outcome {
    let kind = call(id::MIGRATE_INFO_TYPE, [0; 3]);
    check!(kind == 2 || kind == psci::NOT_SUPPORTED, "MIGRATE_INFO_TYPE is {kind}");
    for function in [id::MIGRATE_32, id::MIGRATE_INFO_UP_CPU_32, 0xC400_0005, 0xC400_0007] {
        let result = call(function, [0; 3]);
        check!(result == psci::NOT_SUPPORTED, "{function:#x} returned {result}");
    }
    Ok(())
}

fn affinity_of_this() -> Outcome {
    for function in [id::AFFINITY_INFO, id::AFFINITY_INFO_32] {
        check_eq!(call(function, [smp::this() as u64, 0, 0]), 0, "{function:#x} of this CPU");
    }
    Ok(())
}

fn affinity_of_none() -> Outcome {
    for target in [machine::cpus() as u64, 0x100, 0x1_0000, 1 << 32, u64::MAX] {
        let result = psci::call(id::AFFINITY_INFO, [target, 0, 0]);
        check!(result == psci::INVALID_PARAMETERS, "AFFINITY_INFO of {target:#x} is {result}");
    }
    Ok(())
}

fn unknown_functions() -> Outcome {
    let functions: [u32; 14] = [
        0x8400_00FF,
        0xC400_00FF,
        0x8400_7777,
        0x8200_0000,
        0xC200_0001,
        0x8300_0000,
        0xC300_0000,
        0x8600_FF00,
        0xBF00_0000,
        0xFF00_1234,
        0x0000_0000,
        0x0000_0001,
        0x7FFF_FFFF,
        0x0200_0000,
    ];
    for function in functions {
        let mut registers = payload::probe::pattern(u64::from(function));
        registers[0] = u64::from(function);
        payload::probe::run(&[psci::conduit()], &mut registers);
        check!(registers[0] as i32 == -1, "{function:#x} returned {:#x}", registers[0]);
    }
    Ok(())
}
