//! Unmapped addresses: a synchronous external abort, like a bus error.

use payload::encode::{BLR_X1, load, store};
use payload::exception::{EC_DATA_ABORT, EC_INSTRUCTION_ABORT, catch};
use payload::harness::Test;
use payload::mmu::{self, Memory, PAGES, PAGES_ENTRY, ROOT, TABLE};
use payload::prelude::*;
use payload::{probe, tests};

pub const TESTS: &[Test] = tests![loads_from_nowhere, stores_to_nowhere, fetch_from_nowhere, table_walk_nowhere, ram_edges];

/// Addresses unassigned on Stile's board and on QEMU's.
const NOWHERE: [u64; 4] = [0x0B00_0000, 0x0B12_3458, 1 << 37, (1 << 37) + 0xFF_FFF8];
/// Addresses assigned on QEMU's board, but not on Stile's.
const NOWHERE_ON_STILE: [u64; 8] = [0, 0x0400_0000, 0x07FF_FFF8, 0x0801_2000, 0x0808_0000, 0x0902_0000, 0x0A00_0000, 0x3EFF_FFF8];

/// Returns unmapped physical addresses, the first one above RAM among them.
fn nowhere() -> impl Iterator<Item = u64> {
    let more = if machine::is_stile() { &NOWHERE_ON_STILE[..] } else { &[] };
    NOWHERE.into_iter().chain([machine::ram().end]).chain(more.iter().copied())
}

/// Checks that an access of `1 << size` bytes raises a synchronous external abort, with the right syndrome, and changes nothing
/// else.
fn access(address: u64, memory: Memory, size: u32, write: bool) -> Outcome {
    let virtual_address = mmu::window(address, memory, false);
    let mut registers = probe::pattern(address);
    registers[1] = virtual_address;
    let before = registers;
    let word = if write { store(size, 2, 1) } else { load(size, 2, 1) };
    let what = format_args!("{} of {} bytes at {address:#x} ({memory:?})", if write { "store" } else { "load" }, 1 << size);
    let Some(fault) = probe::run(&[word], &mut registers) else {
        return Err(Fail::new(format_args!("{what}: no exception, x2 {:#x}", registers[2])));
    };
    check!(fault.is_external_abort(), "{what}: ESR_EL1 {:#x}, expected EC {EC_DATA_ABORT:#x} and DFSC 0x10", fault.esr);
    check_eq!(fault.esr >> 6 & 1, u64::from(write), "{what}: WnR");
    check_eq!(fault.far, virtual_address, "{what}: FAR_EL1");
    check_eq!(fault.pc, probe::address(), "{what}: ELR_EL1");
    check!(registers == before, "{what}: a register changed");
    Ok(())
}

/// Checks accesses of every size to every unmapped address, as Device memory.
fn every(write: bool) -> Outcome {
    for address in nowhere() {
        for memory in [Memory::Device, Memory::DeviceEarly] {
            for size in 0..4 {
                access(address, memory, size, write)?;
            }
        }
    }
    Ok(())
}

fn loads_from_nowhere() -> Outcome {
    every(false)?;
    // With Normal memory, an abort is synchronous, too.
    nowhere().try_for_each(|address| access(address, Memory::Normal, 3, false))
}

fn stores_to_nowhere() -> Outcome {
    every(true)
}

fn fetch_from_nowhere() -> Outcome {
    for address in nowhere() {
        let virtual_address = mmu::window(address, Memory::Normal, true);
        let mut registers = probe::pattern(address);
        registers[1] = virtual_address;
        let Some(fault) = probe::run(&[BLR_X1], &mut registers) else {
            return Err(Fail::new(format_args!("jump to {address:#x}: no exception")));
        };
        check_eq!(fault.class(), EC_INSTRUCTION_ABORT, "jump to {address:#x}: exception class");
        check_eq!(fault.status(), 0x10, "jump to {address:#x}: IFSC");
        check_eq!(fault.pc, virtual_address, "jump to {address:#x}: ELR_EL1");
        check_eq!(fault.far, virtual_address, "jump to {address:#x}: FAR_EL1");
    }
    Ok(())
}

/// A translation table at an unmapped address: an external abort on the walk, at level 2.
fn table_walk_nowhere() -> Outcome {
    ROOT.set(PAGES_ENTRY, NOWHERE[0] | TABLE);
    mmu::forget(PAGES);
    let fault = catch(|| {
        // SAFETY: a load has no side effect on this program's memory, and its result is unused. It is expected to take an
        // exception, after which `catch` skips it.
        unsafe { core::arch::asm!("ldr {}, [{}]", out(reg) _, in(reg) PAGES, options(nostack)) }
    });
    ROOT.set(PAGES_ENTRY, 0);
    mmu::forget(PAGES);
    let Some(fault) = fault else { return Err(Fail::new(format_args!("no exception"))) };
    check_eq!(fault.class(), EC_DATA_ABORT, "exception class");
    // A hypervisor gets the second stage's level, not that of the interrupted walk: it may report the abort
    // without a level.
    let status = fault.status();
    check!(status == 0x16 || status == 0x10, "DFSC is {status:#x}, expected a synchronous external abort (on a walk at level 2)");
    check_eq!(fault.far, PAGES, "FAR_EL1");
    Ok(())
}

/// The first and the last doubleword of RAM can be read.
fn ram_edges() -> Outcome {
    let ram = machine::ram();
    for address in [ram.start, ram.end - 8] {
        let mut registers = [0; 31];
        registers[1] = address;
        let fault = probe::run(&[load(3, 2, 1)], &mut registers);
        check!(fault.is_none(), "load at {address:#x}: {fault:x?}");
    }
    Ok(())
}
