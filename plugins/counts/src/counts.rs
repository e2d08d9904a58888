//! Counts of instructions by kind.

use serde::Serialize;

use crate::decode::KINDS;

/// Numbers of instructions by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub(crate) instructions: u64,
    sysreg_reads: u64,
    sysreg_writes: u64,
    barriers: u64,
    tlb_ops: u64,
    loads: u64,
    stores: u64,
}

impl From<[u64; KINDS]> for Counts {
    fn from([instructions, sysreg_reads, sysreg_writes, barriers, tlb_ops, loads, stores]: [u64; KINDS]) -> Self {
        Self { instructions, sysreg_reads, sysreg_writes, barriers, tlb_ops, loads, stores }
    }
}
