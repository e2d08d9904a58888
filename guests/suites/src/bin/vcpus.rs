//! As many vCPUs as the boot argument `vcpus=N` says: starts them by PSCI, interrupts one and then all others, and waits
//! until each has turned itself off.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use payload::entry::Entry;
use payload::gic::{FIRST_REGION, redistributor};
use payload::harness::{self, Harness};
use payload::prelude::*;
use payload::uart::Reg32;
use payload::{gic, icc, instruction, psci, wait};

payload::program!(main);

/// The most vCPUs.
const MOST: usize = 256;
/// The SGI that ends a vCPU.
const END: u32 = 5;

/// A vCPU's report: its affinity once it waits for [`END`]. Cache lines of their own: it writes with caches off.
#[repr(C, align(64))]
struct Report {
    affinity: AtomicU64,
    /// SGI_base frame of its redistributor.
    frame: AtomicU64,
}

static REPORTS: [Report; MOST] = [const { Report { affinity: AtomicU64::new(0), frame: AtomicU64::new(0) } }; MOST];

// Enters with the address of its report in x0, translation and caches off, interrupts masked: one that is pending ends
// WFI all the same.
core::arch::global_asm!(
    ".global started_vcpu",
    "started_vcpu:",
    "mrs x1, S3_0_C12_C12_5", // ICC_SRE_EL1
    "orr x1, x1, #1",
    "msr S3_0_C12_C12_5, x1",
    "isb",
    "mov x1, #0xff",
    "msr S3_0_C4_C6_0, x1", // ICC_PMR_EL1
    "mov x1, #1",
    "msr S3_0_C12_C12_7, x1", // ICC_IGRPEN1_EL1
    "isb",
    "ldr x2, [x0, #8]",
    "mov w1, #-1",
    "str w1, [x2, #0x80]", // GICR_IGROUPR0
    "mov w1, #1 << {end}",
    "str w1, [x2, #0x100]", // GICR_ISENABLER0
    "dsb sy",
    "mrs x1, MPIDR_EL1",
    "str x1, [x0]",
    "dsb sy",
    "1: wfi",
    "mrs x1, S3_0_C12_C12_0", // ICC_IAR1_EL1
    "cmp w1, #{end}",
    "b.ne 1b",
    "msr S3_0_C12_C12_1, x1", // ICC_EOIR1_EL1
    "ldr w0, ={off}",
    "hvc #0",
    "b .",
    ".ltorg",
    end = const END,
    off = const psci::id::CPU_OFF,
);

unsafe extern "C" {
    fn started_vcpu();
}

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("vcpus", entry);
    harness.run(gic::reset, payload::tests![redistributors, start, one_interrupt, interrupt_all]);
    harness::exit(harness.sum())
}

fn vcpus() -> usize {
    (machine::number("vcpus", 1) as usize).clamp(1, MOST)
}

fn affinity(vcpu: usize) -> u64 {
    psci::affinity(vcpu as u64)
}

/// GICR_TYPER of each: affinity, number, and whether it is the last one of its region.
fn redistributors() -> Outcome {
    for vcpu in 0..vcpus() {
        let [low, high] = [8, 12].map(|offset| Reg32(redistributor(vcpu) + offset).read());
        let last = vcpu + 1 == vcpus() || vcpu + 1 == FIRST_REGION;
        check!(u64::from(high) == affinity(vcpu), "vCPU {vcpu} has affinity {high:#x}");
        check!(low == (vcpu as u32) << 8 | u32::from(last) << 4, "vCPU {vcpu}: GICR_TYPER {low:#x}");
    }
    Ok(())
}

/// Reads what a vCPU reported.
fn reported(vcpu: usize) -> u64 {
    // SAFETY: cleaning and invalidating a line of caches changes no value: nothing was written through them.
    unsafe { core::arch::asm!("dc civac, {}", "dsb sy", in(reg) &raw const REPORTS[vcpu], options(nostack)) };
    REPORTS[vcpu].affinity.load(Ordering::Relaxed)
}

fn start() -> Outcome {
    for (vcpu, report) in REPORTS.iter().enumerate().take(vcpus()).skip(1) {
        report.frame.store(redistributor(vcpu) + 0x1_0000, Ordering::Relaxed);
        reported(vcpu);
        let arguments = [affinity(vcpu), started_vcpu as *const () as u64, core::ptr::from_ref(report) as u64];
        let result = psci::call(psci::id::CPU_ON, arguments);
        check!(result == psci::SUCCESS, "CPU_ON of vCPU {vcpu} returned {result}");
    }
    for absent in [affinity(vcpus()), 0x10, 0x1000, 1 << 16] {
        let result = psci::call(psci::id::CPU_ON, [absent, started_vcpu as *const () as u64, 0]);
        check!(result == psci::INVALID_PARAMETERS, "CPU_ON of {absent:#x} returned {result}");
    }
    for vcpu in 1..vcpus() {
        check!(wait::until(|| reported(vcpu) != 0), "vCPU {vcpu} does not come up");
        let names = reported(vcpu) & 0xff_00ff_ffff;
        check!(names == affinity(vcpu), "vCPU {vcpu} has affinity {names:#x}");
    }
    Ok(())
}

fn is_off(vcpu: usize) -> bool {
    psci::affinity_info_of(affinity(vcpu)) == psci::OFF
}

/// An SGI without targets reaches no vCPU, and one to the last vCPU that one only.
fn one_interrupt() -> Outcome {
    let last = vcpus() - 1;
    let (cluster, target) = (last / 16, last % 16);
    icc::sgi1r(u64::from(END) << 24);
    icc::sgi1r((cluster as u64) << 16 | u64::from(END) << 24 | 1 << target);
    check!(wait::until(|| is_off(last)), "vCPU {last} takes no interrupt");
    let off = (1..last).find(|&vcpu| is_off(vcpu));
    check!(off.is_none(), "vCPU {} took the interrupt of vCPU {last}", off.unwrap_or(0));
    Ok(())
}

fn interrupt_all() -> Outcome {
    icc::sgi_others(END);
    for vcpu in 1..vcpus() {
        check!(wait::until(|| is_off(vcpu)), "vCPU {vcpu} takes no interrupt");
    }
    instruction!("isb");
    Ok(())
}
