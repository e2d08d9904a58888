//! Hand-over of a CPU's redistributor to a guest with direct SGIs and timers ([`stile_vgic::Direct`]), and its
//! return. Arm GIC Architecture Specification, The GIC Redistributor register map.

use stile_vgic::{Direct, HIGHEST_PRIORITY, HostPriorities, Observed};

use super::gic::{OWN, PRIORITY, redistributor, set_priority, wait_for_writes};
use super::sgi;
use super::sysreg::dsb_ish;
use core::sync::atomic::Ordering;

const CTLR: usize = 0x0;
/// GICR_CTLR.RWP.
const CTLR_RWP: u32 = 1 << 3;
const SGI: usize = 0x1_0000;
const ISENABLER0: usize = SGI + 0x100;
const ICENABLER0: usize = SGI + 0x180;
const ISPENDR0: usize = SGI + 0x200;
const ICPENDR0: usize = SGI + 0x280;
const ISACTIVER0: usize = SGI + 0x300;
const ICACTIVER0: usize = SGI + 0x380;

/// SGIs as bits.
const SGIS: u32 = 0xffff;

/// Gives this CPU's SGIs and timers to its guest. Stile's own private interrupts are disabled; their pending state is
/// kept.
pub fn hand_over(cpu: usize, direct: &Direct, priorities: HostPriorities) {
    let gicr = redistributor(cpu);
    gicr.write32(ICENABLER0, u32::MAX);
    // From here on the guest is not interrupted by Stile's interrupts.
    wait_for_writes(&gicr, CTLR, CTLR_RWP);
    for (intid, &priority) in (0..).zip(&direct.priorities).filter(|(intid, _)| direct.all >> intid & 1 != 0) {
        set_priority(&gicr, SGI, intid, priorities.of_guest(priority));
    }
    set_priority(&gicr, SGI, sgi::kick(), HIGHEST_PRIORITY);
    gicr.write32(ISPENDR0, direct.pending);
    gicr.write32(ICACTIVER0, direct.deactivate);
    gicr.write32(ISENABLER0, direct.enabled);
    dsb_ish();
}

/// Disables all private interrupts of this CPU, whose guest had its SGIs and timers. Returns the active ones.
pub fn stop(cpu: usize) -> u32 {
    let gicr = redistributor(cpu);
    gicr.write32(ICENABLER0, u32::MAX);
    wait_for_writes(&gicr, CTLR, CTLR_RWP);
    gicr.read32(ISACTIVER0)
}

/// Returns the private interrupts of this CPU to Stile, after [`stop`]. `all`: those that the guest had. None of the
/// active ones has an active priority any more. `sgis`: SGIs to enable in addition to the kick.
pub fn take_back(cpu: usize, all: u32, sgis: u32) -> Observed {
    let gicr = redistributor(cpu);
    let pending = gicr.read32(ISPENDR0) & all & SGIS;
    let active = gicr.read32(ISACTIVER0) & all;
    gicr.write32(ICPENDR0, pending);
    gicr.write32(ICACTIVER0, active & SGIS);
    for intid in (0..32).filter(|intid| (all | 1 << sgi::kick()) >> intid & 1 != 0) {
        set_priority(&gicr, SGI, intid, PRIORITY);
    }
    // Other late SGIs stay pending until `strays` finds them.
    gicr.write32(ISENABLER0, OWN.load(Ordering::Relaxed) | sgis);
    dsb_ish();
    Observed { pending, active }
}

/// Enables further SGIs on a CPU.
pub fn accept(cpu: usize, sgis: u32) {
    redistributor(cpu).write32(ISENABLER0, sgis);
    dsb_ish();
}

/// Disables SGIs enabled by [`accept`], and clears their pending state.
pub fn ignore(cpu: usize, sgis: u32) {
    let gicr = redistributor(cpu);
    gicr.write32(ICENABLER0, sgis);
    wait_for_writes(&gicr, CTLR, CTLR_RWP);
    gicr.write32(ICPENDR0, sgis);
    dsb_ish();
}

/// Takes guests' SGIs that are pending at a CPU where no vCPU is direct: clears them, and returns their bit mask.
pub fn take_late_sgis(cpu: usize) -> u32 {
    let gicr = redistributor(cpu);
    let pending = gicr.read32(ISPENDR0) & SGIS & !(1 << sgi::kick());
    if pending != 0 {
        gicr.write32(ICPENDR0, pending);
        // Complete before another vCPU may become direct there.
        gicr.read32(ICPENDR0);
    }
    pending
}

/// Makes a kick end the WFI of a CPU with direct interrupts. Its guest must be unable to run: it would take the kick
/// as its own.
pub fn let_kick_wake(cpu: usize) {
    redistributor(cpu).write32(ISENABLER0, 1 << sgi::kick());
    dsb_ish();
}
