//! x86-64. Here, Intel's processors; [`amd`], AMD's. Intel: branch target injection (Spectre v2), return stack underflow and reuse, microarchitectural
//! data sampling (MDS and its successors), L1 terminal fault.
//!
//! Sources: Intel, *Speculative Execution Side Channel Mitigations*; *Deep Dive: Intel Analysis of
//! Microarchitectural Data Sampling*; *L1 Terminal Fault*; SDM 2, CPUID leaf 7; SDM 4,
//! IA32_ARCH_CAPABILITIES, IA32_SPEC_CTRL, IA32_PRED_CMD, IA32_FLUSH_CMD.

pub mod amd;
pub mod control;
mod plan;
#[cfg(test)]
mod tests;

use amd::Amd;
pub use plan::{Data, Plan, Targets};

/// Bits of CPUID.(EAX=7, ECX=0):EDX.
pub mod leaf_7 {
    /// VERW clears the CPU's buffers.
    pub const MD_CLEAR: u32 = 1 << 10;
    /// IA32_SPEC_CTRL.IBRS and IA32_PRED_CMD.IBPB.
    pub const IBRS_IBPB: u32 = 1 << 26;
    /// IA32_SPEC_CTRL.STIBP.
    pub const STIBP: u32 = 1 << 27;
    /// IA32_FLUSH_CMD.
    pub const L1D_FLUSH: u32 = 1 << 28;
    /// IA32_ARCH_CAPABILITIES.
    pub const ARCH_CAPABILITIES: u32 = 1 << 29;
    /// IA32_SPEC_CTRL.SSBD.
    pub const SSBD: u32 = 1 << 31;
}

/// Bits of IA32_ARCH_CAPABILITIES.
pub mod capability {
    /// Not susceptible to Meltdown, nor to L1 terminal fault.
    pub const RDCL_NO: u64 = 1 << 0;
    /// IBRS may stay set: predictions of less privileged code are not used.
    pub const IBRS_ALL: u64 = 1 << 1;
    /// An empty return stack lets other predictors take over.
    pub const RSBA: u64 = 1 << 2;
    /// The L1 data cache need not be flushed at VM entry.
    pub const SKIP_L1DFL_VMENTRY: u64 = 1 << 3;
    /// Not susceptible to speculative store bypass.
    pub const SSB_NO: u64 = 1 << 4;
    /// Not susceptible to microarchitectural data sampling.
    pub const MDS_NO: u64 = 1 << 5;
    /// Not susceptible to TSX asynchronous abort.
    pub const TAA_NO: u64 = 1 << 8;
    /// Processor MMIO does not expose shared buffers, stale data, or propagate it.
    pub const SBDR_SSDP_NO: u64 = 1 << 13;
    /// Stale data of fill buffers is not propagated by processor MMIO.
    pub const FBSDP_NO: u64 = 1 << 14;
    /// Nor is stale data by the primary stale data propagator.
    pub const PSDP_NO: u64 = 1 << 15;
    /// VERW clears the fill buffers.
    pub const FB_CLEAR: u64 = 1 << 17;
    /// Returns may use other predictors also while IBRS is set.
    pub const RRSBA: u64 = 1 << 19;
    /// Not susceptible to branch history injection.
    pub const BHI_NO: u64 = 1 << 20;
    /// Not susceptible to post-barrier return stack predictions.
    pub const PBRSB_NO: u64 = 1 << 24;
    /// Not susceptible to gather data sampling.
    pub const GDS_NO: u64 = 1 << 26;
    /// Not susceptible to register file data sampling.
    pub const RFDS_NO: u64 = 1 << 27;
    /// VERW clears the register file's stale data.
    pub const RFDS_CLEAR: u64 = 1 << 28;
}

/// Identification of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// CPUID.(EAX=7, ECX=0):EDX.
    pub leaf_7_edx: u32,
    /// IA32_ARCH_CAPABILITIES; 0 if the CPU does not have it.
    pub capabilities: u64,
    /// Identification of a processor of AMD's, for which it decides.
    pub amd: Option<Amd>,
}

impl Identity {
    /// Bits of CPUID.(EAX=7, ECX=0):EDX that guests see: what needs no register but IA32_SPEC_CTRL, IA32_PRED_CMD and
    /// IA32_ARCH_CAPABILITIES.
    pub const fn leaf_7_of_guests(&self) -> u32 {
        let registers = leaf_7::IBRS_IBPB | leaf_7::STIBP | leaf_7::SSBD;
        let has_registers = self.leaf_7_edx & leaf_7::IBRS_IBPB != 0;
        self.leaf_7_edx & (leaf_7::MD_CLEAR | leaf_7::ARCH_CAPABILITIES | if has_registers { registers } else { 0 })
    }

    /// Bits of CPUID leaf 8000_0008H, EBX, that guests see: on AMD's processors.
    pub fn leaf_8_of_guests(&self) -> u32 {
        self.amd.map_or(0, |amd| amd.leaf_8_of_guests())
    }

    /// Whether guests have IA32_PRED_CMD.
    pub fn has_barrier_of_guests(&self) -> bool {
        self.leaf_7_of_guests() & leaf_7::IBRS_IBPB != 0 || self.leaf_8_of_guests() & amd::leaf_8::IBPB != 0
    }

    /// Bits of IA32_SPEC_CTRL that guests may set; 0 if they do not have the register.
    pub fn control_of_guests(&self) -> u64 {
        if let Some(amd) = &self.amd {
            return amd.control_of_guests();
        }
        let edx = self.leaf_7_of_guests();
        let bits = [(leaf_7::IBRS_IBPB, control::IBRS), (leaf_7::STIBP, control::STIBP), (leaf_7::SSBD, control::SSBD)];
        bits.into_iter().filter(|(feature, _)| edx & feature != 0).map(|(_, bit)| bit).sum()
    }

    /// IA32_ARCH_CAPABILITIES of guests: what it says of the CPU, without features that have further registers.
    pub const fn capabilities_of_guests(&self) -> u64 {
        use capability::*;
        const IMMUNITIES: u64 =
            RDCL_NO | SSB_NO | MDS_NO | TAA_NO | SBDR_SSDP_NO | FBSDP_NO | PSDP_NO | BHI_NO | PBRSB_NO | GDS_NO | RFDS_NO;
        self.capabilities & (IMMUNITIES | IBRS_ALL | RSBA | RRSBA | SKIP_L1DFL_VMENTRY | FB_CLEAR | RFDS_CLEAR)
    }
}

impl Plan {
    /// Chooses the mitigations.
    pub fn new(identity: &Identity) -> Self {
        if let Some(amd) = &identity.amd {
            return amd.plan();
        }
        let has = |bit| identity.leaf_7_edx & bit != 0;
        let promises = |bits| identity.capabilities & bits == bits;
        let cleared = |can| if can { Data::ClearedAtEntry } else { Data::Exposed };
        let targets = match has(leaf_7::IBRS_IBPB) {
            true if promises(capability::IBRS_ALL) => Targets::SetOnce,
            true => Targets::SetAtExits,
            false => Targets::Exposed,
        };
        let keeps_buffers = capability::MDS_NO | capability::TAA_NO | capability::FBSDP_NO | capability::RFDS_NO;
        let buffers = if promises(keeps_buffers) { Data::Unaffected } else { cleared(has(leaf_7::MD_CLEAR)) };
        let keeps_l1d = promises(capability::RDCL_NO) || promises(capability::SKIP_L1DFL_VMENTRY);
        let l1d = if keeps_l1d { Data::Unaffected } else { cleared(has(leaf_7::L1D_FLUSH)) };
        Self { targets, barrier: has(leaf_7::IBRS_IBPB), buffers, l1d }
    }

    /// Each mitigation that this CPU can execute, needed or not: to measure its cost.
    pub fn all(identity: &Identity) -> Self {
        if let Some(amd) = &identity.amd {
            return amd.all();
        }
        let needed = Self::new(identity);
        let l1d = if identity.leaf_7_edx & leaf_7::L1D_FLUSH != 0 { Data::ClearedAtEntry } else { needed.l1d };
        Self { buffers: Data::ClearedAtEntry, l1d, ..needed }
    }
}
