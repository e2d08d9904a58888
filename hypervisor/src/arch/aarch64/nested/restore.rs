//! Exchange of EL1's registers between virtual EL2 and its guest.

use stile_nested_arm::vncr;

use super::mode::extra;
use super::registers::{Own, Switched, with_switched};
use super::state::{Nested, UntilGuest};
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

macro_rules! moves {
    ($($index:ident: $name:ident, $slot:ident;)*) => {
        impl Nested {
            /// Saves virtual EL2's registers and loads the guest's.
            pub fn restore_guest(&mut self) {
                $(
                    self.el2[Switched::$index as usize] = read_sysreg!($name);
                    write_sysreg!($name, self.page.get(vncr::$slot));
                )*
                self.switch_others();
                write_sysreg!(MDSCR_EL1, self.page.get(vncr::MDSCR_EL1));
                self.until_guest = UntilGuest::NOTHING;
            }

            /// Moves the page's values under EL1's names to virtual EL2's registers. A value of 0 counts as not written:
            /// FEAT_NV2 records no writes, and the page was zero at reset. So a 0 that L1 wrote has no effect if L1 had set
            /// the register to another value by its EL2 name; L1 then sees its earlier value.
            fn adopt_all(&mut self) {
                $(
                    let value = self.page.get(vncr::$slot);
                    if value != 0 {
                        write_sysreg!($name, value);
                        self.page.set(vncr::$slot, 0);
                    }
                )*
            }

            /// Saves the guest's registers to the page and loads virtual EL2's. Returns the control registers of the
            /// guest's virtual and physical timer.
            #[inline(always)]
            pub fn restore_el2(&mut self) -> (u64, u64) {
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
                if self.mode.extra & extra::MDSCR != 0 {
                    // FEAT_NV2 redirects L1's accesses to memory, so the register would keep the guest's value, which must not
                    // raise debug exceptions in L1. `load_mdscr` copies L1's own value.
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
    /// Adopts L1's writes under EL1's names since it set HCR_EL2.E2H: FEAT_NV2 redirected them to memory without a
    /// trap. The page held no guest state before.
    pub fn adopt(&mut self) {
        // SP_EL1 is never virtual EL2's own register, whatever E2H: L1's value for its guest stays in the page.
        let sp = self.page.get(vncr::SP_EL1);
        self.page.set(vncr::SP_EL1, 0);
        self.adopt_all();
        self.page.set(vncr::SP_EL1, sp);
    }

    /// Exchanges CNTKCTL_EL1 with CNTKCTL_EL12, which has no place in the page. With HCR_EL2.E2H clear virtual EL2
    /// has no such register, and the CPU's is always the guest's.
    pub fn switch_cntkctl(&mut self) {
        let waiting = &mut self.own[Own::Cntkctl as usize];
        let now = read_sysreg!(CNTKCTL_EL12);
        write_sysreg!(CNTKCTL_EL12, core::mem::replace(waiting, now));
    }

    /// Exchanges registers with their counterparts in memory, in either direction.
    fn switch_others(&mut self) {
        if self.mode.extra & extra::CNTKCTL != 0 {
            self.switch_cntkctl();
        }
        if self.mode.extra & extra::ZCR != 0 {
            // ZCR_EL12: the page has the guest's value while virtual EL2 runs, and virtual EL2's while the guest
            // runs.
            let now = read_sysreg!(ZCR_EL12);
            write_sysreg!(ZCR_EL12, self.page.get(vncr::ZCR_EL1));
            self.page.set(vncr::ZCR_EL1, now);
        }
    }
}
