//! Exceptions to virtual EL2, and returns from it: Arm ARM pseudocode, `AArch64.TakeException`,
//! `AArch64.ExceptionReturn` and `IllegalExceptionReturn`.
//!
//! Virtual EL2 runs at the processor's EL1. A processor state is *virtual* if its mode is as L1 sees it (`EL2h`), and
//! the *processor's* if it is as SPSR_EL2 holds it at an exit (`EL1h`).

use crate::forward::trap::{HCR_E2H, HCR_TGE};
use crate::shadow::WalkFault;
use stile_sysreg::syndrome::Esr;

#[cfg(test)]
mod tests;

/// Bits of SPSR_ELx.
mod pstate {
    pub const M: u64 = 0x1f;
    pub const AARCH32: u64 = 0x10;
    pub const EL0T: u64 = 0b0000;
    pub const EL1T: u64 = 0b0100;
    pub const EL1H: u64 = 0b0101;
    pub const EL2T: u64 = 0b1000;
    pub const EL2H: u64 = 0b1001;
    pub const USER32: u64 = 0b1_0000;
    pub const DAIF: u64 = 0xf << 6;
    pub const SSBS: u64 = 1 << 12;
    pub const IL: u64 = 1 << 20;
    pub const PAN: u64 = 1 << 22;
    pub const DIT: u64 = 1 << 24;
    pub const NZCV: u64 = 0xf << 28;
    /// What is above belongs to features that no guest has.
    pub const ALL: u64 = 0xffff_ffff;
}

/// Bits of SCTLR_EL2.
mod sctlr {
    pub const SPAN: u64 = 1 << 23;
    pub const DSSBS: u64 = 1 << 44;
}

/// HCR_EL2.{FMO, IMO, AMO}.
const HCR_FMO: u64 = 1 << 3;
const HCR_IMO: u64 = 1 << 4;
const HCR_AMO: u64 = 1 << 5;

/// The kinds of exceptions, by the entry of the vector table that they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Synchronous.
    Synchronous = 0x000,
    /// IRQ.
    Irq = 0x080,
    /// FIQ.
    Fiq = 0x100,
    /// SError.
    SError = 0x180,
}

impl Kind {
    /// Whether L1's EL2 takes such an exception that comes while L2 runs, L1's HCR_EL2 being `hcr`. A synchronous one
    /// goes where [`forward`](crate::forward) says.
    pub const fn is_routed_to_el2(self, hcr: u64) -> bool {
        let routing = match self {
            Self::Synchronous => return true,
            Self::Irq => HCR_IMO,
            Self::Fiq => HCR_FMO,
            Self::SError => HCR_AMO,
        };
        hcr & (routing | HCR_TGE) != 0
    }
}

/// What a vCPU of L1 is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// L1 itself, at virtual EL2.
    El2,
    /// L1's own programs: EL0 while HCR_EL2.{E2H, TGE} = {1, 1}. They share virtual EL2's translation regime.
    HostEl0,
    /// L2, at EL1 or EL0.
    Guest,
}

impl Context {
    /// The one that EL0 or EL1 stands for, L1's HCR_EL2 being `hcr`.
    pub const fn below_el2(pstate: u64, hcr: u64) -> Self {
        let is_el0 = matches!(pstate & pstate::M, pstate::EL0T) || pstate & pstate::AARCH32 != 0;
        if is_el0 && is_host(hcr) { Self::HostEl0 } else { Self::Guest }
    }
}

/// HCR_EL2.{E2H, TGE} = {1, 1}.
#[inline]
pub const fn is_host(hcr: u64) -> bool {
    hcr & (HCR_E2H | HCR_TGE) == HCR_E2H | HCR_TGE
}

/// The registers of virtual EL2 that an exception looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct El2 {
    /// VBAR_EL2.
    pub vbar: u64,
    /// SCTLR_EL2.
    pub sctlr: u64,
    /// HCR_EL2, as it is in effect.
    pub hcr: u64,
}

/// Where the vCPU goes on when it takes an exception to virtual EL2.
///
/// The caller writes L1's SPSR_EL2 ([`spsr`](Self::spsr)), its ELR_EL2 (where the vCPU stood), and for a synchronous
/// exception its ESR_EL2, FAR_EL2 and HPFAR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The program counter.
    pub pc: u64,
    /// The processor's state to go on in.
    pub pstate: u64,
    /// The virtual state that was left, for L1's SPSR_EL2.
    pub spsr: u64,
}

impl Entry {
    /// An exception of `kind` that a vCPU takes in `context`, its processor's state being `pstate`.
    #[inline]
    pub const fn take(kind: Kind, pstate: u64, context: Context, el2: &El2) -> Self {
        let mut next = pstate & (pstate::NZCV | pstate::DIT | pstate::PAN) | pstate::DAIF | pstate::EL1H;
        if is_host(el2.hcr) && el2.sctlr & sctlr::SPAN == 0 {
            next |= pstate::PAN;
        }
        if el2.sctlr & sctlr::DSSBS != 0 {
            next |= pstate::SSBS;
        }
        let base = match context {
            Context::El2 if pstate & pstate::M == pstate::EL1T => 0x000,
            Context::El2 => 0x200,
            // It is EL1's execution state that counts, and that is AArch64; but for the host there is no EL1.
            Context::HostEl0 if pstate & pstate::AARCH32 != 0 => 0x600,
            Context::HostEl0 | Context::Guest => 0x400,
        };
        let spsr = match context {
            Context::El2 => to_virtual(pstate),
            Context::HostEl0 | Context::Guest => pstate,
        };
        Self { pc: (el2.vbar & !0x7ff).wrapping_add(base + kind as u64), pstate: next, spsr }
    }
}

/// The virtual state of a vCPU that runs at virtual EL2, from the processor's.
#[inline]
pub const fn to_virtual(pstate: u64) -> u64 {
    let mode = match pstate & pstate::M {
        pstate::EL1T => pstate::EL2T,
        pstate::EL1H => pstate::EL2H,
        other => other,
    };
    pstate & !pstate::M | mode
}

/// What an exception return from virtual EL2 leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// What runs next. The program counter is L1's ELR_EL2 in any case.
    pub to: Context,
    /// The processor's state to go on in. Never the processor's own EL2, and never EL3.
    pub pstate: u64,
}

/// An `ERET` at virtual EL2: `spsr` is L1's SPSR_EL2 and `hcr` its HCR_EL2, `pstate` the processor's state at the
/// trapped instruction, `has_aarch32` whether EL0 can be AArch32.
///
/// An illegal return stays at virtual EL2, with PSTATE.IL set: the next instruction takes the illegal-state exception.
#[inline]
pub const fn eret(spsr: u64, pstate: u64, hcr: u64, has_aarch32: bool) -> Return {
    let state = spsr & pstate::ALL & !pstate::M;
    match spsr & pstate::M {
        pstate::EL2H => Return { to: Context::El2, pstate: state | pstate::EL1H },
        pstate::EL2T => Return { to: Context::El2, pstate: state | pstate::EL1T },
        mode @ (pstate::EL1T | pstate::EL1H) if hcr & HCR_TGE == 0 => Return { to: Context::Guest, pstate: state | mode },
        pstate::EL0T => Return { to: Context::below_el2(pstate::EL0T, hcr), pstate: state | pstate::EL0T },
        pstate::USER32 if has_aarch32 => Return { to: Context::below_el2(pstate::USER32, hcr), pstate: state | pstate::USER32 },
        _ => {
            // These are restored even so; all others are cleared or stay.
            let restored = spsr & (pstate::NZCV | pstate::PAN | pstate::DAIF);
            Return { to: Context::El2, pstate: restored | pstate::IL | pstate & (pstate::M & !pstate::AARCH32) }
        }
    }
}

/// The forms of the `ERET` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EretKind {
    /// `ERET`.
    Plain,
    /// `ERETAA`: ELR_EL2 is authenticated with key A, the stack pointer being the modifier.
    KeyA,
    /// `ERETAB`: the same with key B.
    KeyB,
}

/// Which form was trapped: Arm ARM, "ISS encoding for an exception from ERET, ERETAA, or ERETAB instruction".
#[inline]
pub const fn eret_kind(esr: Esr) -> EretKind {
    match esr.iss() & 0b11 {
        0b10 => EretKind::KeyA,
        0b11 => EretKind::KeyB,
        _ => EretKind::Plain,
    }
}

/// The bits of a data or instruction abort's ISS that say what went wrong: DFSC, IFSC.
const FAULT_STATUS: u64 = 0x3f;

/// L1's ESR_EL2 for an exit of L2 with `esr` that L1's second stage answers with `fault`: all that the exit says of the
/// access is L1's to know; only what went wrong is told by L1's own tables.
#[inline]
pub const fn abort(esr: Esr, fault: WalkFault) -> u64 {
    esr.0 & !FAULT_STATUS | fault.status() as u64
}

/// HPFAR_EL2 for the intermediate physical address `ipa`: FIPA, bits 43 to 4, has bits 51 to 12 of it.
#[inline]
pub const fn hpfar(ipa: u64) -> u64 {
    (ipa & 0x000f_ffff_ffff_f000) >> 8
}
