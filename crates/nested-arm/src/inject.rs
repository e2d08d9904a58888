//! Exceptions to and returns from virtual EL2: Arm ARM pseudocode, `AArch64.TakeException`,
//! `AArch64.ExceptionReturn` and `IllegalExceptionReturn`.
//!
//! Virtual EL2 runs at the processor's EL1. A processor state is *virtual* with the mode that L1 sees
//! (`EL2h`), and the *processor's* with the mode that SPSR_EL2 holds at an exit (`EL1h`).

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
    /// Higher bits belong to features that no guest has.
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

/// Exception kinds, by vector table offset.
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
    /// Whether such an exception, while L2 runs, is routed to L1's EL2 with `hcr` as L1's HCR_EL2. For
    /// synchronous ones see [`forward`](crate::forward).
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

/// The context in which a vCPU of L1 runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// L1 itself, at virtual EL2.
    El2,
    /// L1's own user space: EL0 while HCR_EL2.{E2H, TGE} = {1, 1}. Shares virtual EL2's translation regime.
    HostEl0,
    /// L2, at EL1 or EL0.
    Guest,
}

impl Context {
    /// The context of EL0 or EL1 state, with `hcr` as L1's HCR_EL2.
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

/// The virtual EL2 registers that control exception entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct El2 {
    /// VBAR_EL2.
    pub vbar: u64,
    /// SCTLR_EL2.
    pub sctlr: u64,
    /// HCR_EL2, the effective value.
    pub hcr: u64,
}

/// The state in which the vCPU continues after an exception to virtual EL2.
///
/// The caller writes L1's SPSR_EL2 ([`spsr`](Self::spsr)) and ELR_EL2 (the interrupted PC), and for a
/// synchronous exception ESR_EL2, FAR_EL2 and HPFAR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The program counter.
    pub pc: u64,
    /// The new processor state.
    pub pstate: u64,
    /// The interrupted virtual state, for L1's SPSR_EL2.
    pub spsr: u64,
}

impl Entry {
    /// Takes an exception of `kind` in `context`, with `pstate` as the processor's state.
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
            // The offset depends on EL1's execution state, which is AArch64; a host's EL0 has no EL1, so its
            // own counts.
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

/// Converts the processor's state to the virtual state of a vCPU at virtual EL2.
#[inline]
pub const fn to_virtual(pstate: u64) -> u64 {
    let mode = match pstate & pstate::M {
        pstate::EL1T => pstate::EL2T,
        pstate::EL1H => pstate::EL2H,
        other => other,
    };
    pstate & !pstate::M | mode
}

/// The result of an exception return from virtual EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// The context that runs next. The program counter is L1's ELR_EL2 in any case.
    pub to: Context,
    /// The new processor state. Never the processor's own EL2 or EL3.
    pub pstate: u64,
}

/// Emulates `ERET` at virtual EL2: `spsr` is L1's SPSR_EL2, `hcr` its HCR_EL2, `pstate` the processor's state
/// at the trapped instruction, and `has_aarch32` whether EL0 supports AArch32.
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
            // An illegal return restores only these; the others are cleared or unchanged.
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
    /// `ERETAA`: ELR_EL2 is authenticated with key A, with the stack pointer as modifier.
    KeyA,
    /// `ERETAB`: ERET with pointer authentication by key B.
    KeyB,
}

/// Decodes the trapped form: Arm ARM, "ISS encoding for an exception from ERET, ERETAA, or ERETAB
/// instruction".
#[inline]
pub const fn eret_kind(esr: Esr) -> EretKind {
    match esr.iss() & 0b11 {
        0b10 => EretKind::KeyA,
        0b11 => EretKind::KeyB,
        _ => EretKind::Plain,
    }
}

/// The fault status bits of a data or instruction abort's ISS: DFSC, IFSC.
const FAULT_STATUS: u64 = 0x3f;

/// L1's ESR_EL2 for an L2 exit with `esr` that faults in L1's second stage with `fault`: the exit's syndrome
/// of the access, with the fault status of L1's own tables.
#[inline]
pub const fn abort(esr: Esr, fault: WalkFault) -> u64 {
    esr.0 & !FAULT_STATUS | fault.status() as u64
}

/// HPFAR_EL2 for the intermediate physical address `ipa`: FIPA, bits 43 to 4, holds bits 51 to 12 of it.
#[inline]
pub const fn hpfar(ipa: u64) -> u64 {
    (ipa & 0x000f_ffff_ffff_f000) >> 8
}
