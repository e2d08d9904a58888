//! The messages between Stile and the operator.
//!
//! They are postcard-encoded: a variant is identified by its position. New variants go at the end. None is
//! removed or moved, nor are its fields changed, without a new [`crate::PROTOCOL_VERSION`].

use serde::{Deserialize, Serialize};

use crate::{CpuTime, Decoded, LedgerRow, LedgerTotal, Piece, Records, Row, Sample, Text, VmState};

/// Messages from Stile to the operator.
#[allow(clippy::large_enum_variant, reason = "there is no heap, and a message is encoded where it is made")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Stile is up: the first event.
    Hello {
        /// Stile's version.
        version: Version,
        /// Physical CPUs that it drives.
        cpus: u16,
        /// The hypervisor's mode.
        level: Level,
        /// Virtual machines in the image.
        vms: u8,
    },
    /// A virtual machine changed its state.
    Vm {
        /// Its number, from 0.
        vm: u8,
        /// Its new state.
        state: VmState,
    },
    /// One row of the ledger.
    LedgerRow(LedgerRow),
    /// The ledger's totals of one vCPU: follows its rows.
    LedgerTotal(LedgerTotal),
    /// End of the ledger: completes the answer to [`Command::Ledger`].
    LedgerEnd,
    /// Frequency of the counter that defines ticks (`CNTFRQ_EL0`; the time-stamp counter's).
    CounterFrequency {
        /// In Hz.
        hz: u64,
    },
    /// The hypervisor panicked; its report is text on the log's channel.
    Panic {
        /// The physical CPU.
        cpu: u16,
    },
    /// Stile ends: the last event.
    End {
        /// 0 if every virtual machine ended itself; [`Event::REFUSED`]; [`Event::PANICKED`]; else 1.
        status: u8,
    },
    /// Stile's memory: sent with the ledgers.
    Memory {
        /// Bytes that were free when the first virtual machine started.
        before: u64,
        /// Bytes that are free.
        now: u64,
    },
    /// Counters of a virtual machine's decode cache, if it was used: follows its rows.
    Decoded(Decoded),
    /// Time of a virtual machine's vCPUs: follows its rows.
    CpuTime(CpuTime),
    /// The result of [`Command::Control`].
    Answer {
        /// The command's tag.
        tag: u32,
        /// Whether it is carried out.
        answer: Answer,
    },
    /// The answer to [`Command::Sample`].
    Sample(Sample),
    /// The answer to [`Command::Sample`]: the vCPU does not exist.
    NoSample {
        /// The command's tag.
        tag: u16,
        /// The virtual machine of the command.
        vm: u8,
        /// The vCPU of the command.
        vcpu: u8,
    },
    /// A row of the sampled ledger. It belongs to the next [`Event::SampleRows`].
    SampleRow(LedgerRow),
    /// Completes the answer to [`Command::SampleRows`].
    SampleRows {
        /// The command's tag.
        tag: u16,
        /// The first row of the command.
        from: u16,
        /// Start of the next piece; `None` after the last.
        next: Option<u16>,
        /// Number of rows in the piece. If fewer arrived, the others were lost on the line.
        rows: u8,
    },
    /// Number of bytes of the package received: sent periodically, after the last piece, for a piece out of order, and while the virtual
    /// machine is created.
    Uploaded {
        /// The tag of [`Command::Upload`].
        tag: u32,
        /// Bytes.
        next: u32,
    },
    /// A command is not carried out.
    Refused {
        /// The command's tag.
        tag: u32,
        /// Reason, as a sentence.
        why: Text,
    },
    /// The answer to [`Command::TraceStart`], unless it is [`Event::Refused`].
    TraceStarted {
        /// The command's tag.
        tag: u32,
        /// Frequency of the counter that defines ticks, in Hz.
        hz: u64,
        /// The counter.
        now: u64,
        /// The CPUs that record or will soon: bit n % 64 of word n / 64 is CPU n.
        cpus: [u64; 8],
    },
    /// Records of a CPU's trace, in their order.
    TraceRecords {
        /// The physical CPU.
        cpu: u16,
        /// Number of earlier records: a gap shows that some were lost.
        first: u32,
        /// The records (crate `trace`), 16 bytes each.
        records: Records,
    },
    /// Counts of a CPU while it recorded: sent at the end of the trace, those of some CPUs at a time.
    TraceCpu {
        /// The physical CPU.
        cpu: u16,
        /// Exits counted by the vectors.
        taken: u64,
        /// Records of exits that were dropped, because its ring was full.
        exits: u64,
        /// Other records that were dropped.
        others: u64,
    },
    /// Completes the answer to [`Command::TraceFetch`].
    TraceFetched {
        /// There were records, and there may be more.
        more: bool,
        /// The trace has ended.
        ended: bool,
    },
    /// The answer to [`Command::TraceRow`].
    TraceRow {
        /// The virtual machine of the command.
        vm: u8,
        /// The vCPU of the command.
        vcpu: u8,
        /// The number of the command.
        number: u16,
        /// Meaning of the row; `None` if it does not exist.
        row: Option<Row>,
    },
    /// The answer to [`Command::OpenWindow`], unless it is [`Event::Refused`].
    Window {
        /// The command's tag.
        tag: u32,
        /// Physical address.
        address: u64,
        /// Size in bytes.
        size: u32,
        /// Ticks of the counter per second.
        counter_hz: u64,
    },
    /// The answer to [`Command::SaveState`], [`Command::SaveMemory`] and [`Command::Collect`], unless it is [`Event::Refused`]: a part is
    /// in the window.
    Saved {
        /// The command's tag.
        tag: u32,
        /// The command's part or address.
        at: u64,
        /// Bytes in the window; 0 if there is nothing to save there.
        length: u32,
        /// The next part or address; `None` after the last.
        next: Option<u64>,
        /// Ticks of the counter that the command took.
        ticks: u64,
    },
    /// The answer to [`Command::RestoreState`] and [`Command::RestoreMemory`], unless it is [`Event::Refused`], and to
    /// [`Command::RestoreEnd`], unless it is [`Event::Answer`].
    Restored {
        /// The command's tag.
        tag: u32,
        /// Number of entries of a piece of RAM that are restored; 1 for a part of the state.
        done: u32,
        /// Whether these are all.
        all: bool,
        /// Ticks of the counter that the command took.
        ticks: u64,
    },
    /// The served device for which a virtual machine waits, once Stile's log has reported the wait.
    Waits {
        /// The virtual machine's number, from 0.
        vm: u8,
        /// The first such device; `None` if there is none any more.
        wait: Option<Wait>,
    },
}

impl Event {
    /// Status of [`Event::End`]: Stile can't run on this machine, or not with this configuration.
    pub const REFUSED: u8 = 2;
    /// Status of [`Event::End`] after [`Event::Panic`].
    pub const PANICKED: u8 = 101;
}

/// Messages from the operator to Stile.
#[allow(clippy::large_enum_variant, reason = "there is no heap, and a command is handled where it is decoded")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// End a virtual machine as if its power failed.
    Stop {
        /// Its number, from 0. Untrusted input.
        vm: u8,
    },
    /// Send the ledger.
    Ledger,
    /// End every virtual machine, then Stile.
    Shutdown,
    /// Panic, which reports the CPU's state: for a machine that seems to hang.
    Panic,
    /// Change the state of a virtual machine: answered by [`Event::Answer`]. [`Event::Vm`] follows when the state has changed.
    Control {
        /// Returned with the answer. A request that is repeated has the same tag: it is carried out once, and answered each time.
        tag: u32,
        /// The virtual machine's number, from 0. Untrusted input.
        vm: u8,
        /// The change.
        action: Action,
    },
    /// Copy the ledger of a vCPU at a moment at which it is exact: answered by [`Event::Sample`] or [`Event::NoSample`].
    Sample {
        /// Returned with the answer. A request that is repeated has another tag.
        tag: u16,
        /// The virtual machine, from 0. Untrusted input.
        vm: u8,
        /// The vCPU, from 0. Untrusted input.
        vcpu: u8,
    },
    /// Send a piece of that copy: answered by some [`Event::SampleRow`], and [`Event::SampleRows`]. A copy that was replaced has no rows.
    SampleRows {
        /// The tag of [`Command::Sample`].
        tag: u16,
        /// The first row. Untrusted input.
        from: u16,
    },
    /// A package (crate `blob`) with a virtual machine follows. Replaces one that was not completed. Answered by [`Event::Uploaded`] or
    /// [`Event::Refused`].
    Upload {
        /// Returned with the answer.
        tag: u32,
        /// The number that the virtual machine gets. Untrusted input.
        vm: u8,
        /// Bytes of the package.
        size: u32,
        /// Bytes of its RAM and disks in memory, so that a machine with too little memory refuses at once; 0 if unknown. Untrusted input.
        memory: u64,
    },
    /// A piece of the package.
    UploadData {
        /// The tag of [`Command::Upload`].
        tag: u32,
        /// Its start.
        offset: u32,
        /// Its bytes.
        piece: Piece,
    },
    /// Create a bounded piece of the virtual machine of the completely received package, and start it once it is complete. Answered by
    /// [`Event::Uploaded`] if the command must be repeated, [`Event::Answer`] or [`Event::Refused`].
    Create {
        /// The tag of [`Command::Upload`].
        tag: u32,
        /// CRC-32 (ISO-HDLC) of the package.
        crc: u32,
    },
    /// Record every exit of every CPU. Answered by [`Event::TraceStarted`] or [`Event::Refused`].
    TraceStart {
        /// Returned with the answer.
        tag: u32,
    },
    /// Stop recording.
    TraceStop,
    /// Send a piece of the records: answered by at most one [`Event::TraceRecords`], and [`Event::TraceFetched`].
    TraceFetch {
        /// Drop a CPU's records instead, after [`Command::TraceStop`].
        discard: bool,
    },
    /// Requests the meaning of a row number in a trace record.
    TraceRow {
        /// The virtual machine, from 0. Untrusted input.
        vm: u8,
        /// The vCPU, from 0. Untrusted input.
        vcpu: u8,
        /// The row's number. Untrusted input.
        number: u16,
    },
    /// Allocate a window of memory that the operator accesses, too. Answered by [`Event::Window`] or [`Event::Refused`].
    OpenWindow {
        /// Returned with the answer.
        tag: u32,
        /// Each page of the window begins with this number plus its index there, by which an operator that knows no
        /// addresses finds the window.
        mark: u64,
    },
    /// Clear and free the window.
    CloseWindow,
    /// As [`Command::UploadData`], for bytes in the window.
    UploadWindow {
        /// The tag of [`Command::Upload`].
        tag: u32,
        /// Their offset in the package.
        offset: u32,
        /// Their number. Untrusted input.
        length: u32,
    },
    /// Put a part of a paused virtual machine's state into the window: answered by [`Event::Saved`], or with length 0 and the same part
    /// again if Stile is not ready yet, or by [`Event::Refused`].
    SaveState {
        /// Returned with the answer.
        tag: u32,
        /// The virtual machine, from 0. Untrusted input.
        vm: u8,
        /// The part, from 0. Untrusted input.
        part: u16,
    },
    /// Put a piece of a virtual machine's RAM (crate `snapshot`) into the window: answered by [`Event::Saved`] or
    /// [`Event::Refused`].
    SaveMemory {
        /// Returned with the answer.
        tag: u32,
        /// The virtual machine, from 0. Untrusted input.
        vm: u8,
        /// Guest-physical address. Untrusted input.
        from: u64,
        /// The pages of interest.
        scope: Scope,
    },
    /// Protect the pages of a paused virtual machine's RAM that it wrote since the last of these commands, so that
    /// [`Scope::Changed`] finds these, and [`Scope::Rest`] those that it writes from here on. A bounded part of it: answered by
    /// [`Event::Saved`] with the number of pages as length, or [`Event::Refused`]. [`Command::CloseWindow`] ends it.
    Collect {
        /// Returned with the answer.
        tag: u32,
        /// The virtual machine, from 0. Untrusted input.
        vm: u8,
        /// Guest-physical address. Untrusted input.
        from: u64,
    },
    /// As [`Command::Create`], but the virtual machine does not start: a snapshot follows.
    Restore {
        /// The tag of [`Command::Upload`].
        tag: u32,
        /// CRC-32 (ISO-HDLC) of the package.
        crc: u32,
    },
    /// Take a part of the state from the window: answered by [`Event::Restored`] or [`Event::Refused`].
    RestoreState {
        /// Returned with the answer.
        tag: u32,
        /// The virtual machine, from 0. Untrusted input.
        vm: u8,
        /// The part, from 0. Untrusted input.
        part: u16,
        /// Bytes in the window. Untrusted input.
        length: u32,
    },
    /// Take a piece of RAM from the window: answered by [`Event::Restored`] or [`Event::Refused`].
    RestoreMemory {
        /// Returned with the answer.
        tag: u32,
        /// The virtual machine, from 0. Untrusted input.
        vm: u8,
        /// Number of the piece's entries that are restored already. Untrusted input.
        from: u32,
        /// Bytes in the window. Untrusted input.
        length: u32,
    },
    /// The snapshot is complete: the virtual machine is paused from here on. Answered by [`Event::Restored`], or if
    /// it was not being restored by [`Event::Answer`].
    RestoreEnd {
        /// Returned with the answer.
        tag: u32,
        /// The virtual machine, from 0. Untrusted input.
        vm: u8,
        /// Its clocks have advanced since the snapshot, as the time of day has.
        advance: bool,
    },
    /// Drop a package that was not completed. Answered by [`Event::Answer`] once its memory and the number are free; at once if there is no
    /// such package.
    Abandon {
        /// Returned with the answer.
        tag: u32,
        /// The tag of [`Command::Upload`].
        upload: u32,
    },
    /// Send the last [`Event::Vm`] of a virtual machine again, which may have been lost.
    State {
        /// Its number, from 0. Untrusted input.
        vm: u8,
    },
}

/// Pages of RAM that [`Command::SaveMemory`] saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// All, of a paused virtual machine.
    All,
    /// All that [`Command::Collect`] protected. The virtual machine may run: pages that it writes meanwhile may be inconsistent.
    First,
    /// Those that it wrote before the last [`Command::Collect`], and that were not saved since. It may run.
    Changed,
    /// Those, and those that it wrote since the last [`Command::Collect`], of a paused virtual machine.
    Rest,
}

/// A change of a virtual machine's state. Its names are those of the control socket's JSON, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Press the power button.
    PowerButton,
    /// Power off immediately.
    Off,
    /// Power on.
    Start,
    /// Reset and restart, regardless of the configured effect of a guest's reset.
    Reset,
    /// Stop all vCPUs and the clocks that a pause stops.
    Pause,
    /// End a pause.
    Resume,
    /// Give back the memory of a virtual machine that is off, and forget it: [`VmState::Destroyed`] follows.
    Destroy,
}

/// Whether a [`Command::Control`] is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is, or will be soon.
    Done,
    /// The machine has no virtual machine of that number.
    NoVm,
    /// The virtual machine's state does not permit it.
    WrongState,
    /// The virtual machine has no power button, or its guest does not listen to it.
    NoButton,
    /// The virtual machine owns PCI functions, which stay with it.
    HasFunctions,
    /// It serves devices to other VMs, or is served some, and can't be destroyed.
    HasLinks,
}

/// A version of Stile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Incremented for incompatible changes.
    pub major: u16,
    /// Incremented for features.
    pub minor: u16,
    /// Incremented for fixes.
    pub patch: u16,
}

/// The hypervisor's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Level {
    /// At EL2, with `HCR_EL2.E2H` set (FEAT_VHE).
    Vhe,
    /// At EL2, without FEAT_VHE.
    Nvhe,
    /// In VMX root operation.
    Vmx,
    /// On AMD-V.
    Svm,
}

/// A served device for which its client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The number of the virtual machine that serves the device, from 0.
    pub server: u8,
    /// The device's number among the client's served devices, from 1.
    pub number: u8,
    /// The device's type (Virtio 1.2, section 5).
    pub device: u32,
}
