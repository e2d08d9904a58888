//! AMD: branch target injection (Spectre v2), branch type confusion (Retbleed), speculative return stack overflow (SRSO, "Inception"),
//! transient scheduler attacks (TSA).
//!
//! Sources: AMD, *Architecture Guidelines: Indirect Branch Control Extension*; *Technical Guidance for Mitigating Branch Type Confusion*;
//! *Technical Update Regarding Speculative Return Stack Overflow*; *Technical Guidance for Mitigating Transient Scheduler Attacks*; the
//! Architecture Programmer's Manual, Volume 3, CPUID leaves 8000_0008H and 8000_0021H.
//!
//! The sequences that make returns safe on some of these CPUs need a compiler that replaces each return; Stile executes IBPB instead.

use super::control;
use super::plan::{Data, Plan, Targets};

/// Bits of CPUID leaf 8000_0008H, EBX.
pub mod leaf_8 {
    /// PRED_CMD.IBPB.
    pub const IBPB: u32 = 1 << 12;
    /// SPEC_CTRL.IBRS.
    pub const IBRS: u32 = 1 << 14;
    /// SPEC_CTRL.STIBP.
    pub const STIBP: u32 = 1 << 15;
    /// IBRS may stay set.
    pub const IBRS_ALWAYS_ON: u32 = 1 << 16;
    /// STIBP may stay set.
    pub const STIBP_ALWAYS_ON: u32 = 1 << 17;
    /// IBRS is preferred to other mitigations.
    pub const IBRS_PREFERRED: u32 = 1 << 18;
    /// IBRS protects code from code of the same privilege, too.
    pub const IBRS_SAME_MODE: u32 = 1 << 19;
    /// SPEC_CTRL.SSBD.
    pub const SSBD: u32 = 1 << 24;
    /// Not susceptible to speculative store bypass.
    pub const SSB_NO: u32 = 1 << 26;
    /// Not susceptible to branch type confusion.
    pub const BTC_NO: u32 = 1 << 29;
    /// IBPB clears the return address predictor.
    pub const IBPB_RET: u32 = 1 << 30;
}

/// Bits of CPUID leaf 8000_0021H, EAX.
pub mod leaf_21 {
    /// VERW clears what transient scheduler attacks find.
    pub const VERW_CLEAR: u32 = 1 << 5;
    /// Automatic IBRS: EFER.AIBRSE.
    pub const AUTOMATIC_IBRS: u32 = 1 << 8;
    /// IBPB flushes branch type predictions.
    pub const IBPB_BRTYPE: u32 = 1 << 28;
    /// Not susceptible to SRSO.
    pub const SRSO_NO: u32 = 1 << 29;
    /// BP_CFG.BP_SPEC_REDUCE: no SRSO from guests to the host.
    pub const BP_SPEC_REDUCE: u32 = 1 << 31;
}

/// Bits of CPUID leaf 8000_0021H, ECX.
pub mod leaf_21_ecx {
    /// Not susceptible to TSA of the store queue.
    pub const TSA_SQ_NO: u32 = 1 << 1;
    /// Not susceptible to TSA of the L1 data cache.
    pub const TSA_L1_NO: u32 = 1 << 2;
}

/// Identification of a processor of AMD's, or of Hygon's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amd {
    /// Family, with the extended one added: 17H is Zen 1 and 2, 19H Zen 3 and 4, 1AH Zen 5.
    pub family: u32,
    /// CPUID leaf 8000_0008H, EBX.
    pub leaf_8_ebx: u32,
    /// CPUID leaf 8000_0021H, EAX; 0 if the CPU does not have it.
    pub leaf_21_eax: u32,
    /// CPUID leaf 8000_0021H, ECX.
    pub leaf_21_ecx: u32,
}

const ZEN_2: u32 = 0x17;
const HYGON: u32 = 0x18;
const ZEN_3: u32 = 0x19;

impl Amd {
    const fn has(&self, bit: u32) -> bool {
        self.leaf_8_ebx & bit != 0
    }

    const fn has_21(&self, bit: u32) -> bool {
        self.leaf_21_eax & bit != 0
    }

    /// Bits of CPUID leaf 8000_0008H, EBX, that guests see: what needs no register but SPEC_CTRL and PRED_CMD.
    pub const fn leaf_8_of_guests(&self) -> u32 {
        use leaf_8::*;
        const CONTROLS: u32 = IBRS | STIBP | IBRS_ALWAYS_ON | STIBP_ALWAYS_ON | IBRS_PREFERRED | IBRS_SAME_MODE | SSBD;
        self.leaf_8_ebx & (IBPB | CONTROLS | SSB_NO | BTC_NO | IBPB_RET)
    }

    /// Bits of SPEC_CTRL that guests may set; 0 if they do not have the register.
    pub fn control_of_guests(&self) -> u64 {
        let bits = [(leaf_8::IBRS, control::IBRS), (leaf_8::STIBP, control::STIBP), (leaf_8::SSBD, control::SSBD)];
        bits.into_iter().filter(|(feature, _)| self.has(*feature)).map(|(_, bit)| bit).sum()
    }

    /// Chooses the mitigations.
    pub(super) fn plan(&self) -> Plan {
        let barrier = self.has(leaf_8::IBPB);
        Plan { targets: self.targets(), barrier, buffers: self.buffers(), l1d: Data::Unaffected }
    }

    /// Each mitigation that this CPU can execute.
    pub(super) fn all(&self) -> Plan {
        let needed = self.plan();
        let targets = if needed.barrier { Targets::BarrierAtExits } else { needed.targets };
        Plan { targets, buffers: Data::ClearedAtEntry, ..needed }
    }

    /// A barrier at exits serves for both kinds of attacks, those on returns included.
    fn targets(&self) -> Targets {
        match self.returns() {
            Some(targets) => targets,
            None if self.has_21(leaf_21::AUTOMATIC_IBRS) => Targets::SetAutomatically,
            None if self.has(leaf_8::IBRS) && self.has(leaf_8::IBRS_ALWAYS_ON) => Targets::SetOnce,
            None if self.has(leaf_8::IBRS) => Targets::SetAtExits,
            None if self.has(leaf_8::IBPB) => Targets::BarrierAtExits,
            None => Targets::Exposed,
        }
    }

    /// The mitigation that returns need at exits; `None` if they need none, or another one that is permanent suffices.
    fn returns(&self) -> Option<Targets> {
        let barrier = |can| if can { Targets::BarrierAtExits } else { Targets::Exposed };
        match self.family {
            // Branch type confusion. Microcode with IBPB flushes branch types there.
            ..=ZEN_2 | HYGON if !self.has(leaf_8::BTC_NO) => Some(barrier(self.has(leaf_8::IBPB))),
            _ if self.has_21(leaf_21::SRSO_NO) || self.reduces() => None,
            ..=ZEN_2 | HYGON => Some(barrier(self.has(leaf_8::IBPB))),
            _ => Some(barrier(self.has(leaf_8::IBPB) && self.has_21(leaf_21::IBPB_BRTYPE))),
        }
    }

    /// Whether EFER.AIBRSE is to be set, permanently.
    pub const fn has_automatic_ibrs(&self) -> bool {
        self.has_21(leaf_21::AUTOMATIC_IBRS)
    }

    /// Whether BP_CFG.BP_SPEC_REDUCE is to be set, permanently.
    pub const fn reduces(&self) -> bool {
        self.has_21(leaf_21::BP_SPEC_REDUCE) && !self.has_21(leaf_21::SRSO_NO)
    }

    fn buffers(&self) -> Data {
        const IMMUNE: u32 = leaf_21_ecx::TSA_SQ_NO | leaf_21_ecx::TSA_L1_NO;
        match self.family {
            ZEN_3 if self.leaf_21_ecx & IMMUNE == IMMUNE => Data::Unaffected,
            ZEN_3 if self.has_21(leaf_21::VERW_CLEAR) => Data::ClearedAtEntry,
            ZEN_3 => Data::Exposed,
            _ => Data::Unaffected,
        }
    }
}
