//! The registers of EL1 change hands between virtual EL2 and its guest.

use stile_nested::vncr;

use super::mode::also;
use super::registers::{Own, Switched, with_switched};
use super::state::{Nested, UntilGuest};
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

macro_rules! moves {
    ($($index:ident: $name:ident, $slot:ident;)*) => {
        impl Nested {
            /// Virtual EL2's registers to memory, the guest's onto the CPU.
            pub fn bring_guest(&mut self) {
                $(
                    self.el2[Switched::$index as usize] = read_sysreg!($name);
                    write_sysreg!($name, self.page.get(vncr::$slot));
                )*
                self.switch_others();
                write_sysreg!(MDSCR_EL1, self.page.get(vncr::MDSCR_EL1));
                self.until_guest = UntilGuest::NOTHING;
            }

            /// Makes the page's values under EL1's names virtual EL2's.
            fn adopt_all(&mut self) {
                $(
                    let value = self.page.get(vncr::$slot);
                    if value != 0 {
                        write_sysreg!($name, value);
                        self.page.set(vncr::$slot, 0);
                    }
                )*
            }

            /// The guest's registers to the page, virtual EL2's onto the CPU. Returns the control registers of the guest's virtual
            /// and physical timer.
            #[inline(always)]
            pub fn bring_el2(&mut self) -> (u64, u64) {
                let mut timers = (0, 0);
                $(
                    let value = read_sysreg!($name);
                    self.page.set(vncr::$slot, value);
                    write_sysreg!($name, self.el2[Switched::$index as usize]);
                    match Switched::$index {
                        Switched::CntvCtl => timers.0 = value,
                        Switched::CntpCtl => timers.1 = value,
                        _ => {}
                    }
                )*
                self.page.set(vncr::MDSCR_EL1, read_sysreg!(MDSCR_EL1));
                if self.mode.also & also::MDSCR != 0 {
                    // L1 replaces the guest's value before it unmasks debug exceptions, but in memory.
                    write_sysreg!(MDSCR_EL1, 0);
                }
                self.switch_others();
                timers
            }
        }
    };
}
with_switched!(moves);

impl Nested {
    /// Adopts L1's writes under EL1's names since it set HCR_EL2.E2H: unseen, they went to memory. No guest had anything there.
    pub fn adopt(&mut self) {
        // A name of its own, and virtual EL2's stack pointer is in the register.
        let sp = self.page.get(vncr::SP_EL1);
        self.page.set(vncr::SP_EL1, 0);
        self.adopt_all();
        self.page.set(vncr::SP_EL1, sp);
    }

    /// CNTKCTL_EL1 and what waits in memory of the other's, CNTKCTL_EL12, for which there is no room in the page. With HCR_EL2.E2H
    /// clear virtual EL2 has none such: the register is the guest's at any time.
    pub fn switch_cntkctl(&mut self) {
        let waiting = &mut self.own[Own::Cntkctl as usize];
        let now = read_sysreg!(CNTKCTL_EL12);
        write_sysreg!(CNTKCTL_EL12, core::mem::replace(waiting, now));
    }

    /// Registers that change places with what waits in memory, whichever way.
    fn switch_others(&mut self) {
        if self.mode.also & also::CNTKCTL != 0 {
            self.switch_cntkctl();
        }
        if self.mode.also & also::ZCR != 0 {
            // ZCR_EL12: while virtual EL2 runs, its guest's is in the page; while the guest runs, virtual EL2's is there.
            let now = read_sysreg!(ZCR_EL12);
            write_sysreg!(ZCR_EL12, self.page.get(vncr::ZCR_EL1));
            self.page.set(vncr::ZCR_EL1, now);
        }
    }
}
