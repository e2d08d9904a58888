//! Virtual EL2's timers while L2 has EL1's: one of EL2's own that nothing else uses, CNTHV, stands in for both.

use stile_board::intid;

use super::Nested;
use super::registers::Switched;
use crate::arch::aarch64::cpu::Cpu;
use crate::arch::aarch64::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::{handler, timer};

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
            Some(deadline) => {
                write_sysreg!("S3_4_C14_C3_2", deadline); // CNTHV_CVAL_EL2
                write_sysreg!("S3_4_C14_C3_1", 1); // CNTHV_CTL_EL2
            }
            None => stop_stand_in(),
        }
    }
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
