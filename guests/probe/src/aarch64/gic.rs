//! The part of the GIC that the probe needs: SGIs and the virtual timer's interrupt. With a GICv3 they are in group 1, with a GICv2 in group 0.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::platform::{Cpus, Platform};
use super::sysreg::{instruction, mrs, msr};
use super::uart::{read, write};

/// The SGI that the first CPU sends.
pub const SGI: u64 = 1;
/// The SGI that the second CPU answers with.
pub const REPLY: u64 = 2;
/// The EL1 virtual timer's PPI.
const VIRTUAL_TIMER: u32 = 27;
/// The INTID of an acknowledge without a pending interrupt.
pub const SPURIOUS: u64 = 1023;

/// GICD_TYPER.
pub const GICD_TYPER: u64 = 0x4;
/// GICD_ISENABLER<1>: the first with SPIs.
pub const GICD_ISENABLER1: u64 = 0x104;
/// GICD_CTLR: affinity routing, group 1 enabled.
const GICD_CTLR_VALUE: u32 = 1 << 4 | 1 << 1;
/// CTLR.RWP of the distributor.
const RWP: u32 = 1 << 31;
const GICR_WAKER: u64 = 0x14;
const WAKER_PROCESSOR_SLEEP: u32 = 1 << 1;
const WAKER_CHILDREN_ASLEEP: u32 = 1 << 2;
const GICR_STRIDE: u64 = 0x2_0000;
const SGI_FRAME: u64 = 0x1_0000;

/// Registers of a GICv2: the distributor's for SGIs, and those of a CPU's interface.
const GICD_SGIR: u64 = 0xf00;
const GICC_CTLR: u64 = 0;
const GICC_PMR: u64 = 0x4;
const GICC_IAR: u64 = 0xc;
const GICC_EOIR: u64 = 0x10;
/// GICD_CTLR and GICC_CTLR of a GICv2: both groups enabled.
const BOTH_GROUPS: u32 = 0b11;

/// Addresses, for CPUs that get no argument: the redistributors', or those of a GICv2's distributor and interface. Others are 0.
static GICR: AtomicU64 = AtomicU64::new(0);
static GICD: AtomicU64 = AtomicU64::new(0);
static GICC: AtomicU64 = AtomicU64::new(0);

/// Enables the distributor.
pub fn setup_distributor(platform: &Platform) {
    match platform.interfaces {
        Cpus::GicV3 { gicr } => {
            GICR.store(gicr, Relaxed);
            write(platform.gicd, GICD_CTLR_VALUE);
            while read(platform.gicd) & RWP != 0 {}
        }
        Cpus::GicV2 { gicc } => {
            GICD.store(platform.gicd, Relaxed);
            GICC.store(gicc, Relaxed);
            write(platform.gicd, BOTH_GROUPS);
        }
    }
}

/// Address of a GICv2's register for SGIs; 0 with a GICv3.
pub fn sgir() -> u64 {
    match GICD.load(Relaxed) {
        0 => 0,
        gicd => gicd + GICD_SGIR,
    }
}

/// Address of a GICv2's register for the end of interrupts; 0 with a GICv3.
pub fn eoir() -> u64 {
    match GICC.load(Relaxed) {
        0 => 0,
        gicc => gicc + GICC_EOIR,
    }
}

/// Initializes this CPU's banked registers and its interface, after the distributor: SGIs and the virtual timer enabled.
pub fn setup_cpu(cpu: u64) {
    // Not SGI 15, which Stile needs: with it, SGIs of a trusted VM would trap.
    let enabled = 0x7FFF | 1 << VIRTUAL_TIMER;
    match GICC.load(Relaxed) {
        0 => setup_gicv3(cpu, enabled),
        gicc => setup_gicv2(gicc, enabled),
    }
}

fn setup_gicv2(gicc: u64, enabled: u32) {
    let gicd = GICD.load(Relaxed);
    for word in 0..8 {
        write(gicd + 0x400 + 4 * word, 0xA0A0_A0A0); // IPRIORITYR
    }
    write(gicd + 0x100, enabled); // ISENABLER0
    use_vectors(gicc);
    write(gicc + GICC_PMR, 0xFF);
    write(gicc + GICC_CTLR, BOTH_GROUPS);
}

/// Makes this CPU take interrupts by a GICv2, whose interface is at an address.
fn use_vectors(gicc: u64) {
    unsafe extern "C" {
        static vectors_gicv2: u8;
    }
    // The handler finds the interface by it.
    msr!("tpidrro_el0", gicc);
    msr!("vbar_el1", &raw const vectors_gicv2 as u64);
}

fn setup_gicv3(cpu: u64, enabled: u32) {
    let base = GICR.load(Relaxed) + cpu * GICR_STRIDE;
    let waker = read(base + GICR_WAKER);
    write(base + GICR_WAKER, waker & !WAKER_PROCESSOR_SLEEP);
    while read(base + GICR_WAKER) & WAKER_CHILDREN_ASLEEP != 0 {}
    let frame = base + SGI_FRAME;
    write(frame + 0x80, u32::MAX); // IGROUPR0
    for word in 0..8 {
        write(frame + 0x400 + 4 * word, 0xA0A0_A0A0); // IPRIORITYR
    }
    write(frame + 0x100, enabled); // ISENABLER0
    // ICC_SRE_EL1, ICC_PMR_EL1, ICC_IGRPEN1_EL1.
    msr!("S3_0_C12_C12_5", mrs!("S3_0_C12_C12_5") | 1);
    msr!("S3_0_C4_C6_0", 0xFF);
    msr!("S3_0_C12_C12_7", 1);
}

/// The value for ICC_SGI1R_EL1 that sends `sgi` to a CPU.
pub const fn to_cpu(sgi: u64, cpu: u64) -> u64 {
    sgi << 24 | 1 << cpu
}

/// The value for GICD_SGIR that sends `sgi` to a CPU.
pub const fn to_cpu_gicv2(sgi: u64, cpu: u64) -> u64 {
    1 << (16 + cpu) | sgi
}

/// The kind of GIC, as a type: code that is measured does not ask which one there is.
pub trait Gic {
    /// Sends `sgi` to a CPU.
    fn send(sgi: u64, cpu: u64);
    /// Acknowledges and ends a pending interrupt. Returns whether there was one.
    fn take() -> bool;
}

/// A GICv3.
pub struct GicV3;

impl Gic for GicV3 {
    fn send(sgi: u64, cpu: u64) {
        send_gicv3(to_cpu(sgi, cpu));
    }

    fn take() -> bool {
        let intid = mrs!("S3_0_C12_C12_0");
        if intid >= 1020 {
            return false;
        }
        msr!("S3_0_C12_C12_1", intid);
        true
    }
}

fn send_gicv3(value: u64) {
    instruction!("dsb ish");
    msr!("S3_0_C12_C11_5", value);
}

/// A GICv2.
pub struct GicV2;

impl Gic for GicV2 {
    fn send(sgi: u64, cpu: u64) {
        instruction!("dsb ish");
        write(sgir(), to_cpu_gicv2(sgi, cpu) as u32);
    }

    fn take() -> bool {
        let gicc = GICC.load(Relaxed);
        let intid = read(gicc + GICC_IAR) & 0x3ff;
        if intid >= 1020 {
            return false;
        }
        write(gicc + GICC_EOIR, intid);
        true
    }
}

/// Sends `sgi` to all CPUs but the sender, by a GICv3.
pub fn send_to_others(sgi: u64) {
    /// IRM.
    const OTHERS: u64 = 1 << 40;
    send_gicv3(sgi << 24 | OTHERS);
}

/// Whether it is a GICv2.
pub fn is_gicv2() -> bool {
    sgir() != 0
}

/// Calls a function for the GIC that there is: `by_gic!(function(arguments))`, whose first generic parameter is the kind.
macro_rules! by_gic {
    ($function:ident($($argument:expr),*)) => {
        if $crate::arch::gic::is_gicv2() {
            $function::<$crate::arch::gic::GicV2>($($argument),*)
        } else {
            $function::<$crate::arch::gic::GicV3>($($argument),*)
        }
    };
}

/// Expands to a measurement by a macro of `measure`, in whose lines `SEND` stands for the instruction that sends an SGI to a CPU by the GIC that
/// there is.
macro_rules! sending {
    ($ticks:ident!($($n:ident,)? [$($before:literal,)* SEND $(, $after:literal)*], ($sgi:expr, $cpu:expr), $($operands:tt)*)) => {
        match $crate::arch::gic::sgir() {
            0 => $ticks!($($n,)? [$($before,)* "msr S3_0_C12_C11_5, {sgi}" $(, $after)*],
                sgi = in(reg) $crate::arch::gic::to_cpu($sgi, $cpu), $($operands)*),
            sgir => $ticks!($($n,)? [$($before,)* "str {sgi:w}, [{sgir}]" $(, $after)*],
                sgi = in(reg) $crate::arch::gic::to_cpu_gicv2($sgi, $cpu), sgir = in(reg) sgir, $($operands)*),
        }
    };
}

pub(crate) use {by_gic, sending};
