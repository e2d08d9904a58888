//! EL0: its exceptions go to the guest's EL1, not to a hypervisor.

use core::sync::atomic::{AtomicU32, Ordering::*};

use payload::encode::{self, Sysreg};
use payload::exception::{EC_SVC, Fault, catch_with_landing};
use payload::harness::Test;
use payload::mmu::{self, EL0, Memory, PAGES, PAGES_ENTRY, ROOT, TABLE, Table};
use payload::prelude::*;
use payload::{instruction, tests};

pub const TESTS: &[Test] = tests![el0_supervisor_call, el0_undefined, el0_debug_channel];

core::arch::global_asm!(
    ".global enter_el0",
    "enter_el0:",
    "msr ELR_EL1, x0",
    "mov x0, #0x3C0",
    "msr SPSR_EL1, x0",
    "isb",
    "eret",
    ".global el0_landing",
    "el0_landing:",
    "ret",
);

unsafe extern "C" {
    fn enter_el0(address: u64);
    fn el0_landing();
}

/// Exception class of a trapped MSR, MRS or system instruction.
const EC_SYSREG: u64 = 0x18;

#[repr(C, align(4096))]
struct Page([AtomicU32; 1024]);

static LEVEL2: Table = Table::new();
static LEVEL3: Table = Table::new();
static PAGE: Page = Page([const { AtomicU32::new(0) }; 1024]);

/// Executes one instruction at EL0; returns the exception that ended it.
fn run(word: u32) -> Option<Fault> {
    PAGE.0[0].store(word, Release);
    // If it takes no exception, this one does.
    PAGE.0[1].store(encode::brk(0xE0), Release);
    LEVEL3.set(0, mmu::page(&PAGE as *const Page as u64, Memory::Normal) | EL0);
    LEVEL2.set(0, LEVEL3.address() | TABLE);
    ROOT.set(PAGES_ENTRY, LEVEL2.address() | TABLE);
    mmu::forget(PAGES);
    // SAFETY: cache maintenance changes no content.
    unsafe { core::arch::asm!("dc cvau, {0}", "dsb ish", "ic ialluis", "dsb ish", "isb", in(reg) &PAGE, options(nostack)) };
    let fault = catch_with_landing(el0_landing as *const () as u64, || {
        // SAFETY: the exception returns to the landing with the caller's registers.
        unsafe { enter_el0(PAGES) }
    });
    ROOT.set(PAGES_ENTRY, 0);
    mmu::forget(PAGES);
    instruction!("isb");
    fault
}

fn expect(word: u32, esr: u64, pc: u64, what: &str) -> Outcome {
    let Some(fault) = run(word) else { return Err(Fail::new(format_args!("{what} takes no exception"))) };
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
