//! The result of an instruction.

/// The result of an instruction that did not fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Completed: advance to the next instruction.
    Complete,
    /// A repeated string instruction has elements left. Its registers hold the progress: RIP stays, interrupts may be taken, and the guest
    /// executes it again.
    Partial,
    /// Nothing was done: it is not the instruction that exited, because code or mapping has changed since.
    Changed,
    /// Completed: continue at this RIP.
    Jump(u64),
    /// Completed, with a load of SS: events are blocked until the next instruction completes.
    Shadowed,
    /// Completed: RFLAGS becomes this. The old RFLAGS.TF decides about a single step.
    Flags(u64),
}
