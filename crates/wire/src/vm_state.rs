//! States of virtual machines, as messages name them.

use serde::{Deserialize, Serialize};

/// The state of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VmState {
    /// It runs.
    Started,
    /// It powered itself off, or the operator ended it.
    PoweredOff,
    /// It reset itself, and that was its end.
    Reset,
    /// It crashed and was stopped.
    Crashed(Crash),
    /// It ended itself with this status; 0 is success.
    Exited(u32),
    /// It was reset, and restarts; the number counts its resets.
    Restarted(u32),
    /// The operator paused it: none of its vCPUs runs.
    Paused,
    /// It runs again after a pause.
    Resumed,
    /// It was destroyed: the next VM with its number is a different one.
    Destroyed,
}

/// Cause and location of a guest's crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// Cause.
    pub reason: CrashReason,
    /// The vCPU, from 0.
    pub vcpu: u8,
    /// Its program counter, plus the code segment's base on x86.
    pub pc: u64,
    /// The processor's exit syndrome: `ESR_EL2`, or the VMCS's exit reason.
    pub syndrome: u64,
    /// The faulting address, if any.
    pub address: u64,
}

/// The cause of a guest's crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CrashReason {
    /// It accessed an address without memory or device.
    NoDevice,
    /// It accessed a device with an instruction whose syndrome does not describe the access.
    NoSyndrome,
    /// It fetched an instruction from an address without memory.
    BadFetch,
    /// The exit's reason is not handled.
    UnknownExit,
    /// The hardware reported an error (SError) while it ran.
    SystemError,
    /// The second stage's tables need more memory than there is.
    OutOfMemory,
    /// Triple fault.
    TripleFault,
    /// The processor refused to enter it.
    EntryFailed,
    /// VMX abort: an exit of its own VM failed. The syndrome is the indicator, the address that of its VMCS.
    VmxAbort,
}
