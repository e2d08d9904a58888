//! HCR_EL2.E2H of L1. If set, virtual EL2 accesses EL1's registers by their own names, and its guest's are in the
//! page. If clear (with HCR_EL2.NV1 set on the CPU) EL1's names refer to the guest's registers, in the page, and
//! those of virtual EL2 have a different layout, which crate `nested-arm` converts to EL1's. With NV1 the CPU interprets
//! virtual EL2's tables, in EL1's registers, as EL2's (Arm ARM, "HCR_EL2.NV1": execute-never bits, AP[1], PAN).
//!
//! With FEAT_NV2 L1 writes HCR_EL2 in memory, without a trap, so that the bit takes effect at L1's next trap. A
//! hypervisor that changes it has its MMU off, and sets its registers next; values that it set before, during its
//! boot, are adopted from the page ([`Nested::adopt`]).

use stile_nested_arm::{layout, vncr};
use stile_sysreg::SysReg;

use super::controls::E2H;
use super::home::{CNTKCTL_FIELDS, CPACR_FIELDS, Home, Live, Plain, fixed_home};
use super::mode::{Mode, may_be_clear};
use super::registers::{OWN_REGISTERS, Own};
use super::state::Nested;
use super::traps;
use crate::arch::aarch64::host::sysreg::{dsb_ish, isb, write_sysreg};
use crate::arch::aarch64::host::timer;

/// Reset values of virtual EL2's registers in memory.
pub fn own_at_reset() -> [u64; OWN_REGISTERS] {
    let mut own = [0; OWN_REGISTERS];
    // RES1 bits, and FP traps as in CPACR_EL1.
    own[Own::PlainSctlr as usize] = 0x30c5_0830;
    own[Own::PlainCptr as usize] = 0x37ff;
    own
}

impl Nested {
    // Not inlined: exits of a hypervisor with E2H set are unaffected.

    /// Applies L1's HCR_EL2.E2H, at virtual EL2. Returns whether it changed; the trapped instruction is then executed
    /// again.
    #[inline(never)]
    pub fn settle(&mut self) -> bool {
        let written = self.page.get(vncr::HCR_EL2) & E2H;
        let changes = written != self.mode.e2h && may_be_clear(self.nv_mode);
        if changes {
            self.change(written != 0);
        }
        changes
    }

    #[cold]
    fn change(&mut self, set: bool) {
        if set {
            self.mode = Mode::set(self.nv_mode);
            let plain = |own: Own| self.own[own as usize];
            let (cptr, cnthctl) = (plain(Own::PlainCptr), plain(Own::PlainCnthctl));
            let plain_sctlr = plain(Own::PlainSctlr);
            Live::Sctlr.write(plain_sctlr);
            Live::Tcr.write(plain(Own::PlainTcr));
            self.switch_cntkctl();
            self.write(Home::Split(Live::Cpacr, Own::Cptr, CPACR_FIELDS), cptr);
            self.write(Home::Split(Live::Cntkctl, Own::Cnthctl, CNTKCTL_FIELDS), cnthctl);
            if self.until_guest.may_adopt && plain_sctlr & 1 == 0 {
                self.adopt();
            }
        } else {
            self.mode = Mode::clear();
            let cptr = self.read(Home::Split(Live::Cpacr, Own::Cptr, CPACR_FIELDS));
            let cnthctl = self.read(Home::Split(Live::Cntkctl, Own::Cnthctl, CNTKCTL_FIELDS));
            self.switch_cntkctl();
            self.write_plain(Plain::Sctlr, Live::Sctlr.read());
            self.write_plain(Plain::Tcr, Live::Tcr.read());
            self.write_plain(Plain::Cptr, cptr);
            self.write_plain(Plain::Cnthctl, cnthctl);
            self.write_plain(Plain::Ttbr0, Live::Ttbr0.read());
        }
        self.until_guest.may_adopt = false;
        traps::note_serror(self);
        traps::load(self);
        write_sysreg!(VBAR_EL2, self.mode.vectors(self.nv_mode));
        isb();
        // TLB entries of virtual EL2 have another meaning now.
        // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
        // its tables again.
        unsafe { core::arch::asm!("tlbi vmalle1is", options(nostack, preserves_flags)) };
        dsb_ish();
    }

    /// Reads a register with a layout that depends on E2H.
    #[inline(never)]
    pub fn read_plain(&self, plain: Plain) -> u64 {
        match plain {
            Plain::Sctlr => self.own[Own::PlainSctlr as usize],
            Plain::Tcr => self.own[Own::PlainTcr as usize],
            Plain::Cptr => self.own[Own::PlainCptr as usize],
            Plain::Cnthctl => self.own[Own::PlainCnthctl as usize],
            Plain::Ttbr0 => Live::Ttbr0.read(),
        }
    }

    /// Writes such a register: the value that L1 reads back, and the one in effect.
    #[inline(never)]
    pub fn write_plain(&mut self, plain: Plain, value: u64) {
        match plain {
            Plain::Sctlr => {
                self.own[Own::PlainSctlr as usize] = value;
                Live::Sctlr.write(layout::sctlr(value));
            }
            Plain::Tcr => {
                self.own[Own::PlainTcr as usize] = value;
                Live::Tcr.write(layout::tcr(value));
            }
            Plain::Cptr => {
                self.own[Own::PlainCptr as usize] = value;
                self.write(Home::Split(Live::Cpacr, Own::Cptr, CPACR_FIELDS), layout::cptr(value));
            }
            Plain::Cnthctl => {
                self.own[Own::PlainCnthctl as usize] = value;
                self.own[Own::Cnthctl as usize] = layout::cnthctl(value);
            }
            Plain::Ttbr0 => Live::Ttbr0.write(layout::ttbr0(value)),
        }
    }

    /// Virtual counter at virtual EL2 with E2H clear.
    pub fn virtual_count(&self) -> u64 {
        timer::now().wrapping_sub(self.page.get(vncr::CNTVOFF_EL2))
    }
}

/// Home of a register that traps at virtual EL2 while E2H is clear.
pub fn home(reg: SysReg) -> Option<Home> {
    Some(match reg {
        SysReg::SCTLR_EL2 => Home::Plain(Plain::Sctlr),
        SysReg::CPTR_EL2 => Home::Plain(Plain::Cptr),
        SysReg::TTBR0_EL2 => Home::Plain(Plain::Ttbr0),
        SysReg::TCR_EL2 => Home::Plain(Plain::Tcr),
        SysReg::CNTHCTL_EL2 => Home::Plain(Plain::Cnthctl),
        // EL1's timers, whose names refer to the guest's.
        SysReg::CNTVCT_EL0 | SysReg::CNTVCTSS_EL0 => Home::VirtualCount,
        SysReg::CNTP_TVAL_EL0 => Home::GuestTimer(vncr::CNTP_CVAL_EL0),
        SysReg::CNTP_CTL_EL0 => Home::Page(vncr::CNTP_CTL_EL0),
        SysReg::CNTP_CVAL_EL0 => Home::Page(vncr::CNTP_CVAL_EL0),
        SysReg::CNTV_TVAL_EL0 => Home::GuestTimer(vncr::CNTV_CVAL_EL0),
        SysReg::CNTV_CTL_EL0 => Home::Page(vncr::CNTV_CTL_EL0),
        SysReg::CNTV_CVAL_EL0 => Home::Page(vncr::CNTV_CVAL_EL0),
        // _EL12 and _EL02 names require E2H.
        _ if reg.op1() == 5 => return None,
        _ => return fixed_home(reg),
    })
}
