//! Trap controls of a vCPU with an EL2, in both of its regimes.

use stile_nested_arm::forward::Virtual;
use stile_nested_arm::serror::{Pending, VSE};
use stile_nested_arm::vncr;

use super::controls::{AT, E2H, EL1_TIMERS};
use super::home::CPACR_FIELDS;
use super::lazy_traps;
use super::registers::{Own, Switched};
use super::state::{Nested, Regime};
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::vcpu::traps;
use crate::vm::Vm;

/// HCR_EL2 bits that L1 sets for its guest: PTW, DC, TWI, TWE, TID0 to TID3, TSC, TIDCP, TACR, TSW, TPCP, TPU, TTLB, TVM,
/// TDZ, TRVM, TLOR, TERR, AT, TID4, TICAB, TOCU, TTLBIS, TTLBOS, TID5.
const ADDED: u64 = 1 << 2 | 1 << 12 | 0x3fff << 13 | 1 << 28 | 1 << 30 | 0b11 << 35 | AT | 0b11 << 49 | 1 << 52 | 0b11 << 54 | 1 << 58;
/// HCR_EL2 bits that disable traps when set: API, APK.
const ALLOWED: u64 = 0b11 << 40;
/// HCR_EL2.VF, VI, VSE: each takes effect if L1 has set FMO, IMO or AMO, three bits lower. Stile always sets them.
const VIRTUAL: u64 = 0b111 << 6;

/// CPTR_EL2 with E2H: ZEN, FPEN, SMEN, which disable traps when set.
const CPTR_ENABLES: u64 = 0b11 << 16 | 0b11 << 20 | 0b11 << 24;
/// TTA, TAM, TCPAC, which enable traps when set.
const CPTR_TRAPS: u64 = 1 << 28 | 1 << 30 | 1 << 31;
/// MDCR_EL2: TPMCR, TPM, TDE, TDA, TDOSA, TDRA.
const MDCR_TRAPS: u64 = 0x7f << 5 & !(1 << 7);
/// CNTHCTL_EL2 bits by which L1 may trap its guest; with FEAT_ECV EL1TVT, EL1TVCT.
const GUESTS_TIMERS: u64 = EL1_TIMERS | 0b11 << 13;

impl Nested {
    /// L1's trap controls. Its guest is in the CPU.
    pub fn controls<'a>(&'a self, vm: &'a Vm) -> Virtual<'a> {
        let [mdcr, cnthctl] = [Own::Mdcr, Own::Cnthctl].map(|own| self.own[own as usize]);
        Virtual { page: &self.page, masks: vm.arch.masks(), cptr: self.cptr(), mdcr, cnthctl }
    }

    /// CPTR_EL2 as written by L1. Its guest is in the CPU.
    pub fn cptr(&self) -> u64 {
        self.el2[Switched::Cpacr as usize] & CPACR_FIELDS | self.own[Own::Cptr as usize]
    }

    /// HCR_EL2 as written by L1, with the effective E2H.
    pub fn hcr(&self) -> u64 {
        self.page.get(vncr::HCR_EL2) & !E2H | self.mode.e2h
    }
}

/// Sets the traps of the current regime, at load or at a switch.
pub fn load(nested: &mut Nested) {
    let base = nested.base;
    let own = base.hcr | if nested.waiting_traps { traps::WAITING } else { 0 };
    match nested.regime {
        Regime::El2 => {
            write_sysreg!(HCR_EL2, own | nested.mode.traps);
            release(nested);
            write_sysreg!(CNTHCTL_EL2, nested.mode.cnthctl);
        }
        Regime::Guest => {
            let theirs = nested.page.get(vncr::HCR_EL2);
            write_sysreg!(HCR_EL2, own & (theirs & nested.lazy_traps.hcr | !ALLOWED) | theirs & ADDED | theirs & theirs << 3 & VIRTUAL);
            let cptr = nested.cptr();
            write_sysreg!(CPTR_EL2, base.cptr & (cptr | !CPTR_ENABLES) | cptr & CPTR_TRAPS);
            write_sysreg!(MDCR_EL2, base.mdcr | nested.own[Own::Mdcr as usize] & MDCR_TRAPS);
            write_sysreg!(CNTHCTL_EL2, nested.own[Own::Cnthctl as usize] & GUESTS_TIMERS);
            write_sysreg!(CNTVOFF_EL2, nested.page.get(vncr::CNTVOFF_EL2));
            write_sysreg!(VPIDR_EL2, nested.page.get(vncr::VPIDR_EL2));
            write_sysreg!(VMPIDR_EL2, nested.page.get(vncr::VMPIDR_EL2));
            nested.lazy_traps.load_guests();
        }
    }
}

impl Nested {
    /// Pending virtual SErrors. L1's own is in the base of HCR_EL2, so that a switch keeps it.
    pub fn serrors(&self) -> Pending {
        Pending { own: self.base.hcr & VSE, hcr: self.page.get(vncr::HCR_EL2) }
    }
}

/// Ends pending virtual SErrors that were taken: the CPU's HCR_EL2 shows that. Called before that register is written.
pub fn note_serror(nested: &mut Nested) {
    let (pending, in_l2) = (nested.serrors(), nested.regime == Regime::Guest);
    if pending.is_shown(in_l2) {
        let Pending { own, hcr } = pending.remaining(in_l2, read_sysreg!(HCR_EL2));
        nested.base.hcr = nested.base.hcr & !VSE | own;
        nested.page.set(vncr::HCR_EL2, hcr);
    }
}

/// Restores the controls that differ only while the guest runs, except CNTVOFF_EL2: see [`clear_offset`].
fn release(nested: &Nested) {
    write_sysreg!(CPTR_EL2, nested.base.cptr);
    write_sysreg!(MDCR_EL2, nested.base.mdcr);
    write_sysreg!(VPIDR_EL2, read_sysreg!(MIDR_EL1));
    write_sysreg!(VMPIDR_EL2, nested.mpidr);
    nested.lazy_traps.unload_guests();
}

/// Clears CNTVOFF_EL2, which is 0 at virtual EL2 and for other vCPUs. The guest's CNTV_CTL_EL0 was saved before:
/// ISTATUS depends on this offset (Arm ARM, CNTV_CTL_EL0).
#[inline(always)]
pub fn clear_offset() {
    write_sysreg!(CNTVOFF_EL2, 0);
}

/// Restores the controls of other vCPUs, at put. L1's own virtual SError stays in HCR_EL2.
pub fn put(nested: &Nested) {
    if nested.regime == Regime::Guest {
        release(nested);
        clear_offset();
    }
    if nested.debug.is_on() {
        lazy_traps::load_ordinary();
    }
    if nested.regime == Regime::Guest || !nested.mode.has_e2h() {
        write_sysreg!(CNTHCTL_EL2, EL1_TIMERS);
    }
    // The scheduler's traps of WFI and WFE belong to the CPU.
    let waiting = if nested.waiting_traps { traps::WAITING } else { 0 };
    write_sysreg!(HCR_EL2, nested.base.hcr | waiting);
}
