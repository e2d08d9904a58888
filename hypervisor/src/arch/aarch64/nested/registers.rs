//! The registers of EL1 that change hands between virtual EL2 and its guest, as one table: an index, the name under which EL2 reaches
//! it, and the guest's place in the page of VNCR_EL2.

use stile_nested::vncr;

use super::e2h::also;
use super::{Nested, UntilGuest};
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

macro_rules! switched {
    ($($index:ident: $name:ident, $slot:ident;)*) => {
        /// Index into [`Nested::el2`].
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub enum Switched { $(#[doc = concat!("`", stringify!($slot), "`.")] $index),* }

        /// How many there are.
        pub const SWITCHED: usize = [$(Switched::$index),*].len();

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

            /// What is in the page under EL1's names becomes virtual EL2's.
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

// Timers: the control register comes before the compare value, for it says whether that has been reached (ISTATUS), and L1 reads so of its
// guest's. In between a timer may ring with the other's compare value: its line is a level, and nothing looks at it here.
switched! {
    Sctlr: SCTLR_EL12, SCTLR_EL1;
    Cpacr: CPACR_EL12, CPACR_EL1;
    Ttbr0: TTBR0_EL12, TTBR0_EL1;
    Ttbr1: TTBR1_EL12, TTBR1_EL1;
    Tcr: TCR_EL12, TCR_EL1;
    Spsr: SPSR_EL12, SPSR_EL1;
    Elr: ELR_EL12, ELR_EL1;
    Afsr0: AFSR0_EL12, AFSR0_EL1;
    Afsr1: AFSR1_EL12, AFSR1_EL1;
    Esr: ESR_EL12, ESR_EL1;
    Far: FAR_EL12, FAR_EL1;
    Mair: MAIR_EL12, MAIR_EL1;
    Amair: AMAIR_EL12, AMAIR_EL1;
    Vbar: VBAR_EL12, VBAR_EL1;
    Contextidr: CONTEXTIDR_EL12, CONTEXTIDR_EL1;
    Sp: SP_EL1, SP_EL1;
    CntvCtl: CNTV_CTL_EL02, CNTV_CTL_EL0;
    CntvCval: CNTV_CVAL_EL02, CNTV_CVAL_EL0;
    CntpCtl: CNTP_CTL_EL02, CNTP_CTL_EL0;
    CntpCval: CNTP_CVAL_EL02, CNTP_CVAL_EL0;
}

impl Nested {
    /// What L1 wrote under EL1's names after it had set HCR_EL2.E2H, unseen: so far that was to memory. No guest had anything there.
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

/// Registers of virtual EL2 whose accesses trap, and whose value nothing but software looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Own {
    /// MDCR_EL2.
    Mdcr,
    /// HPFAR_EL2.
    Hpfar,
    /// CNTHCTL_EL2, from bit 10 on: what is below is CNTKCTL_EL1 while virtual EL2 runs. In the layout with E2H.
    Cnthctl,
    /// CNTKCTL_EL12: the guest's CNTKCTL_EL1.
    Cntkctl,
    /// CPTR_EL2: what CPACR_EL1 does not have of it. In the layout with E2H.
    Cptr,
    /// As L1 wrote them with HCR_EL2.E2H clear: SCTLR_EL2...
    PlainSctlr,
    /// TCR_EL2...
    PlainTcr,
    /// CPTR_EL2...
    PlainCptr,
    /// CNTHCTL_EL2.
    PlainCnthctl,
}

/// How many there are.
pub const OWN_REGISTERS: usize = Own::PlainCnthctl as usize + 1;
