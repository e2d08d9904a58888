//! Physical interrupts that are linked to virtual ones (ICH_LRn_EL2.HW): those of EL1's timers, which are "behind" the
//! timer interrupts that the guest sees "in front". The guest's deactivation of the virtual one deactivates the physical one.

use stile_board::intid;

use crate::arch::aarch64::host::gic;
use crate::vm::Vcpu;

/// Physical INTID linked to each private interrupt from 16 on: the same INTID, except that EL2's timers in front of a vCPU
/// with an EL2 have EL1's timers behind them, since virtual EL2 runs at EL1.
pub const BEHIND: [u8; 16] = {
    let mut behind = stile_vgic::SAME_PPIS;
    behind[(intid::TIMER_EL2_PHYSICAL - intid::PPI_BASE) as usize] = intid::TIMER_EL1_PHYSICAL as u8;
    behind[(intid::TIMER_EL2_VIRTUAL - intid::PPI_BASE) as usize] = intid::TIMER_EL1_VIRTUAL as u8;
    behind
};

/// Bit mask by INTID of private interrupts with a linked physical one, for a vCPU with or without an EL2.
pub const fn linked(has_el2: bool) -> u32 {
    match has_el2 {
        false => 1 << intid::TIMER_EL1_VIRTUAL | 1 << intid::TIMER_EL1_PHYSICAL,
        true => 1 << intid::TIMER_EL2_VIRTUAL | 1 << intid::TIMER_EL2_PHYSICAL,
    }
}

/// Sets the active state on CPU `cpu` of the physical interrupts linked to the virtual interrupts `ppis`, a bit mask by
/// INTID. Others are ignored.
pub fn set_active(cpu: usize, ppis: u32, active: bool) {
    let mut rest = ppis & (linked(false) | linked(true));
    while rest != 0 {
        let physical = BEHIND[(rest.trailing_zeros() - intid::PPI_BASE) as usize & 15];
        gic::set_active(cpu, physical.into(), active);
        rest &= rest - 1;
    }
}

/// Returns the physical interrupts linked to the virtual interrupts `ppis`, both as bit masks by INTID.
pub fn physical(ppis: u32) -> u32 {
    let mut rest = ppis & (linked(false) | linked(true));
    let mut physical = 0;
    while rest != 0 {
        physical |= 1 << BEHIND[(rest.trailing_zeros() - intid::PPI_BASE) as usize & 15];
        rest &= rest - 1;
    }
    physical
}

/// Returns the vCPU's virtual interrupt that a physical timer interrupt is linked to. A vCPU with an EL2 must be at virtual
/// EL2: at L2's levels EL1's timers are L2's.
pub fn in_front(vcpu: &Vcpu, physical: u32) -> u32 {
    match (physical, vcpu.arch.has_el2) {
        (intid::TIMER_EL1_VIRTUAL, true) => intid::TIMER_EL2_VIRTUAL,
        (intid::TIMER_EL1_PHYSICAL, true) => intid::TIMER_EL2_PHYSICAL,
        _ => physical,
    }
}

/// Deactivates the physical interrupt on CPU `cpu` that is linked to the virtual interrupt `intid`, below 32.
pub fn deactivate(cpu: usize, intid: u32) {
    set_active(cpu, 1 << (intid & 31), false);
}
