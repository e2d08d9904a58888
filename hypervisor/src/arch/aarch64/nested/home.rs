//! Homes of virtual EL2's registers: for each register of L1, the place that holds its value.

use stile_nested_arm::vgic::Status;
use stile_nested_arm::vncr::{self, Slot};
use stile_sysreg::SysReg;

use super::gic;
use super::nv_mode::NvMode;
use super::registers::Own;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

/// Home of a register while virtual EL2 runs.
#[derive(Clone, Copy)]
pub enum Home {
    /// The corresponding EL1 register.
    Live(Live),
    /// SCTLR_EL2 with HCR_EL2.E2H set: EL1's register, on CPUs where L1 can clear E2H.
    Sctlr,
    /// Memory, and the corresponding EL1 register in another layout: L1's HCR_EL2.E2H is 0.
    Plain(Plain),
    /// Virtual counter.
    VirtualCount,
    /// A value that only software uses.
    Own(Own),
    /// Partly EL1's register, partly software.
    Split(Live, Own, u64),
    /// TimerValue view of this compare value.
    Timer(Live),
    /// TimerValue view of the guest's timer, whose compare value is in the page.
    GuestTimer(Slot),
    /// The VNCR_EL2 page: such accesses trap only without FEAT_NV2.
    Page(Slot),
    /// A constant; writes are ignored.
    Constant(u64),
    /// Computed from the list registers in the page.
    ListRegisters(fn(&Status) -> u64),
    /// MDSCR_EL1, whose writes trap temporarily.
    Mdscr,
}

macro_rules! live {
    ($($name:ident: $register:ident;)*) => {
        /// EL1's registers, by EL2's names for them.
        #[derive(Clone, Copy)]
        #[allow(clippy::upper_case_acronyms, reason = "the manual's names")]
        pub enum Live { $($name),* }

        impl Live {
            /// Reads the register.
            pub fn read(self) -> u64 {
                match self { $(Live::$name => read_sysreg!($register)),* }
            }

            /// Writes the register.
            pub fn write(self, value: u64) {
                match self { $(Live::$name => write_sysreg!($register, value)),* }
            }
        }
    };
}
live! {
    Sctlr: SCTLR_EL12;
    Cpacr: CPACR_EL12;
    Zcr: ZCR_EL12;
    Ttbr0: TTBR0_EL12;
    Ttbr1: TTBR1_EL12;
    Tcr: TCR_EL12;
    Spsr: SPSR_EL12;
    Elr: ELR_EL12;
    Afsr0: AFSR0_EL12;
    Afsr1: AFSR1_EL12;
    Esr: ESR_EL12;
    Far: FAR_EL12;
    Mair: MAIR_EL12;
    Amair: AMAIR_EL12;
    Vbar: VBAR_EL12;
    Contextidr: CONTEXTIDR_EL12;
    Cntkctl: CNTKCTL_EL12;
    CntpCtl: CNTP_CTL_EL02;
    CntpCval: CNTP_CVAL_EL02;
    CntvCtl: CNTV_CTL_EL02;
    CntvCval: CNTV_CVAL_EL02;
}

/// Registers of virtual EL2 with another layout while E2H is clear.
#[derive(Clone, Copy)]
pub enum Plain {
    Sctlr,
    Tcr,
    Cptr,
    Cnthctl,
    Ttbr0,
}

/// Home of a register that traps at virtual EL2 while HCR_EL2.E2H is set; `None` if virtual EL2 has no such register.
#[inline(always)]
pub fn home(nv_mode: NvMode, reg: SysReg) -> Option<Home> {
    // Names that only EL2 has, which FEAT_NV traps. EL1's names refer to EL1's registers, since L1's HCR_EL2.E2H is
    // 1.
    let in_page = || match nv_mode {
        NvMode::Trap if reg.op1() >= 4 => vncr::find(reg, false),
        _ => None,
    };
    fixed_home(reg).or_else(|| in_page().filter(|slot| is_there(*slot)).map(Home::Page))
}

/// Whether virtual EL2 has this register of the page.
fn is_there(slot: Slot) -> bool {
    match slot {
        vncr::ZCR_EL1 => features::get().sve,
        vncr::HCRX_EL2 => features::get().hcx,
        vncr::HFGRTR_EL2 | vncr::HFGWTR_EL2 | vncr::HFGITR_EL2 | vncr::HDFGRTR_EL2 | vncr::HDFGWTR_EL2 => features::get().fgt,
        _ => !ABSENT.contains(&slot),
    }
}

/// Registers of the page that belong to features hidden from guests: Arm ARM, the register's own page.
const ABSENT: [Slot; 19] = [
    vncr::VNCR_EL2,     // FEAT_NV2
    vncr::TRFCR_EL1,    // FEAT_TRF
    vncr::TCR2_EL1,     // FEAT_TCR2
    vncr::TFSR_EL1,     // FEAT_MTE2
    vncr::PMSCR_EL1,    // FEAT_SPE
    vncr::PIRE0_EL1,    // FEAT_S1PIE
    vncr::PIR_EL1,      // the same
    vncr::POR_EL1,      // FEAT_S1POE
    vncr::MPAM1_EL1,    // FEAT_MPAM
    vncr::MPAMHCR_EL2,  // the same
    vncr::MPAMVPMV_EL2, // the same
    vncr::SCXTNUM_EL1,  // FEAT_CSV2_2
    vncr::CNTPOFF_EL2,  // FEAT_ECV_POFF
    vncr::HFGRTR2_EL2,  // FEAT_FGT2
    vncr::HFGWTR2_EL2,
    vncr::HFGITR2_EL2,
    vncr::HDFGRTR2_EL2,
    vncr::HDFGWTR2_EL2,
    vncr::HAFGRTR_EL2, // FEAT_AMUv1
];

/// Home of a register that traps at virtual EL2 in either mode.
pub fn fixed_home(reg: SysReg) -> Option<Home> {
    Some(match reg {
        SysReg::MDSCR_EL1 => Home::Mdscr,
        SysReg::SCTLR_EL2 => Home::Sctlr,
        SysReg::ACTLR_EL2 | SysReg::HACR_EL2 => Home::Constant(0),
        SysReg::MDCR_EL2 => Home::Own(Own::Mdcr),
        SysReg::CPTR_EL2 => Home::Split(Live::Cpacr, Own::Cptr, CPACR_FIELDS),
        SysReg::ZCR_EL2 if features::get().sve => Home::Live(Live::Zcr),
        SysReg::TTBR0_EL2 => Home::Live(Live::Ttbr0),
        SysReg::TTBR1_EL2 => Home::Live(Live::Ttbr1),
        SysReg::TCR_EL2 => Home::Live(Live::Tcr),
        // AArch32 at EL1 is not implemented.
        SysReg::DACR32_EL2 | SysReg::IFSR32_EL2 | SysReg::FPEXC32_EL2 => Home::Constant(0),
        SysReg::SPSR_EL2 => Home::Live(Live::Spsr),
        SysReg::ELR_EL2 => Home::Live(Live::Elr),
        SysReg::SPSR_IRQ | SysReg::SPSR_ABT | SysReg::SPSR_UND | SysReg::SPSR_FIQ => Home::Constant(0),
        SysReg::AFSR0_EL2 => Home::Live(Live::Afsr0),
        SysReg::AFSR1_EL2 => Home::Live(Live::Afsr1),
        SysReg::ESR_EL2 => Home::Live(Live::Esr),
        SysReg::FAR_EL2 => Home::Live(Live::Far),
        SysReg::HPFAR_EL2 => Home::Own(Own::Hpfar),
        SysReg::MAIR_EL2 => Home::Live(Live::Mair),
        SysReg::AMAIR_EL2 => Home::Live(Live::Amair),
        SysReg::VBAR_EL2 => Home::Live(Live::Vbar),
        SysReg::ICC_SRE_EL2 => Home::Constant(0xf), // SRE, DFB, DIB, Enable
        SysReg::ICH_VTR_EL2 => Home::Constant(gic::vtr()),
        SysReg::ICH_MISR_EL2 => Home::ListRegisters(|status| status.misr),
        SysReg::ICH_EISR_EL2 => Home::ListRegisters(|status| status.eisr),
        SysReg::ICH_ELRSR_EL2 => Home::ListRegisters(|status| status.elrsr),
        SysReg::CONTEXTIDR_EL2 => Home::Live(Live::Contextidr),
        SysReg::CNTHCTL_EL2 => Home::Split(Live::Cntkctl, Own::Cnthctl, CNTKCTL_FIELDS),
        // At virtual EL2 EL1's timers are EL2's.
        SysReg::CNTHP_TVAL_EL2 => Home::Timer(Live::CntpCval),
        SysReg::CNTHP_CTL_EL2 => Home::Live(Live::CntpCtl),
        SysReg::CNTHP_CVAL_EL2 => Home::Live(Live::CntpCval),
        SysReg::CNTHV_TVAL_EL2 => Home::Timer(Live::CntvCval),
        SysReg::CNTHV_CTL_EL2 => Home::Live(Live::CntvCtl),
        SysReg::CNTHV_CVAL_EL2 => Home::Live(Live::CntvCval),
        SysReg::CNTKCTL_EL12 => Home::Own(Own::Cntkctl),
        SysReg::CNTP_TVAL_EL02 => Home::GuestTimer(vncr::CNTP_CVAL_EL0),
        SysReg::CNTV_TVAL_EL02 => Home::GuestTimer(vncr::CNTV_CVAL_EL0),
        _ => return None,
    })
}

/// Fields common to CPTR_EL2 with E2H set and CPACR_EL1: ZEN, FPEN, SMEN, TTA.
pub const CPACR_FIELDS: u64 = 0b11 << 16 | 0b11 << 20 | 0b11 << 24 | 1 << 28;
/// Fields common to CNTHCTL_EL2 and CNTKCTL_EL1.
pub const CNTKCTL_FIELDS: u64 = 0x3ff;
