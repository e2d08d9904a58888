//! Reset, load and put of a vCPU with an EL2.

use stile_nested_arm::vncr;

use super::controls::{Base, RW};
use super::lazy_traps::{self, LazyTraps};
use super::mode::Mode;
use super::registers::SWITCHED;
use super::state::{Nested, Regime, UntilGuest};
use super::{e2h, gic, timers, traps};
use crate::arch::aarch64::exit::vectors;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::vm::second_stage;

impl Nested {
    /// Sets the reset state: at virtual EL2, with HCR_EL2.E2H clear if supported.
    pub fn reset(&mut self, mpidr: u64) {
        self.page.clear();
        self.mode = Mode::at_reset(self.nv_mode);
        self.page.set(vncr::HCR_EL2, self.mode.e2h | RW);
        self.page.set(vncr::VPIDR_EL2, read_sysreg!(MIDR_EL1));
        self.page.set(vncr::VMPIDR_EL2, mpidr);
        self.base = Base::new();
        self.lazy_traps = LazyTraps::at_reset();
        self.trap_mdscr_writes(true);
        self.regime = Regime::El2;
        self.el2 = [0; SWITCHED];
        self.own = e2h::own_at_reset();
        self.until_guest = UntilGuest { may_adopt: true, wrote_mdscr: false };
        self.lists = None;
        (self.active_is_guests, self.timers_raised, self.asserts_maintenance) = (false, false, false);
        (self.held, self.el2_active) = (0, 0);
        self.mpidr = mpidr;
    }

    /// Loads the vCPU's nested state. `waiting_traps`: whether WFI and WFE trap on this CPU for the scheduler.
    pub fn load(&mut self, waiting_traps: bool) {
        self.waiting_traps = waiting_traps;
        if self.nv_mode.redirects() {
            write_sysreg!(VNCR_EL2, &raw const self.page as u64);
        }
        write_sysreg!(VBAR_EL2, self.mode.vectors(self.nv_mode));
        lazy_traps::set_copies_to_el2(true);
        if self.debug.is_on() {
            self.lazy_traps.load_own();
        }
        traps::load(self);
        self.start_stand_in();
    }

    /// Puts the vCPU's nested state: restores the traps and vectors that vCPUs without an EL2 rely on.
    pub fn put(&mut self) {
        write_sysreg!(VBAR_EL2, vectors::base());
        traps::note_serror(self);
        traps::put(self);
        lazy_traps::set_copies_to_el2(false);
        timers::stop_stand_in();
        gic::put(self);
        if self.regime == Regime::Guest {
            // The shadow may be reassigned before this vCPU is loaded again.
            second_stage::leave();
        }
    }

    /// Sets whether WFI and WFE trap for the scheduler.
    pub fn set_waiting_traps(&mut self, on: bool) {
        traps::note_serror(self);
        self.waiting_traps = on;
        traps::load(self);
    }
}
