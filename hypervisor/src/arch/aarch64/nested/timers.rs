//! EL1's timers are virtual EL2's, or its guest's. For those of the one that is not on the CPU one of EL2's own that nothing else uses,
//! CNTHV, stands in.

use stile_board::intid;
use stile_nested::vncr;

use super::registers::Switched;
use super::{Nested, Regime, gic};
use crate::arch::aarch64::cpu::Cpu;
use crate::arch::aarch64::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::{gic as physical, handler, timer};

/// CNTHV's private interrupt on this board.
pub const STAND_IN: u32 = intid::TIMER_EL2_VIRTUAL;

/// A timer of virtual EL2: its control and compare registers, the physical interrupt behind it, and the virtual one.
const TIMERS: [(Switched, Switched, u32, u32); 2] = [
    (Switched::CntvCtl, Switched::CntvCval, intid::TIMER_EL1_VIRTUAL, intid::TIMER_EL2_VIRTUAL),
    (Switched::CntpCtl, Switched::CntpCval, intid::TIMER_EL1_PHYSICAL, intid::TIMER_EL2_PHYSICAL),
];

impl Nested {
    /// When the next of virtual EL2's timers rings that has not rung already, L2 being on the CPU.
    pub fn el2_deadline(&self) -> Option<u64> {
        let deadline = |&(control, compare, physical, _): &(Switched, Switched, u32, u32)| {
            // ENABLE without IMASK.
            let runs = self.el2[control as usize] & 0b11 == 0b01 && self.el2_active >> physical & 1 == 0;
            runs.then_some(self.el2[compare as usize])
        };
        TIMERS.iter().filter_map(deadline).min()
    }

    /// Lets the stand-in ring for virtual EL2.
    pub fn start_stand_in(&self) {
        match self.el2_deadline() {
            Some(deadline) => start(deadline),
            None => stop_stand_in(),
        }
    }
}

fn start(deadline: u64) {
    write_sysreg!("S3_4_C14_C3_2", deadline); // CNTHV_CVAL_EL2
    write_sysreg!("S3_4_C14_C3_1", 1); // CNTHV_CTL_EL2
}

/// A timer of the guest's: its control and compare registers in the page, and its interrupt.
const GUESTS: [(vncr::Slot, vncr::Slot, u32); 2] = [
    (vncr::CNTV_CTL_EL0, vncr::CNTV_CVAL_EL0, intid::TIMER_EL1_VIRTUAL),
    (vncr::CNTP_CTL_EL0, vncr::CNTP_CVAL_EL0, intid::TIMER_EL1_PHYSICAL),
];

/// HCR_EL2.{IMO, TGE}: a physical interrupt that comes at virtual EL2 is taken there.
const INTERRUPTS_TO_EL2: u64 = 1 << 4 | 1 << 27;

impl Nested {
    /// When the next of the guest's timers rings that L1 has not heard of yet, virtual EL2 being on the CPU. What L1 changes of them
    /// goes to memory, unseen: it counts from the guest's next exit on.
    #[inline(always)]
    pub fn guest_deadline(&self) -> Option<u64> {
        // ENABLE without IMASK.
        let runs = |control| self.page.get(control) & 0b11 == 0b01;
        if !runs(vncr::CNTV_CTL_EL0) && !runs(vncr::CNTP_CTL_EL0) {
            return None;
        }
        self.running_guest_deadline()
    }

    #[inline(never)]
    fn running_guest_deadline(&self) -> Option<u64> {
        if self.page.get(vncr::HCR_EL2) & INTERRUPTS_TO_EL2 == 0 {
            return None;
        }
        let now = timer::now();
        let deadline = |&(control, compare, physical): &(vncr::Slot, vncr::Slot, u32)| {
            let runs = self.page.get(control) & 0b11 == 0b01 && self.held >> physical & 1 == 0;
            runs.then(|| now.saturating_add(self.page.get(compare).saturating_sub(self.guest_time(compare))))
        };
        GUESTS.iter().filter_map(deadline).min()
    }

    /// Lets the stand-in ring for the guest.
    #[inline(always)]
    pub fn start_stand_in_for_guest(&self) {
        match self.guest_deadline() {
            Some(deadline) => start(deadline),
            None => stop_stand_in(),
        }
    }
}

/// A physical interrupt of EL1's timers or of the stand-in came while the vCPU, which is loaded, sleeps. L1's own interface is on the CPU.
pub fn rang_in_sleep(cpu: &mut Cpu, nested: &mut Nested, intid: u32) {
    if intid == STAND_IN {
        physical::deactivate(intid);
    }
    match (nested.regime, intid) {
        (Regime::Guest, STAND_IN) => stand_in_rang(cpu, nested),
        (Regime::El2, STAND_IN) => stand_in_rang_at_el2(cpu, nested),
        (Regime::Guest, _) => gic::guest_timer_rang(cpu, cpu.vcpu(), nested, intid),
        (Regime::El2, _) => {}
    }
}

/// It rang at virtual EL2: the interrupts of those timers of the guest's whose time has come are L1's.
pub fn stand_in_rang_at_el2(cpu: &mut Cpu, nested: &mut Nested) {
    for (_, _, physical) in GUESTS {
        if nested.held >> physical & 1 == 0 && nested.waiting_timer_rings(physical) {
            gic::guest_timer_rang(cpu, cpu.vcpu(), nested, physical);
        }
    }
    nested.start_stand_in_for_guest();
}

/// Stops it.
pub fn stop_stand_in() {
    if read_sysreg!("S3_4_C14_C3_1") != 0 {
        write_sysreg!("S3_4_C14_C3_1", 0);
    }
}

/// It rang: the interrupts of those timers whose time has come are L1's. L1's own interface is on the CPU.
pub fn stand_in_rang(cpu: &mut Cpu, nested: &mut Nested) {
    stop_stand_in();
    let now = timer::now();
    for (control, compare, physical, front) in TIMERS {
        let rings = nested.el2[control as usize] & 0b11 == 0b01 && nested.el2[compare as usize] <= now;
        if rings && nested.el2_active >> physical & 1 == 0 {
            // As if it had been acknowledged, which it must not be again when virtual EL2 has its timer back: its physical interrupt
            // will be active then.
            nested.el2_active |= 1 << physical;
            handler::inject_timer(cpu.vcpu(), cpu.index, front);
        }
    }
}
