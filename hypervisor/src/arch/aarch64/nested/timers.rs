//! Timers of the regime that is not in the CPU: CNTHV, an EL2 timer that is otherwise unused, stands in for them
//! while the other regime has EL1's timers.

use stile_board::intid;
use stile_nested_arm::vncr::{self, Slot};

use super::gic;
use super::registers::Switched;
use super::state::{Nested, Regime};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::write_sysreg;
use crate::arch::aarch64::host::timer;
use crate::arch::aarch64::interrupts::delivery;

/// CNTHV's PPI on this board.
pub const STAND_IN: u32 = intid::TIMER_EL2_VIRTUAL;

/// A timer of virtual EL2: its control and compare registers, the linked physical interrupt, and the virtual one.
const EL2: [(Switched, Switched, u32, u32); 2] = [
    (Switched::CntvCtl, Switched::CntvCval, intid::TIMER_EL1_VIRTUAL, intid::TIMER_EL2_VIRTUAL),
    (Switched::CntpCtl, Switched::CntpCval, intid::TIMER_EL1_PHYSICAL, intid::TIMER_EL2_PHYSICAL),
];

/// A timer of the guest: its control and compare registers, and its interrupt.
const GUEST: [(Slot, Slot, u32); 2] = [
    (vncr::CNTV_CTL_EL0, vncr::CNTV_CVAL_EL0, intid::TIMER_EL1_VIRTUAL),
    (vncr::CNTP_CTL_EL0, vncr::CNTP_CVAL_EL0, intid::TIMER_EL1_PHYSICAL),
];

/// CNTV_CTL_EL0.ISTATUS, CNTP_CTL_EL0.ISTATUS.
const ISTATUS: u64 = 1 << 2;

/// ENABLE without IMASK.
const fn runs(control: u64) -> bool {
    control & 0b11 == 0b01
}

#[inline(always)]
fn set_deadline(deadline: Option<u64>) {
    /// A compare value that is never reached: cheaper than disabling the timer.
    const NEVER: u64 = u64::MAX;
    write_sysreg!(CNTHV_CVAL_EL2, deadline.unwrap_or(NEVER));
}

impl Nested {
    /// Enables the stand-in at load; it stays enabled until put.
    pub fn start_stand_in(&self) {
        set_deadline(self.stand_in_deadline());
        write_sysreg!(CNTHV_CTL_EL2, 1);
    }

    /// Next expiry among those timers that have not expired.
    #[cold]
    #[inline(never)]
    pub fn stand_in_deadline(&self) -> Option<u64> {
        match self.regime {
            Regime::Guest => self.el2_deadline(),
            Regime::El2 => self.guest_deadline(),
        }
    }

    /// Timers of virtual EL2.
    #[inline(always)]
    fn el2_deadline(&self) -> Option<u64> {
        let deadline = |&(control, compare, physical, _): &(Switched, Switched, u32, u32)| {
            let rings = runs(self.el2[control as usize]) && self.el2_active >> physical & 1 == 0;
            rings.then_some(self.el2[compare as usize])
        };
        EL2.iter().filter_map(deadline).min()
    }

    /// Timers of the guest, converted to the counter without an offset.
    #[cold]
    fn guest_deadline(&self) -> Option<u64> {
        /// HCR_EL2.{IMO, TGE}: a physical interrupt at virtual EL2 is taken there.
        const INTERRUPTS_TO_EL2: u64 = 1 << 4 | 1 << 27;
        if self.page.get(vncr::HCR_EL2) & INTERRUPTS_TO_EL2 == 0 {
            return None;
        }
        let deadline = |&(control, compare, physical): &(Slot, Slot, u32)| {
            if !runs(self.page.get(control)) || self.held >> physical & 1 != 0 {
                return None;
            }
            let offset = if control == vncr::CNTV_CTL_EL0 { self.page.get(vncr::CNTVOFF_EL2) } else { 0 };
            Some(timer::virtual_deadline(self.page.get(compare), offset))
        };
        GUEST.iter().filter_map(deadline).min()
    }

    /// Whether a timer of the guest, whose registers are in the page, asserts its interrupt.
    pub fn waiting_timer_rings(&self, physical: u32) -> bool {
        let rings =
            |&(control, compare, _): &(Slot, Slot, u32)| runs(self.page.get(control)) && self.page.get(compare) <= self.guest_time(compare);
        GUEST.iter().find(|timer| timer.2 == physical).is_some_and(rings)
    }

    /// Guest entry: the stand-in represents virtual EL2's timers.
    #[inline(always)]
    pub fn stand_in_for_el2(&self) {
        set_deadline(self.el2_deadline());
    }

    /// Guest exit: the stand-in represents the guest's enabled timers that have not expired. `virt`, `physical`:
    /// their control registers.
    #[inline(always)]
    pub fn stand_in_for_guest(&self, virt: u64, physical: u64) {
        let rung = |intid: u32| u64::from(self.held >> intid);
        // ENABLE is bit 0.
        let on = virt & !rung(intid::TIMER_EL1_VIRTUAL) | physical & !rung(intid::TIMER_EL1_PHYSICAL);
        set_deadline(if on & 1 != 0 { self.guest_deadline() } else { None });
    }
}

/// Disables the stand-in at put.
pub fn stop_stand_in() {
    write_sysreg!(CNTHV_CTL_EL2, 0);
}

/// Handles the stand-in's expiry: raises L1's interrupts of the expired timers. L1's own interface is loaded.
pub fn stand_in_expired(cpu: &mut Cpu, nested: &mut Nested) {
    match nested.regime {
        Regime::Guest => expire_el2(cpu, nested),
        Regime::El2 => expire_guest(cpu, nested),
    }
}

fn expire_el2(cpu: &mut Cpu, nested: &mut Nested) {
    set_deadline(None);
    let now = timer::now();
    for (control, compare, physical, front) in EL2 {
        let rings = runs(nested.el2[control as usize]) && nested.el2[compare as usize] <= now;
        if rings && nested.el2_active >> physical & 1 == 0 {
            // As if it had been acknowledged, which must not happen again when virtual EL2 has its timer back: the
            // physical interrupt is active then.
            nested.el2_active |= 1 << physical;
            delivery::inject_timer(cpu.vcpu(), cpu.index, front);
        }
    }
}

fn expire_guest(cpu: &mut Cpu, nested: &mut Nested) {
    let vcpu = cpu.vcpu();
    for (control, _, physical) in GUEST {
        // Unless L1 has stopped it in memory.
        if nested.held >> physical & 1 == 0 && nested.waiting_timer_rings(physical) {
            // L1 reads it there as well.
            nested.page.set(control, nested.page.get(control) | ISTATUS);
            gic::guest_timer_expired(cpu, vcpu, nested, physical);
        }
    }
    // Next expiry, for the other timer.
    set_deadline(nested.guest_deadline());
}
