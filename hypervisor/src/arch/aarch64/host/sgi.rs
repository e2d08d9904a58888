//! Numbers of SGIs: the kick, and those that guests may have in hardware.
//!
//! Firmware at EL3 keeps SGIs 8 to 15 for itself, as Arm recommends (GIC Architecture Specification, IHI 0048, Interrupt
//! IDs) and TF-A does: non-secure software can neither enable nor send them. The kick is then SGI 7. The exit path has
//! number 15 all the same: on such machines the sites of [`gicv2`](super::gicv2) at which interrupts are acknowledged,
//! ended and deactivated branch to code that exchanges the two (`sgi.S`).

use core::sync::atomic::{AtomicU32, Ordering};

use super::sysreg::read_sysreg;

core::arch::global_asm!(include_str!("sgi.S"), KICK = const KICK, BESIDE_EL3 = const KICK_BESIDE_EL3);

/// The kick, an SGI that makes a CPU check for requests, as the exit path sees it: few guests with direct interrupts use SGI 15.
pub const KICK: u32 = 15;

/// The kick's number in hardware beside firmware at EL3: the last SGI that is not firmware's.
const KICK_BESIDE_EL3: u32 = 7;

/// Number of SGIs.
const COUNT: u32 = 16;

static HARDWARE: AtomicU32 = AtomicU32::new(KICK);

/// The kick's number in hardware.
pub fn kick() -> u32 {
    HARDWARE.load(Ordering::Relaxed)
}

/// Bit mask of Stile's other SGIs. It takes them only at CPUs of a trusted VM (`ipi = "direct"`), whose guest sends them.
pub fn others() -> u32 {
    (1 << kick()) - 1
}

/// Bit mask of SGIs that guests never have in hardware: the kick, and firmware's.
pub fn reserved() -> u32 {
    ((1 << COUNT) - 1) & !others()
}

/// Leaves SGIs 8 to 15 to firmware, if the CPU has EL3 (ID_AA64PFR0_EL1.EL3). Returns whether it has.
pub fn leave_to_firmware() -> bool {
    let has_el3 = read_sysreg!(ID_AA64PFR0_EL1) >> 12 & 0xf != 0;
    if has_el3 {
        HARDWARE.store(KICK_BESIDE_EL3, Ordering::Relaxed);
    }
    has_el3
}
