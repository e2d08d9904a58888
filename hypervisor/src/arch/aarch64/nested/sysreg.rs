//! Registers and instructions of EL2 that trap at virtual EL2: with FEAT_NV2 those that it does not redirect, without it all.

use stile_ledger::RowId;
use stile_ledger::aarch64::{key, reason};
use stile_nested::vgic::Status;
use stile_nested::vncr::{self, Slot};
use stile_sysreg::SysReg;
use stile_sysreg::syndrome::Esr;

use super::at::Executed;
use super::e2h::Plain;
use super::registers::Own;
use super::{Nested, NvMode, tlbi};
use crate::arch::aarch64::exit::Outcome;
use crate::arch::aarch64::handler;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};
use crate::arch::aarch64::host::{features, timer};
use crate::arch::aarch64::vcpu::inject;

/// Where a register of virtual EL2 is while that runs.
#[derive(Clone, Copy)]
pub enum Home {
    /// EL1's register of the same meaning.
    Live(Live),
    /// SCTLR_EL2 with HCR_EL2.E2H set, which is EL1's: where L1 may have cleared that bit.
    Sctlr,
    /// Memory and EL1's register of the same meaning, in another layout: HCR_EL2.E2H of L1 is 0.
    Plain(Plain),
    /// The virtual counter.
    VirtualCount,
    /// A value that only software looks at.
    Own(Own),
    /// A part in EL1's register, the rest with software.
    Split(Live, Own, u64),
    /// A timer's view of what is left until this compare value.
    Timer(Live),
    /// The same for the guest's timer, whose compare value is in the page.
    GuestTimer(Slot),
    /// The page of VNCR_EL2: such an access traps without FEAT_NV2 only.
    Page(Slot),
    /// What is read; a write does nothing.
    Constant(u64),
    /// Computed from the list registers in the page.
    ListRegisters(fn(&Status) -> u64),
    /// MDSCR_EL1, whose writes trap at times.
    Mdscr,
}

macro_rules! live {
    ($($name:ident: $register:ident;)*) => {
        /// EL1's registers, by the names that EL2 has for them.
        #[derive(Clone, Copy)]
        #[allow(clippy::upper_case_acronyms, reason = "the manual's names")]
        pub enum Live { $($name),* }

        impl Live {
            pub fn read(self) -> u64 {
                match self { $(Live::$name => read_sysreg!($register)),* }
            }

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

impl Nested {
    /// The home of a register that traps at virtual EL2 while HCR_EL2.E2H is set; nothing, if virtual EL2 has none such.
    pub fn home(&self, reg: SysReg) -> Option<Home> {
        // The names that only EL2 has, which is what FEAT_NV traps: EL1's own are EL1's registers, HCR_EL2.E2H of L1 being 1.
        let in_page = || match self.nv_mode {
            NvMode::Trap if reg.op1() >= 4 => vncr::find(reg, false),
            _ => None,
        };
        fixed_home(reg).or_else(|| in_page().filter(|slot| is_there(*slot)).map(Home::Page))
    }
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

/// Registers of the page that belong to features that no guest has: Arm ARM, the register's own page.
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

/// The home of a register that traps at virtual EL2 in either way.
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
        // Of AArch32 at EL1, which is not there.
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
        SysReg::ICH_VTR_EL2 => Home::Constant(super::gic::vtr()),
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

/// What CPTR_EL2 with E2H set has in common with CPACR_EL1: ZEN, FPEN, SMEN, TTA.
pub const CPACR_FIELDS: u64 = 0b11 << 16 | 0b11 << 20 | 0b11 << 24 | 1 << 28;
/// The same of CNTHCTL_EL2 and CNTKCTL_EL1.
pub const CNTKCTL_FIELDS: u64 = 0x3ff;

impl Nested {
    #[inline(always)]
    pub fn read(&self, home: Home) -> u64 {
        match home {
            Home::Live(live) => live.read(),
            Home::Sctlr => Live::Sctlr.read(),
            Home::Plain(plain) => self.read_plain(plain),
            Home::VirtualCount => self.virtual_count(),
            Home::Own(own) => self.own[own as usize],
            Home::Split(live, own, fields) => live.read() & fields | self.own[own as usize] & !fields,
            // TimerValue: 32 bits, signed.
            Home::Timer(compare) => compare.read().wrapping_sub(timer::now()) & 0xffff_ffff,
            Home::GuestTimer(compare) => self.page.get(compare).wrapping_sub(self.guest_time(compare)) & 0xffff_ffff,
            Home::Page(slot) => self.page.get(slot),
            Home::Constant(value) => value,
            Home::ListRegisters(which) => which(&super::gic::status(self)),
            Home::Mdscr => self.page.get(vncr::MDSCR_EL1),
        }
    }

    /// The counter that this timer of the guest's is compared with.
    pub(super) fn guest_time(&self, compare: Slot) -> u64 {
        let offset = if compare == vncr::CNTV_CVAL_EL0 { self.page.get(vncr::CNTVOFF_EL2) } else { 0 };
        timer::now().wrapping_sub(offset)
    }

    #[inline(always)]
    pub fn write(&mut self, home: Home, value: u64) {
        match home {
            Home::Live(live) => live.write(value),
            Home::Sctlr if self.settle() => self.write_plain(Plain::Sctlr, value),
            Home::Sctlr => Live::Sctlr.write(value),
            Home::Plain(plain) => self.write_plain(plain, value),
            Home::Own(own) => self.own[own as usize] = value,
            Home::Split(live, own, fields) => {
                live.write(value & fields);
                self.own[own as usize] = value & !fields;
            }
            Home::Timer(compare) => compare.write(timer::now().wrapping_add(value as i32 as u64)),
            Home::GuestTimer(compare) => self.page.set(compare, self.guest_time(compare).wrapping_add(value as i32 as u64)),
            Home::Page(slot) => self.page.set(slot, value),
            Home::Mdscr => self.write_mdscr(value),
            Home::Constant(_) | Home::VirtualCount | Home::ListRegisters(_) => {}
        }
    }
}

/// EC 0x18 at virtual EL2, or at its EL0, where registers have this `home`.
#[inline(always)]
pub fn at_el2(cpu: &mut Cpu, nested: &mut Nested, esr: u64, home: impl Fn(&Nested, SysReg) -> Option<Home>) -> Outcome {
    let access = Esr(esr).msr();
    let reg = access.reg();
    if reg.op0() == 1 {
        return instruction(cpu, nested, esr);
    }
    let register = (esr >> 5 & 0x1f) as usize;
    let Some(home) = home(nested, reg) else { return unknown(cpu, esr) };
    let row = row(cpu, esr);
    if access.is_read() {
        cpu.frame.set(register, nested.read(home));
    } else {
        nested.write(home, cpu.frame.get(register));
        isb();
    }
    handler::skip_instruction();
    Outcome::again(row)
}

/// The ledger's row of what trapped.
#[inline(always)]
fn row(cpu: &Cpu, esr: u64) -> RowId {
    cpu.vcpu().with_ledger(|ledger| ledger.row_for(reason::NESTED, key::sysreg(Esr(esr).iss())))
}

/// TLB maintenance and address translation, or what is answered as for any guest.
#[inline(never)]
fn instruction(cpu: &mut Cpu, nested: &mut Nested, esr: u64) -> Outcome {
    let reg = Esr(esr).msr().reg();
    let operand = cpu.frame.get((esr >> 5 & 0x1f) as usize);
    let vm = cpu.vcpu().vm();
    let done = match (reg.crn(), reg.crm()) {
        (8 | 9, _) => tlbi::execute(nested, vm, cpu.index, reg, operand),
        (7, 8 | 9) => match super::at::execute(nested, vm, reg, operand) {
            Executed::Done => true,
            Executed::Unknown => false,
            Executed::Incomplete => return Outcome::again(row(cpu, esr)),
        },
        _ => false,
    };
    if !done {
        return handler::sysreg(cpu, esr);
    }
    handler::skip_instruction();
    Outcome::again(row(cpu, esr))
}

/// A register that virtual EL2 does not have, or has like any guest.
#[cold]
fn unknown(cpu: &mut Cpu, esr: u64) -> Outcome {
    if Esr(esr).msr().reg().op1() < 4 {
        return handler::sysreg(cpu, esr);
    }
    inject::undefined(Esr(esr));
    Outcome::again(row(cpu, esr))
}
