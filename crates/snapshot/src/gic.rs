//! State of a GICv3 or GICv2 with no interrupt in a list register.

use serde::{Deserialize, Serialize};

/// Number of interrupts in a [`Block`].
pub const BLOCK: usize = 32;

/// Thirty-two interrupts; bit (or index) `i` is the block's `i`th.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Enabled.
    pub enabled: u32,
    /// In group 1.
    pub group1: u32,
    /// Edge-triggered.
    pub edge: u32,
    /// Level of the input line.
    pub line: u32,
    /// Pending latch.
    pub pending: u32,
    /// Active.
    pub active: u32,
    /// Made active by a register write, not acknowledged.
    pub written: u32,
    /// Priorities.
    pub priority: [u8; BLOCK],
    /// Priority (bits 7 to 0) and group (bit 8) with which each active interrupt was acknowledged.
    pub acknowledged: [u16; BLOCK],
}

/// A block of SPIs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spis {
    /// Their state.
    pub block: Block,
    /// GICD_IROUTER: affinity in bits 23 to 0, 1-of-N in bit 31. Of a GICv2 the lists of GICD_ITARGETSR.
    pub routes: [u32; BLOCK],
    /// The vCPU on which each is active.
    pub homes: [u8; BLOCK],
}

/// SGIs and PPIs of a vCPU, and its CPU interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Private {
    /// State of INTIDs 0 to 31.
    pub block: Block,
    /// PPIs whose physical interrupt is active on behalf of this vCPU.
    pub held: u32,
    /// GICR_WAKER.ProcessorSleep; false for a GICv2.
    pub asleep: bool,
    /// ICH_VMCR_EL2, or GICH_VMCR.
    pub vmcr: u64,
    /// ICH_AP0Rn_EL2.
    pub ap0r: [u32; 4],
    /// ICH_AP1Rn_EL2.
    pub ap1r: [u32; 4],
}
