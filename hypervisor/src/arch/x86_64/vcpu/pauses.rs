//! vCPUs that wait for another one in a loop of PAUSE (the manual, "PAUSE-Loop Exiting"): they exit while others want the CPU, if the CPU can
//! have them do so.

use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::vmx;
use crate::arch::x86_64::host::vmx::secondary::PAUSE_LOOPS;

/// PAUSEs that are no more ticks apart are of one loop, and one that is as long as the window exits: locks are held for less.
const GAP: u64 = 128;
/// Ticks of a loop of PAUSE until it exits: locks are held for less.
const WINDOW: u64 = 4096;

/// Whether a vCPU's loops exit, as its VMCS has it.
pub struct Pauses(bool);

impl Pauses {
    /// Chooses for a VMCS that is being written anew. The control itself is written with those of the local APIC ([`Pauses::control`]).
    pub fn reset(&mut self, on: bool) {
        let can = vmx::features().pause_loops;
        if can {
            vmcs::write(Field::PAUSE_GAP, GAP);
            vmcs::write(Field::PAUSE_WINDOW, WINDOW);
        }
        self.0 = on && can;
    }

    /// Chooses for the VMCS that is current.
    pub fn trap(&mut self, on: bool) {
        if self.0 != on && vmx::features().pause_loops {
            self.0 = on;
            let others = vmcs::read(Field::SECONDARY_CONTROLS) & !u64::from(PAUSE_LOOPS);
            vmcs::write(Field::SECONDARY_CONTROLS, others | self.control());
        }
    }

    /// The secondary control for it.
    pub fn control(&self) -> u64 {
        if self.0 { PAUSE_LOOPS.into() } else { 0 }
    }
}
