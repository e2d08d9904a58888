//! The part of the GICv3 that the probe needs: SGIs and the virtual timer's interrupt, group 1.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::platform::Platform;
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

/// The redistributors' address, for the second CPU, too, which gets no argument.
static GICR: AtomicU64 = AtomicU64::new(0);

/// Enables the distributor.
pub fn setup_distributor(platform: &Platform) {
    GICR.store(platform.gicr, Relaxed);
    write(platform.gicd, GICD_CTLR_VALUE);
    while read(platform.gicd) & RWP != 0 {}
}

/// Initializes this CPU's redistributor and interface, after the distributor: SGIs and the virtual timer in
/// group 1, enabled.
pub fn setup_cpu(cpu: u64) {
    let base = GICR.load(Relaxed) + cpu * GICR_STRIDE;
    let waker = read(base + GICR_WAKER);
    write(base + GICR_WAKER, waker & !WAKER_PROCESSOR_SLEEP);
    while read(base + GICR_WAKER) & WAKER_CHILDREN_ASLEEP != 0 {}
    let frame = base + SGI_FRAME;
    // Not SGI 15, which Stile needs: with it, SGIs of a trusted VM would trap.
    let enabled = 0x7FFF | 1 << VIRTUAL_TIMER;
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
pub const fn sgi_to(sgi: u64, cpu: u64) -> u64 {
    sgi << 24 | 1 << cpu
}

/// The value for ICC_SGI1R_EL1 that sends `sgi` to all CPUs but the sender: IRM.
pub const fn sgi_to_others(sgi: u64) -> u64 {
    sgi << 24 | 1 << 40
}

/// Sends an SGI with a value of [`sgi_to`].
pub fn send(value: u64) {
    instruction!("dsb ish");
    msr!("S3_0_C12_C11_5", value);
}

/// Acknowledges and ends a pending interrupt. Returns whether there was one.
pub fn take() -> bool {
    let intid = mrs!("S3_0_C12_C12_0");
    if intid >= 1020 {
        return false;
    }
    msr!("S3_0_C12_C12_1", intid);
    true
}
