//! Instructions that take an exception: to the guest, with the architecture's own syndrome.

use payload::encode::{self, NOP};
use payload::exception::*;
use payload::harness::Test;
use payload::prelude::*;
use payload::{probe, tests};

pub const TESTS: &[Test] =
    tests![breakpoint_instruction, supervisor_call, undefined_instructions, halt_instruction, secure_call, illegal_return, alignment];

fn expect(word: u32, what: &str) -> Result<Fault, Fail> {
    let mut registers = probe::pattern(u64::from(word));
    let before = registers;
    let fault = probe::run(&[NOP, word, NOP], &mut registers).ok_or(Fail::new(format_args!("{what} takes no exception")))?;
    check!(registers == before, "{what} changed a register");
    Ok(fault)
}

fn breakpoint_instruction() -> Outcome {
    for immediate in [0, 1, 0xF000, 0xFFFF] {
        let fault = expect(encode::brk(immediate), "BRK")?;
        check_eq!(fault.esr & 0xFFFF_FFFF, EC_BRK << 26 | 1 << 25 | u64::from(immediate), "ESR_EL1 of BRK");
        check_eq!(fault.pc, probe::address() + 4, "ELR_EL1 of BRK");
    }
    Ok(())
}

fn supervisor_call() -> Outcome {
    for immediate in [0, 0x1234, 0xFFFF] {
        let fault = expect(encode::svc(immediate), "SVC")?;
        check_eq!(fault.esr & 0xFFFF_FFFF, EC_SVC << 26 | 1 << 25 | u64::from(immediate), "ESR_EL1 of SVC");
        check_eq!(fault.pc, probe::address() + 8, "ELR_EL1 of SVC");
    }
    Ok(())
}

fn undefined(word: u32, what: &str) -> Outcome {
    let fault = expect(word, what)?;
    check!(fault.is_undefined(), "{what}: ESR_EL1 is {:#x}, expected EC 0", fault.esr);
    check_eq!(fault.pc, probe::address() + 4, "ELR_EL1 of {what}");
    Ok(())
}

fn undefined_instructions() -> Outcome {
    undefined(encode::UDF, "UDF")?;
    undefined(encode::UDF | 0xFFFF, "UDF #0xffff")?;
    // DCPS1 outside debug state, and an encoding in reserved space.
    undefined(0xD4A0_0001, "DCPS1")?;
    undefined(0x1234 << 5 | 0x0200_0000, "a reserved encoding")
}

/// HLT is undefined unless a debugger halts the CPU. 0xF000 is the semihosting call, which an emulator may answer.
fn halt_instruction() -> Outcome {
    for immediate in [0, 1, 0xFFFF] {
        undefined(encode::hlt(immediate), "HLT")?;
    }
    if machine::is_stile() {
        undefined(encode::hlt(0xF000), "HLT #0xf000")?;
    }
    Ok(())
}

/// EL3 doesn't exist.
fn secure_call() -> Outcome {
    undefined(encode::SMC, "SMC")
}

/// ERET to a reserved state, or not below EL1: PSTATE.IL is set, and the next instruction raises an
/// exception.
fn illegal_return() -> Outcome {
    // EL2h, EL2t, EL3h, AArch32 EL1 modes, reserved.
    for mode in [0x9, 0x8, 0xD, 0x13, 0x1F, 0x2, 0x7] {
        // adr x2, next; msr ELR_EL1, x2; msr SPSR_EL1, x1; eret; next: nop
        let words = [0x1000_0082, 0xD518_4022, 0xD518_4001, 0xD69F_03E0, NOP];
        let mut registers = [0; 31];
        registers[1] = 0x3C0 | mode;
        let fault = probe::run(&words, &mut registers);
        let Some(fault) = fault else {
            return Err(Fail::new(format_args!("ERET to mode {mode:#x} takes no exception")));
        };
        check_eq!(fault.class(), EC_ILLEGAL_STATE, "exception class after ERET to mode {mode:#x}");
        check_eq!(fault.pc, probe::address() + 16, "ELR_EL1 after ERET to mode {mode:#x}");
        check_eq!(fault.pstate & 0xF, 5, "mode after ERET to mode {mode:#x}");
        check_eq!(mrs!("CurrentEL"), 4, "CurrentEL");
    }
    Ok(())
}

/// An odd address: of a load, with alignment checks on, and of an instruction.
fn alignment() -> Outcome {
    let sctlr = mrs!("SCTLR_EL1");
    let mut registers = [0; 31];
    registers[1] = payload::board::RAM + 0x8_0001;
    msr!("SCTLR_EL1", sctlr | 1 << 1);
    let fault = probe::run(&[encode::load(2, 2, 1)], &mut registers);
    msr!("SCTLR_EL1", sctlr);
    let status = fault.map(|fault| (fault.class(), fault.status(), fault.far == registers[1]));
    check!(status == Some((EC_DATA_ABORT, 0x21, true)), "an odd load with SCTLR_EL1.A: {fault:x?}");
    registers[1] = payload::board::RAM + 0x8_0002;
    let fault = probe::run(&[encode::BLR_X1], &mut registers);
    check!(fault.is_some_and(|fault| fault.class() == EC_PC_ALIGNMENT), "a jump to an odd address: {fault:x?}");
    Ok(())
}
