//! The calling convention: preserved registers and argument width.

use payload::harness::Test;
use payload::prelude::*;
use payload::probe;
use payload::psci::{self, id};
use payload::tests;

pub const TESTS: &[Test] = tests![keeps_registers, keeps_registers_unknown, ignores_upper_half];

/// Calls with a pattern in every non-argument register; all but x0 must be preserved (SMCCC 1.1; x1 to x3 may
/// be results).
fn call_and_compare(function: u32, arguments: [u64; 3]) -> Outcome {
    let mut registers = probe::pattern(u64::from(function));
    registers[0] = u64::from(function);
    registers[1..4].copy_from_slice(&arguments);
    let before = registers;
    let fault = probe::run(&[psci::conduit()], &mut registers);
    check!(fault.is_none(), "{function:#x}: the call took an exception: {fault:x?}");
    for index in 4..31 {
        check_eq!(registers[index], before[index], "x{index} after {function:#x}");
    }
    Ok(())
}

fn keeps_registers() -> Outcome {
    call_and_compare(id::VERSION, [1, 2, 3])?;
    call_and_compare(id::FEATURES, [u64::from(id::CPU_ON), 0, 0])?;
    call_and_compare(id::AFFINITY_INFO, [0, 0, 0])?;
    call_and_compare(id::CPU_ON, [0, 0, 0])?;
    call_and_compare(id::MIGRATE_INFO_TYPE, [0, 0, 0])
}

fn keeps_registers_unknown() -> Outcome {
    for function in [0, 0x8400_00FF, 0xC400_00FF, 0x8600_0000, 0xFFFF_FFFF] {
        call_and_compare(function, [u64::MAX, 0, 1])?;
    }
    Ok(())
}

/// A call takes the function identifier from the lower half of x0; a 32-bit function takes the lower halves of its arguments.
fn ignores_upper_half() -> Outcome {
    const JUNK: u64 = 0xDEAD_BEEF << 32;
    // QEMU's own PSCI evaluates all of x0.
    if machine::is_stile() {
        let mut registers = [0; 31];
        registers[0] = JUNK | u64::from(id::VERSION);
        probe::run(&[psci::conduit()], &mut registers);
        check_eq!(registers[0] as u32 >> 16, 1, "PSCI_VERSION with junk in the upper half of x0");
    }
    check_eq!(psci::call(id::AFFINITY_INFO_32, [JUNK | smp::this() as u64, JUNK, JUNK]), 0, "AFFINITY_INFO with junk in upper halves");
    Ok(())
}
