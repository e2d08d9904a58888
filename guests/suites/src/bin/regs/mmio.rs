//! Devices, accessed with every register, size and instruction form.

use payload::board::{GICD, UART};
use payload::encode::{UNDECODABLE, load, load_acquire, load_signed, load_unscaled, store, store_release};
use payload::harness::Test;
use payload::prelude::*;
use payload::uart::{Reg32, pl011};
use payload::{probe, tests};

use crate::moves::unchanged_but;

pub const TESTS: &[Test] = tests![
    load_into_each,
    load_with_each_base,
    store_from_each,
    load_sizes,
    load_sign_extension,
    store_sizes,
    ordered_forms,
    undecodable_forms,
    cache_maintenance
];

/// The priority of a spare SPI: a byte that can be written, with its neighbours.
fn priorities() -> u64 {
    GICD + 0x400 + u64::from(gic::spare_spis().start)
}

/// The route of a spare SPI: a doubleword that can be written.
fn router() -> u64 {
    GICD + 0x6000 + 8 * u64::from(gic::spare_spis().start)
}

/// Runs one access that must take no exception.
fn run(word: u32, registers: &mut probe::Registers) -> Outcome {
    let fault = probe::run(&[word], registers);
    check!(fault.is_none(), "{word:#010x} took an exception: {fault:x?}");
    Ok(())
}

fn load_into_each() -> Outcome {
    for t in 0..32_u32 {
        let n = (t + 7) % 31;
        let mut registers = probe::pattern(u64::from(t));
        registers[n as usize] = pl011::PERIPH_ID;
        let before = registers;
        run(load(2, t, n), &mut registers)?;
        if t < 31 {
            check_eq!(registers[t as usize], 0x11, "UARTPeriphID0 in x{t}");
        }
        unchanged_but(t, &before, &registers, "LDR into")?;
    }
    Ok(())
}

fn load_with_each_base() -> Outcome {
    for n in 0..31_u32 {
        let mut registers = probe::pattern(u64::from(n));
        registers[n as usize] = pl011::PERIPH_ID;
        let before = registers;
        // Base and target may be one.
        for t in [n, (n + 1) % 31] {
            registers = before;
            run(load(2, t, n), &mut registers)?;
            check_eq!(registers[t as usize], 0x11, "UARTPeriphID0 in x{t} by base x{n}");
            unchanged_but(t, &before, &registers, "LDR into")?;
        }
    }
    Ok(())
}

fn store_from_each() -> Outcome {
    let address = priorities();
    for t in 0..32_u32 {
        let n = (t + 11) % 31;
        let mut registers = probe::pattern(u64::from(t));
        registers[n as usize] = address;
        let before = registers;
        Reg32(address).write(0x5050_5050);
        run(store(2, t, n), &mut registers)?;
        let value = if t < 31 { before[t as usize] as u32 } else { 0 };
        // Four bits of each priority are always there.
        check_eq!(Reg32(address).read() & 0xF0F0_F0F0, value & 0xF0F0_F0F0, "IPRIORITYR after a store from x{t}");
        unchanged_but(32, &before, &registers, "STR from")?;
    }
    Ok(())
}

/// Loads a value of 1 << `size` bytes into a register that was all ones.
fn loaded(word: fn(u32, u32) -> u32, address: u64) -> Result<u64, Fail> {
    let mut registers = [u64::MAX; 31];
    registers[1] = address;
    run(word(2, 1), &mut registers)?;
    Ok(registers[2])
}

fn load_sizes() -> Outcome {
    let address = priorities();
    Reg32(address).write(0xD0C0_B0A0);
    check_eq!(loaded(|t, n| load(0, t, n), address)?, 0xA0, "LDRB");
    check_eq!(loaded(|t, n| load(0, t, n), address + 3)?, 0xD0, "LDRB at offset 3");
    check_eq!(loaded(|t, n| load(2, t, n), address)?, 0xD0C0_B0A0, "LDR of a word");
    gic::route(gic::spare_spis().start, 0);
    if !machine::is_gicv2() {
        check_eq!(loaded(|t, n| load(3, t, n), router())?, 0, "LDR of a doubleword");
    }
    check_eq!(loaded(|t, n| load(0, t, n), pl011::PERIPH_ID)?, 0x11, "LDRB of UARTPeriphID0");
    check_eq!(loaded(|t, n| load(1, t, n), pl011::PERIPH_ID)?, 0x11, "LDRH of UARTPeriphID0");
    Ok(())
}

fn load_sign_extension() -> Outcome {
    let address = priorities();
    Reg32(address).write(0xA0C0_30B0);
    check_eq!(loaded(|t, n| load_signed(0, true, t, n), address)?, -0x50_i64 as u64, "LDRSB into X");
    check_eq!(loaded(|t, n| load_signed(0, false, t, n), address)?, 0xFFFF_FFB0, "LDRSB into W");
    check_eq!(loaded(|t, n| load_signed(0, true, t, n), address + 1)?, 0x30, "LDRSB of a positive byte");
    check_eq!(loaded(|t, n| load_signed(2, true, t, n), address)?, 0xFFFF_FFFF_A0C0_30B0, "LDRSW");
    check_eq!(loaded(|t, n| load_signed(1, true, t, n), pl011::PERIPH_ID)?, 0x11, "LDRSH into X");
    check_eq!(loaded(|t, n| load_signed(1, false, t, n), pl011::PERIPH_ID)?, 0x11, "LDRSH into W");
    Ok(())
}

fn store_sizes() -> Outcome {
    let address = priorities();
    let mut registers = [0xFFFF_FFFF_FFFF_FFFF; 31];
    Reg32(address).write(0);
    registers[1] = address + 2;
    registers[2] = 0xFFFF_FFA0;
    run(store(0, 2, 1), &mut registers)?;
    check_eq!(Reg32(address).read(), 0x00A0_0000, "IPRIORITYR after STRB at offset 2");
    registers[1] = UART + 0x24;
    registers[2] = 0xFFFF_0012;
    run(store(1, 2, 1), &mut registers)?;
    check_eq!(pl011::IBRD.read(), 0x12, "UARTIBRD after STRH");
    Ok(())
}

/// Unscaled, acquire and release forms give a hypervisor as good a syndrome as plain ones.
fn ordered_forms() -> Outcome {
    check_eq!(loaded(load_unscaled, pl011::PERIPH_ID)?, 0x11, "LDUR");
    check_eq!(loaded(load_acquire, pl011::PERIPH_ID)?, 0x11, "LDAR");
    let mut registers = [0; 31];
    registers[1] = priorities();
    registers[2] = 0x4030_2010;
    run(store_release(2, 1), &mut registers)?;
    check_eq!(Reg32(priorities()).read(), 0x4030_2010, "IPRIORITYR after STLR");
    Ok(())
}

/// Forms without a syndrome. A device may support them; a hypervisor that does not decode instructions
/// injects an abort, like a bus error.
fn undecodable_forms() -> Outcome {
    for address in [priorities(), UART + 0x20] {
        for (name, word) in UNDECODABLE {
            let mut registers = [0x10; 31];
            registers[1] = address;
            let before = registers;
            match probe::run(&[word], &mut registers) {
                None if machine::is_stile() => return Err(Fail::new(format_args!("{name} at {address:#x} takes no exception"))),
                None => {}
                Some(fault) => {
                    check!(fault.is_external_abort(), "{name} at {address:#x}: ESR_EL1 is {:#x}", fault.esr);
                    check!(registers == before, "{name} at {address:#x} changed a register");
                }
            }
        }
    }
    payload::uart::init();
    Ok(())
}

/// Cache maintenance by the address of a device: nothing is cached.
fn cache_maintenance() -> Outcome {
    const FORMS: [(&str, u32); 4] = [("ivac", 0xD508_7621), ("cvac", 0xD50B_7A21), ("cvau", 0xD50B_7B21), ("civac", 0xD50B_7E21)];
    for address in [priorities(), UART, UART + 0x20] {
        for (name, word) in FORMS {
            let mut registers = [0x10; 31];
            registers[1] = address;
            let fault = probe::run(&[word], &mut registers);
            check!(fault.is_none(), "dc {name} at {address:#x} took an exception: {fault:x?}");
        }
    }
    Ok(())
}
