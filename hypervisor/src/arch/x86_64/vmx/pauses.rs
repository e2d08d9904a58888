//! PAUSE-loop exiting (the manual, "PAUSE-Loop Exiting"): loops exit while other vCPUs want the CPU, if the CPU
//! supports it.

use crate::arch::x86_64::vmx::extension;
use crate::arch::x86_64::vmx::extension::secondary::PAUSE_LOOPS;
use crate::arch::x86_64::vmx::vmcs::{self, Field};

/// PLE_Gap: maximum distance of PAUSEs in the same loop, in ticks.
const GAP: u64 = 128;
/// PLE_Window: ticks of a loop until it exits, longer than locks are usually held.
const WINDOW: u64 = 4096;

/// Whether a vCPU's PAUSE loops exit, by its VMCS.
pub struct Pauses(bool);

impl Pauses {
    /// Selects for a VMCS that is being initialized. The control is written together with those of the local APIC
    /// ([`Pauses::control`]).
    pub fn reset(&mut self, on: bool) {
        let can = extension::features().pause_loops;
        if can {
            vmcs::write(Field::PAUSE_GAP, GAP);
            vmcs::write(Field::PAUSE_WINDOW, WINDOW);
        }
        self.0 = on && can;
    }

    /// Selects for the current VMCS.
    pub fn trap(&mut self, on: bool) {
        if self.0 != on && extension::features().pause_loops {
            self.0 = on;
            let others = vmcs::read(Field::SECONDARY_CONTROLS) & !u64::from(PAUSE_LOOPS);
            vmcs::write(Field::SECONDARY_CONTROLS, others | self.control());
        }
    }

    /// Secondary control for the selection.
    pub fn control(&self) -> u64 {
        if self.0 { PAUSE_LOOPS.into() } else { 0 }
    }
}
