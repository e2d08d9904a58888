//! The account of exits and CPU time in messages.

use serde::{Deserialize, Serialize};

/// One row of the ledger: the exits of one vCPU for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRow {
    /// The virtual machine, from 0.
    pub vm: u8,
    /// The vCPU, from 0.
    pub vcpu: u8,
    /// The reason.
    pub row: Row,
    /// Number of exits.
    pub count: u64,
    /// Their total counter ticks.
    pub ticks: u64,
    /// Fewest counter ticks of an exit.
    pub min: u64,
    /// Most counter ticks of an exit.
    pub max: u64,
}

/// Identifies a row of the ledger; crate `ledger` has the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Row {
    /// A static row, by its number.
    Static(u16),
    /// A row allocated at run time.
    Dynamic {
        /// The reason's number.
        kind: u16,
        /// The sub-reason: a register's encoding, a function's number.
        key: u32,
    },
}

/// Time of all vCPUs of a virtual machine, in counter ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// The virtual machine, from 0.
    pub vm: u8,
    /// Running on a CPU, in the guest or in Stile.
    pub ran: u64,
    /// Ready, waiting for a CPU or for the next period of the cap.
    pub waited: u64,
}

/// Totals of a vCPU's ledger that is copied while the machine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The tag of [`crate::Command::Sample`].
    pub tag: u16,
    /// The virtual machine, from 0.
    pub vm: u8,
    /// The vCPU, from 0.
    pub vcpu: u8,
    /// Frequency of the counter that defines ticks, in Hz.
    pub hz: u64,
    /// Time of the copy, in ticks.
    pub now: u64,
    /// Exits counted by the vector.
    pub taken: u64,
    /// Ticks on a CPU, in the guest or in Stile.
    pub ran: u64,
    /// Ticks ready, waiting for a CPU or for the next period of the cap.
    pub waited: u64,
}

/// Counters of a virtual machine's decode cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decoded {
    /// The virtual machine, from 0.
    pub vm: u8,
    /// Found and valid.
    pub hits: u64,
    /// Not found: fetched and decoded.
    pub misses: u64,
    /// Replaced by others.
    pub evictions: u64,
    /// Found with changed code; each also counts as a miss.
    pub mismatches: u64,
    /// Dropped because of a write to their code or tables.
    pub dropped: u64,
}

/// The ledger's totals of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerTotal {
    /// The virtual machine, from 0.
    pub vm: u8,
    /// The vCPU, from 0.
    pub vcpu: u8,
    /// Exits counted by the vector.
    pub taken: u64,
    /// Exits summed over the rows. A difference means an unaccounted exit.
    pub counted: u64,
    /// Counter ticks spent outside of the guest, for its exits.
    pub outside_ticks: u64,
    /// Counter ticks from the vCPU's start until now or its end.
    pub alive_ticks: u64,
}
