//! EL0: its exceptions go to the guest's EL1, not to a hypervisor.

use core::sync::atomic::{AtomicU32, Ordering::*};

use payload::encode::{self, Sysreg};
use payload::exception::{EC_SVC, EC_UNKNOWN, Fault, catch_with_landing};
use payload::harness::Test;
use payload::mmu::{self, EL0, Memory, PAGES, PAGES_ENTRY, ROOT, TABLE, Table};
use payload::prelude::*;
use payload::{instruction, tests};

pub const TESTS: &[Test] = tests![el0_supervisor_call, el0_undefined, el0_debug_channel, el0_aarch32_counter];

core::arch::global_asm!(
    ".global enter_el0",
    "enter_el0:",
    "msr ELR_EL1, x0",
    "msr SPSR_EL1, x1",
    "isb",
    "eret",
    ".global el0_landing",
    "el0_landing:",
    "ret",
);

unsafe extern "C" {
    /// Continues at an address with this SPSR_EL1.
    fn enter_el0(address: u64, pstate: u64);
    fn el0_landing();
}

/// Exception class of a trapped MSR, MRS or system instruction.
const EC_SYSREG: u64 = 0x18;

#[repr(C, align(4096))]
struct Page([AtomicU32; 1024]);

static LEVEL2: Table = Table::new();
static LEVEL3: Table = Table::new();
static PAGE: Page = Page([const { AtomicU32::new(0) }; 1024]);

/// An execution state at EL0, and an address that it can reach.
#[derive(Clone, Copy)]
struct State {
    /// PSTATE with interrupts masked.
    pstate: u64,
    /// Entry of [`ROOT`], which is unused otherwise: RAM ends below.
    entry: usize,
}

const AARCH64: State = State { pstate: 0x3C0, entry: PAGES_ENTRY };
/// User mode, A32. The last GiB of 32-bit addresses.
const AARCH32: State = State { pstate: 0x1D0, entry: 3 };

impl State {
    const fn address(self) -> u64 {
        (self.entry as u64) << 30
    }
}

/// Executes one instruction at EL0, then `last`; returns the exception that ended it.
fn run(state: State, word: u32, last: u32) -> Option<Fault> {
    PAGE.0[0].store(word, Release);
    PAGE.0[1].store(last, Release);
    LEVEL3.set(0, mmu::page(&PAGE as *const Page as u64, Memory::Normal) | EL0);
    LEVEL2.set(0, LEVEL3.address() | TABLE);
    let before = ROOT.get(state.entry);
    ROOT.set(state.entry, LEVEL2.address() | TABLE);
    mmu::forget(state.address());
    // SAFETY: cache maintenance moves contents between caches and memory, and changes none.
    unsafe { core::arch::asm!("dc cvau, {0}", "dsb ish", "ic ialluis", "dsb ish", "isb", in(reg) &PAGE, options(nostack)) };
    let fault = catch_with_landing(el0_landing as *const () as u64, || {
        // SAFETY: the exception returns to the landing with the caller's registers.
        unsafe { enter_el0(state.address(), state.pstate) }
    });
    ROOT.set(state.entry, before);
    mmu::forget(state.address());
    instruction!("isb");
    fault
}

fn expect(word: u32, esr: u64, pc: u64, what: &str) -> Outcome {
    // If it takes no exception, the next one does.
    let Some(fault) = run(AARCH64, word, encode::brk(0xE0)) else { return Err(Fail::new(format_args!("{what} takes no exception"))) };
    check_eq!(fault.esr & 0xFFFF_FFFF, esr, "ESR_EL1 of {what} at EL0");
    check_eq!(fault.pc, pc, "ELR_EL1 of {what} at EL0");
    check_eq!(fault.pstate & 0x1F, 0, "SPSR_EL1.M of {what} at EL0");
    Ok(())
}

fn el0_supervisor_call() -> Outcome {
    expect(encode::svc(0x1234), EC_SVC << 26 | 1 << 25 | 0x1234, PAGES + 4, "SVC")
}

fn el0_undefined() -> Outcome {
    const UNDEFINED: u64 = 1 << 25;
    expect(encode::hvc(0), UNDEFINED, PAGES, "HVC")?;
    expect(encode::SMC, UNDEFINED, PAGES, "SMC")?;
    expect(encode::UDF, UNDEFINED, PAGES, "UDF")?;
    expect(Sysreg::new(3, 0, 1, 0, 0).read(0), UNDEFINED, PAGES, "MRS SCTLR_EL1")?;
    expect(Sysreg::new(3, 0, 12, 11, 5).write(0), UNDEFINED, PAGES, "MSR ICC_SGI1R_EL1")?;
    expect(Sysreg::new(3, 4, 1, 1, 0).read(0), UNDEFINED, PAGES, "MRS HCR_EL2")
}

/// EL1 traps EL0's accesses of the debug communications channel, also while the OS lock is set.
fn el0_debug_channel() -> Outcome {
    const TDCC: u64 = 1 << 12;
    /// Of MRS X0, MDCCSR_EL0: op0, op1, CRm, and the direction (Arm ARM, "ISS encoding for an exception from MSR, MRS ...").
    const ISS: u64 = 2 << 20 | 3 << 14 | 1 << 1 | 1;
    let before = mrs!("MDSCR_EL1");
    let mut outcomes = [Ok(()), Ok(())];
    for (locked, outcome) in outcomes.iter_mut().enumerate() {
        msr!("OSLAR_EL1", locked as u64);
        msr!("MDSCR_EL1", before | TDCC);
        *outcome = expect(Sysreg::new(2, 3, 0, 1, 0).read(0), EC_SYSREG << 26 | 1 << 25 | ISS, PAGES, "MRS MDCCSR_EL0");
        msr!("MDSCR_EL1", before);
    }
    msr!("OSLAR_EL1", 0);
    outcomes.into_iter().collect()
}

/// The PMU does not exist for EL0 in either execution state. EL1 may get the access as a trap of its own (PMUSERENR_EL0.EN is clear), which
/// comes before any of a hypervisor's. An access whose condition fails is skipped, whether or not the CPU traps it.
fn el0_aarch32_counter() -> Outcome {
    /// Of MRC and MRRC, cp15.
    const EC_MRC: u64 = 0x03;
    const EC_MRRC: u64 = 0x04;
    /// MRC p15, 0, R0, c9, c13, 0, without its condition.
    const MRC: u32 = 0x0E19_0F1D;
    /// MRRC p15, 0, R0, R1, c9, without its condition.
    const MRRC: u32 = 0x0C51_0F09;
    /// MRC p14, 0, R0, c0, c1, 0: DBGDSCRint, of the debug communications channel.
    const CHANNEL: u32 = 0x0E10_0E11;
    if mrs!("ID_AA64PFR0_EL1") & 0xF != 2 {
        skip!("EL0 has no AArch32 state");
    }
    let Some(fault) = run(AARCH64, Sysreg::new(3, 3, 9, 13, 0).read(0), encode::brk(0xE0)) else {
        return Err(Fail::new(format_args!("MRS takes no exception")));
    };
    check!([EC_UNKNOWN, EC_SYSREG].contains(&fault.class()), "MRS PMCCNTR_EL0: {fault:x?}");
    expect_aarch32(MRC, EC_MRC, "MRC PMCCNTR")?;
    expect_aarch32(MRRC, EC_MRRC, "MRRC PMCCNTR")?;
    // Stile traps it on CPUs that can, for AArch32 code to an undefined instruction.
    if machine::is_stile() {
        let Some(fault) = run(AARCH32, ALWAYS | CHANNEL, LAST) else { return Err(Fail::new(format_args!("UDF takes no exception"))) };
        let offset = fault.pc.wrapping_sub(AARCH32.address());
        check!(fault.class() == EC_UNKNOWN && offset <= 4, "MRC DBGDSCRint: {fault:x?}");
    }
    Ok(())
}

/// A32 condition codes, in position.
const EQUAL: u32 = 0;
const ALWAYS: u32 = 0xE << 28;
/// UDF #0.
const LAST: u32 = 0xE7F0_00F0;

/// Executes an A32 instruction that is undefined, or that EL1 traps with `class`; and with a condition that fails.
fn expect_aarch32(word: u32, class: u64, what: &str) -> Outcome {
    for (condition, offset, classes) in [(ALWAYS, 0, [EC_UNKNOWN, class]), (EQUAL, 4, [EC_UNKNOWN; 2])] {
        let Some(fault) = run(AARCH32, condition | word, LAST) else { return Err(Fail::new(format_args!("{what} takes no exception"))) };
        check!(classes.contains(&fault.class()), "{what}, condition {condition:#x}: {fault:x?}");
        check_eq!(fault.pc, AARCH32.address() + offset, "ELR_EL1 of {what}, condition {condition:#x}");
        check_eq!(fault.pstate & 0x1F, 0x10, "SPSR_EL1.M of {what}");
    }
    Ok(())
}
