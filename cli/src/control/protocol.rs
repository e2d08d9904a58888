//! Messages between a machine and the clients of its control socket: JSON objects, one a line.
//!
//! A client begins with [`Request::Hello`]. The server answers each request with one reply, in order;
//! [`Reply::Output`], [`Reply::State`] and [`Reply::Ended`] may be sent at any time after [`Request::Attach`].

use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stile_wire::Action;

use super::sample::Sample;
use crate::config::Arch;
use crate::guest::Guest;

/// Changes with each incompatible change of the messages.
pub const VERSION: u32 = 4;

/// A message of one side.
pub trait Message: DeserializeOwned {
    /// The longest line in bytes that the other side reads.
    const LONGEST: u64;
}

impl Message for Request {
    /// More than any needs: machines do not trust their clients with memory.
    const LONGEST: u64 = 4 << 20;
}

impl Message for Reply {
    /// More than a sample of 20,000 vCPUs. A guest chooses how many rows a vCPU's ledger has, up to that of 256 registers: a lower
    /// limit would let it hide all VMs from `top` and `metrics`.
    const LONGEST: u64 = 1 << 30;
}

/// A message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The first message.
    Hello {
        /// [`VERSION`] of the client.
        version: u32,
    },
    /// Asks for [`Reply::Status`].
    Status,
    /// Asks for [`Reply::Sample`].
    Sample,
    /// Asks for a console: [`Reply::Attached`], then [`Reply::Output`]. Replaces the console of an earlier request.
    Attach {
        /// The VM's name; the first VM by default.
        vm: Option<String>,
    },
    /// Asks for the state of a VM: [`Reply::State`].
    State {
        /// The VM's name.
        vm: String,
    },
    /// Changes the state of a VM. Answered by [`Reply::Done`] once Stile has accepted it; [`Request::State`] reports its completion.
    Control {
        /// The VM's name.
        vm: String,
        /// The change.
        action: Action,
    },
    /// Asks for [`Reply::Image`].
    Image,
    /// Creates a VM. Answered by some [`Reply::Progress`], and [`Reply::Done`] once it starts.
    Create {
        /// The VM.
        guest: Box<Guest>,
        /// The file with its package (crate `blob`), which the machine's process reads.
        package: PathBuf,
        /// Bytes of its RAM: Stile refuses before the upload if so much is not free. 0 if unknown.
        memory: u64,
    },
    /// Pauses a VM until this client resumes it or disconnects. Answered as [`Request::Control`].
    Hold {
        /// The VM's name.
        vm: String,
    },
    /// Makes the pause of [`Request::Hold`] last also if the client disconnects. Answered as [`Request::State`].
    Keep {
        /// The VM's name.
        vm: String,
    },
    /// Saves a paused VM. Answered by some [`Reply::Progress`], and [`Reply::Done`].
    Save {
        /// The VM's name.
        vm: String,
        /// An empty file, which the machine's process writes.
        file: PathBuf,
    },
    /// Begins to copy a paused VM, which can run from the answer on. Answered as [`Request::CopyStep`].
    Copy {
        /// The VM's name.
        vm: String,
        /// An empty file, which the machine's process writes.
        file: PathBuf,
    },
    /// The next step of the copy. Answered by [`Reply::Copied`].
    CopyStep {
        /// The step.
        step: CopyStep,
    },
    /// Creates a VM from a snapshot, and lets it run. Answered by any number of [`Reply::Progress`], then [`Reply::Loaded`].
    Restore {
        /// The file, which the machine's process reads.
        file: PathBuf,
        /// The VM's clocks.
        clock: Clock,
        /// Number of the file's sections, if it still grows: [`Request::RestoreMore`] follows.
        sections: Option<u32>,
        /// The VM keeps `ipi = "direct"`.
        trusted: bool,
    },
    /// There are more sections of the file. Answered as [`Request::Restore`].
    RestoreMore {
        /// As for [`Request::Restore`].
        sections: Option<u32>,
    },
    /// Begins a trace: [`Reply::TraceStarted`], then [`Reply::TraceRecords`].
    Trace,
    /// Ends the trace: [`Reply::TraceEnded`] follows the rest of the records.
    TraceStop,
    /// Types on the attached console. Answered only if it is refused.
    Input {
        /// The bytes.
        bytes: Bytes,
    },
}

/// A message of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// The answer to [`Request::Hello`].
    Hello {
        /// [`VERSION`] of the machine.
        version: u32,
    },
    /// The answer to [`Request::Status`].
    Status(Status),
    /// The answer to [`Request::Sample`]: the live ledger of the machine's own Stile.
    Sample(Sample),
    /// The answer to [`Request::Attach`].
    Attached {
        /// The VM's name.
        vm: String,
        /// The last part of the console's output.
        scrollback: Bytes,
        /// Its lines end with LF alone: the output of a command.
        #[serde(default)]
        bare: bool,
    },
    /// Output of the attached console.
    Output {
        /// The bytes.
        bytes: Bytes,
    },
    /// A VM changed its state; also the answer to [`Request::State`].
    State {
        /// Its name.
        vm: String,
        /// The new state.
        state: State,
    },
    /// The answer to [`Request::Image`].
    Image {
        /// The file that the machine was started with; none if it was started by others.
        path: Option<PathBuf>,
    },
    /// Number of bytes of a VM's package that Stile has received.
    Progress {
        /// Bytes.
        done: u64,
        /// Bytes in all.
        all: u64,
    },
    /// The answer to [`Request::Trace`].
    TraceStarted {
        /// Ticks per second.
        hz: u64,
        /// The counter.
        now: u64,
        /// The CPUs that record or will soon.
        cpus: Vec<u16>,
        /// The names of VMs, by number.
        vms: Vec<String>,
    },
    /// Records of a CPU.
    TraceRecords {
        /// The CPU.
        cpu: u16,
        /// The records (crate `trace`), 16 bytes each.
        records: Bytes,
    },
    /// The trace has ended.
    TraceEnded {
        /// Counts of each CPU.
        cpus: Vec<CpuCounts>,
        /// Records that were lost on the line.
        lost: u64,
        /// The dynamic rows of the ledger in the records.
        rows: Vec<RowName>,
    },
    /// The answer to [`Request::CopyStep`].
    Copied(Copied),
    /// The answer to [`Request::Restore`] and [`Request::RestoreMore`]. Carries Stile's work for it.
    Loaded(Work),
    /// The answer to [`Request::Control`] and [`Request::Create`].
    Done,
    /// The request was not carried out.
    Refused {
        /// Reason, as a sentence.
        message: String,
    },
    /// The machine has ended: the last message.
    Ended,
}

/// Stile's work for a request, without the time in which it waited for the machine's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Nanoseconds of the machine's counter.
    pub nanoseconds: u64,
    /// Instructions, if the emulator's counter counts them.
    pub instructions: Option<u64>,
}

/// Result of a step of a VM's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Number of the file's sections; `None` once it is complete.
    pub sections: Option<u32>,
    /// Pages that the step wrote.
    pub pages: u64,
    /// Pages of the blocks that it read.
    pub read: u64,
    /// Stile's work.
    pub work: Work,
}

/// Counts of a CPU during a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuCounts {
    /// The CPU.
    pub cpu: u16,
    /// Exits counted by the vectors.
    pub taken: u64,
    /// Records of exits that found no room.
    pub exits: u64,
    /// Other records that found no room.
    pub others: u64,
}

/// Meaning of a row of a vCPU's ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowName {
    /// The vCPU, as records have it.
    pub vcpu: u16,
    /// The row's number.
    pub row: u16,
    /// The reason.
    pub reason: String,
    /// The sub-reason.
    pub sub: String,
}

/// A machine, as `stile ps` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The process that runs it.
    pub pid: u32,
    /// Its architecture.
    pub arch: Arch,
    /// Seconds since it was started.
    pub seconds: u64,
    /// Its VMs, in the order of the configuration.
    pub vms: Vec<VmStatus>,
}

/// A VM, as `stile ps` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmStatus {
    /// Its name. The name of a VM inside another begins with that of the outer one, and a dot.
    pub name: String,
    /// Its state.
    pub state: State,
    /// The served device for which it has been waiting, if Stile has reported the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitsFor>,
}

/// A served device for which a VM waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsFor {
    /// The name of the VM that serves the device.
    pub server: String,
    /// The device's type, as in a configuration.
    pub device: String,
    /// The device's number among the client's served devices, from 1.
    pub number: u8,
}

/// Clocks of a VM that is restored: those that a pause stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// They advance by the time since the snapshot: the guest's time of day is right.
    #[default]
    Real,
    /// They continue where they were.
    Stopped,
}

/// A step of the copy of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyStep {
    /// Of a paused VM: finds what it accessed since the last one.
    Collect,
    /// Copies what the last one found, while the VM runs; the first time all.
    Round,
    /// Of a paused VM: copies its state and the rest.
    End,
}

/// The state of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It has not started.
    Waiting,
    /// It runs.
    Running,
    /// The operator paused it.
    Paused,
    /// It is off.
    Off,
    /// It crashed.
    Crashed,
    /// The VM was destroyed.
    Destroyed,
}

impl State {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Off => "off",
            Self::Crashed => "crashed",
            Self::Destroyed => "destroyed",
        }
    }
}

/// Bytes, as a JSON string with a character (U+0000 to U+00FF) for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.iter().copied().map(char::from).collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = text.chars().map(u8::try_from).collect::<Result<_, _>>();
        bytes.map(Self).map_err(|_| serde::de::Error::custom("a character above U+00FF"))
    }
}

/// Writes a message.
///
/// # Errors
/// The peer has disconnected.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads a message; `None` at the end.
///
/// # Errors
/// The line is too long, or no such message; reading fails.
pub fn read<T: Message>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    io::Read::take(&mut *from, T::LONGEST).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message without an end"));
    }
    serde_json::from_slice(&line).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::sample::{RowSample, VcpuSample, VmSample};
    use super::*;

    proptest! {
        #[test]
        fn bytes_survive(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let message = Reply::Attached { vm: "web".into(), scrollback: Bytes(bytes), bare: true };
            let mut line = Vec::new();
            write(&mut line, &message).unwrap();
            prop_assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1, "one line");
            prop_assert_eq!(read(&mut line.as_slice()).unwrap(), Some(message));
        }

        #[test]
        fn garbage_is_an_error_or_the_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read::<Request>(&mut bytes.as_slice());
        }
    }

    #[test]
    fn the_form_of_messages_is_stable() {
        let text = |message: &Request| serde_json::to_string(message).unwrap();
        assert_eq!(text(&Request::Hello { version: 1 }), r#"{"type":"hello","version":1}"#);
        let control = Request::Control { vm: "a.b".into(), action: Action::PowerButton };
        assert_eq!(text(&control), r#"{"type":"control","vm":"a.b","action":"power_button"}"#);
        assert_eq!(text(&Request::Input { bytes: Bytes(b"ls\r\xff".to_vec()) }), "{\"type\":\"input\",\"bytes\":\"ls\\r\u{ff}\"}");
        for wrong in [r#"{"type":"input","bytes":"\u0100"}"#, r#"{"type":"hello"}"#, r#"{"type":"attach","vm":null,"more":1}"#, "[]"] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_largest_sample_of_a_vm_is_read() {
        let row = |number: usize| RowSample {
            reason: "MSR, MRS or system instruction".into(),
            sub: format!("write of S3_7_C15_C15_{number}"),
            count: u64::MAX,
            ticks: u64::MAX,
            min: u64::MAX,
            max: u64::MAX,
        };
        let rows: Vec<_> = (0..stile_ledger::DYNAMIC_ROWS).map(row).collect();
        let vcpu = VcpuSample { now: u64::MAX, exits_taken: u64::MAX, ran: u64::MAX, waited: u64::MAX, rows };
        let vm = VmSample { name: "web".into(), vcpus: vec![vcpu; stile_board::MAX_VCPUS] };
        let message = Reply::Sample(Sample { counter_hz: 1000, vms: vec![vm], budgets: Vec::new() });
        let mut line = Vec::new();
        write(&mut line, &message).unwrap();
        assert!(line.len() > Request::LONGEST as usize);
        assert!(read(&mut line.as_slice()).unwrap() == Some(message));
    }

    #[test]
    fn a_line_that_does_not_end_is_not_read_forever() {
        let endless = vec![b' '; Request::LONGEST as usize + 10];
        assert!(read::<Request>(&mut endless.as_slice()).is_err());
        assert_eq!(read::<Request>(&mut [].as_slice()).unwrap(), None);
    }
}
