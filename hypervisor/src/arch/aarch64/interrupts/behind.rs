//! Physical interrupts that are linked to virtual ones.

use stile_board::intid;

use crate::arch::aarch64::host::gic;
use crate::vm::Vcpu;

/// Physical INTIDs linked to private interrupts from 16 on: the same INTID, or, with an EL2, EL1's timers for EL2's,
/// which virtual EL2 uses as its own.
pub const BEHIND: [u8; 16] = {
    let mut behind = stile_vgic::SAME_PPIS;
    behind[(intid::TIMER_EL2_PHYSICAL - intid::PPI_BASE) as usize] = intid::TIMER_EL1_PHYSICAL as u8;
    behind[(intid::TIMER_EL2_VIRTUAL - intid::PPI_BASE) as usize] = intid::TIMER_EL1_VIRTUAL as u8;
    behind
};

/// Bit mask of private interrupts with a linked physical one.
pub const fn linked(has_el2: bool) -> u32 {
    match has_el2 {
        false => 1 << intid::TIMER_EL1_VIRTUAL | 1 << intid::TIMER_EL1_PHYSICAL,
        true => 1 << intid::TIMER_EL2_VIRTUAL | 1 << intid::TIMER_EL2_PHYSICAL,
    }
}

/// Sets the active state of the physical interrupts linked to `virtual` ones.
pub fn set_active(cpu: usize, ppis: u32, active: bool) {
    let mut rest = ppis & (linked(false) | linked(true));
    while rest != 0 {
        let physical = BEHIND[(rest.trailing_zeros() - intid::PPI_BASE) as usize & 15];
        gic::set_active(cpu, physical.into(), active);
        rest &= rest - 1;
    }
}

/// Bit mask of the physical interrupts linked to virtual ones.
pub fn physical(ppis: u32) -> u32 {
    let mut rest = ppis & (linked(false) | linked(true));
    let mut physical = 0;
    while rest != 0 {
        physical |= 1 << BEHIND[(rest.trailing_zeros() - intid::PPI_BASE) as usize & 15];
        rest &= rest - 1;
    }
    physical
}

/// The vCPU's virtual interrupt that a physical timer interrupt is linked to; with an EL2, while virtual EL2 runs.
pub fn in_front(vcpu: &Vcpu, physical: u32) -> u32 {
    match (physical, vcpu.arch.has_el2) {
        (intid::TIMER_EL1_VIRTUAL, true) => intid::TIMER_EL2_VIRTUAL,
        (intid::TIMER_EL1_PHYSICAL, true) => intid::TIMER_EL2_PHYSICAL,
        _ => physical,
    }
}

/// Deactivates the physical interrupt linked to a virtual one.
pub fn deactivate(cpu: usize, intid: u32) {
    set_active(cpu, 1 << (intid & 31), false);
}
