//! The messages between Stile and the operator.
//!
//! They are postcard-encoded: a variant is known by its place. New ones go at the end, and none is
//! taken away or moved without a new [`crate::PROTOCOL_VERSION`].

use serde::{Deserialize, Serialize};

/// What Stile tells the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Stile is up: the first event.
    Hello {
        /// Of Stile.
        version: Version,
        /// Physical CPUs that it drives.
        cpus: u8,
        /// How it runs.
        level: Level,
        /// Virtual machines in the image.
        vms: u8,
    },
    /// Something happened to a virtual machine.
    Vm {
        /// Its number, from 0.
        vm: u8,
        /// What it is now.
        state: VmState,
    },
    /// One row of the ledger.
    LedgerRow(LedgerRow),
    /// The ledger's totals of one vCPU: follows its rows.
    LedgerTotal(LedgerTotal),
    /// The ledger is sent whole: the answer to [`Command::Ledger`] ends here.
    LedgerEnd,
    /// How fast the counter runs that ticks are of (`CNTFRQ_EL0`; the time-stamp counter's).
    CounterFrequency {
        /// In Hz.
        hz: u64,
    },
    /// The hypervisor panicked; what it has to say is text on the log's channel.
    Panic {
        /// The physical CPU.
        cpu: u8,
    },
    /// Stile is done: the last event.
    End {
        /// 0 if every virtual machine ended of its own accord; [`Event::REFUSED`]; [`Event::PANICKED`]; else 1.
        status: u8,
    },
    /// Stile's memory: comes with the ledgers.
    Memory {
        /// Bytes that were free when the first virtual machine started.
        before: u64,
        /// Bytes that are free.
        now: u64,
    },
    /// How often a virtual machine's instructions had to be decoded, where any had: follows its rows.
    Decoded(Decoded),
    /// How a virtual machine's vCPUs have spent their time: follows its rows.
    CpuTime(CpuTime),
}

impl Event {
    /// Status of [`Event::End`]: Stile can't run on this machine, or not with this configuration.
    pub const REFUSED: u8 = 2;
    /// Status of [`Event::End`] after [`Event::Panic`].
    pub const PANICKED: u8 = 101;
}

/// What the operator tells Stile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// End a virtual machine as if its power was cut.
    Stop {
        /// Its number, from 0. Unchecked: it came over a line.
        vm: u8,
    },
    /// Send the ledger.
    Ledger,
    /// End every virtual machine, then Stile.
    Shutdown,
    /// Say where everything is, and stop: for a machine that seems to hang.
    Panic,
}

/// A version of Stile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Changes when something that worked before may not.
    pub major: u16,
    /// Changes with features.
    pub minor: u16,
    /// Changes with corrections.
    pub patch: u16,
}

/// How the hypervisor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Level {
    /// At EL2, with `HCR_EL2.E2H` set (FEAT_VHE).
    Vhe,
    /// At EL2 without.
    Nvhe,
    /// In VMX root operation.
    Vmx,
}

/// What became of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VmState {
    /// It runs.
    Started,
    /// It ended by its own power-off, or at the operator's word.
    PoweredOff,
    /// It reset itself, and that was its end.
    Reset,
    /// It was stopped because it can't go on.
    Crashed(Crash),
    /// It ended itself, and said how it went: 0 is well.
    Exited(u32),
    /// It reset itself, so many times by now, and starts anew.
    Restarted(u32),
}

/// Why and where a guest can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// Why.
    pub reason: CrashReason,
    /// The vCPU, from 0.
    pub vcpu: u8,
    /// Its program counter; with the segment's base, where there is one.
    pub pc: u64,
    /// Why it left the guest, as the processor says it: `ESR_EL2`; the VMCS's exit reason.
    pub syndrome: u64,
    /// The address it is about, if any: `FAR_EL2`, or what the exit says instead; guest-physical.
    pub address: u64,
}

/// Why a guest can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CrashReason {
    /// It reached for an address that has neither memory nor a device.
    NoDevice,
    /// It reached for a device with an instruction whose syndrome doesn't say what it does.
    NoSyndrome,
    /// It fetched an instruction from where there is no memory.
    BadFetch,
    /// The exit has a cause that Stile doesn't handle.
    UnknownExit,
    /// The hardware reported an error (SError) while it ran.
    SystemError,
    /// The second stage's tables need more memory than there is.
    OutOfMemory,
    /// It had a fault whose handler faulted, and so did that one's handler.
    TripleFault,
    /// The processor refused to enter it.
    EntryFailed,
}

/// One row of the ledger: the exits of one vCPU for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRow {
    /// The virtual machine, from 0.
    pub vm: u8,
    /// The vCPU, from 0.
    pub vcpu: u8,
    /// The reason.
    pub row: Row,
    /// How many exits.
    pub count: u64,
    /// Counter ticks that all of them took.
    pub ticks: u64,
    /// Counter ticks of the cheapest.
    pub min: u64,
    /// Counter ticks of the dearest.
    pub max: u64,
}

/// Names a row of the ledger; the ledger's own tables turn it into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Row {
    /// A row that is always there, by its place in the ledger's table.
    Static(u16),
    /// A row that was made for something met on the way.
    Dynamic {
        /// The kind of thing: the place of its kind in the ledger's table.
        kind: u16,
        /// Which: a register's encoding, a function's number.
        key: u32,
    },
}

/// How a virtual machine's vCPUs have spent their time, all together, in counter ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// The virtual machine, from 0.
    pub vm: u8,
    /// On a CPU, in the guest or in Stile.
    pub ran: u64,
    /// Ready, but waiting for a CPU or for the next period of the cap.
    pub waited: u64,
}

/// What became of the decoded forms of a virtual machine's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decoded {
    /// The virtual machine, from 0.
    pub vm: u8,
    /// Found, and still right.
    pub hits: u64,
    /// Not found: fetched and decoded.
    pub misses: u64,
    /// Forgotten to make room for others.
    pub evictions: u64,
    /// Found, but the code had changed; each is a miss, too.
    pub mismatches: u64,
    /// Forgotten because what they depend on was written.
    pub dropped: u64,
}

/// The ledger's totals of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerTotal {
    /// The virtual machine, from 0.
    pub vm: u8,
    /// The vCPU, from 0.
    pub vcpu: u8,
    /// Exits, counted where every one of them comes by.
    pub taken: u64,
    /// Exits, summed over the rows: the same number, or an exit went unaccounted.
    pub counted: u64,
    /// Counter ticks spent in the hypervisor on this vCPU's behalf.
    pub outside_ticks: u64,
    /// Counter ticks from the vCPU's start to now, or to its end.
    pub alive_ticks: u64,
}
