//! One run of the emulator, from start to exit status: consoles to the user, keys to the guests, messages to the account.

mod abandon;
mod abandonment;
mod budgets;
mod clients;
mod conclusion;
mod console;
mod control;
mod copying;
mod create;
mod demux;
mod exits;
mod grace;
mod hold;
mod holds;
mod input;
mod keys;
mod last_errors;
mod leaving;
mod line;
mod lines;
mod logs;
mod marks;
mod next;
mod outcome;
mod output;
mod sampler;
mod sent;
mod snapshots;
mod tail;
mod terminal;
mod tracer;
mod tracing;
mod transfer;
mod typing;
mod upload;
mod view;
mod waiting;
mod watch;
mod watching;
mod work;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGWINCH};
use signal_hook::iterator::Signals;
use stile_wire::Command;

pub use crate::guest::{Guest, System};
pub use exits::{Exits, SAME_MEMORY, Shown, catalogue};
pub use input::catch_signals;
pub use keys::{ATTACH_TABLE, Action, HELP as KEYS, Keys, TABLE as KEY_TABLE};
pub use sampler::{Sampler, Step as SamplerStep};
pub use tail::plain;
pub use terminal::{Raw, with_returns};
pub use tracer::records;

use crate::config::Arch;
use crate::control::directory::{Claim, Directory};
use crate::control::protocol;
use crate::control::server::{self, ClientId};
use crate::disk::errors::DiskErrors;
use crate::emulator::{Counting, Emulator, Machine, MachineMemory, Pipes, SharedMemory};
use crate::out::{self, Unwritable};
use crate::serial::Serial;
use abandonment::Abandonment;
use budgets::Budgets;
use clients::Control;
use console::Console;
use grace::Grace;
use hold::Hold;
use input::{Input, Inputs, Keyboard};
use last_errors::{ErrorSource, LastErrors};
use leaving::Leaving;
use line::Line;
use logs::Logs;
use outcome::End;
use tracer::Tracer;
use transfer::Transfer;
use upload::Upload;
use view::View;

/// Number of lines of a console shown when a run fails.
const LAST_LINES: usize = 30;

/// Number of lines of Stile's log shown then; it contains a backtrace if Stile panicked.
const LAST_LOG_LINES: usize = 100;

/// Time limit for the emulator to end after the end of its serial line.
const GRACE: Duration = Duration::from_secs(10);

/// Time limits for Stile to report its accounts and to end its VMs: without a byte of it, and in all. An emulator on a busy machine is slow.
const SILENCE: Duration = Duration::from_secs(20);
const ACCOUNT: Duration = Duration::from_secs(120);

/// Interval at which the state of a VM is looked at whose pause ends with a client that is gone.
const HOLD: Duration = Duration::from_secs(1);

/// Delay after the last output before a prompt is shown.
const IDLE: Duration = Duration::from_millis(100);

/// The machine.
#[derive(Debug)]
pub enum Source {
    /// An emulated one, and the image that it starts.
    Emulator {
        /// The machine.
        machine: Machine,
        /// The image's file.
        image: PathBuf,
        /// Its RAM, if this process has access to it.
        memory: Option<SharedMemory>,
    },
    /// A board at a serial line, which starts and ends without this command.
    Serial {
        /// The line.
        serial: Serial,
        /// Its device.
        name: String,
    },
}

impl Source {
    /// The command that starts the machine by hand, or the board's device.
    fn describe(&self) -> String {
        match self {
            Self::Emulator { machine, image, .. } => machine.command_line(image),
            Self::Serial { name, .. } => name.clone(),
        }
    }

    /// Unit of the machine's counter.
    const fn counting(&self) -> Counting {
        match self {
            Self::Emulator { machine, .. } => machine.counting(),
            Self::Serial { .. } => Counting::Time,
        }
    }

    /// The file of the image that it starts.
    fn image(&self) -> Option<PathBuf> {
        match self {
            Self::Emulator { image, .. } => Some(image.clone()),
            Self::Serial { .. } => None,
        }
    }

    /// Takes the machine's RAM, if this process has access to it. Only clients of the control socket need it.
    fn take_memory(&mut self, emulator: Option<&Emulator>) -> Option<MachineMemory> {
        let Self::Emulator { machine, memory, .. } = self else { return None };
        match memory.take() {
            Some(memory) => Some(MachineMemory::Shared(memory)),
            None => machine.memory_of(emulator?).map(MachineMemory::Process),
        }
    }

    /// Starts the emulator, if any, and returns the line's ends.
    fn start(&self) -> Result<(Option<Emulator>, Pipes)> {
        match self {
            Self::Emulator { machine, image, memory } => {
                machine.start_with(image, memory.as_ref()).map(|(emulator, pipes)| (Some(emulator), pipes))
            }
            Self::Serial { serial, .. } => Ok((None, serial.pipes()?)),
        }
    }
}

/// The machine to run, and the output to show.
#[derive(Debug)]
pub struct Request {
    /// The machine.
    pub source: Source,
    /// Its architecture.
    pub arch: Arch,
    /// The VMs in the image, at least one.
    pub guests: Vec<Guest>,
    /// Folder for logs.
    pub logs: Option<PathBuf>,
    /// The time limit of the run.
    pub timeout: Option<Duration>,
    /// The presentation of the ledger at the end, if any.
    pub exits: Option<Shown>,
    /// Whether to suppress Stile's log.
    pub quiet: bool,
    /// Nobody types: the machine is reached over its control socket only.
    pub detached: bool,
    /// The control socket, if there is one.
    pub claim: Option<Claim>,
    /// The connection by which the emulator reports errors of disks, if it has any disks.
    pub disk_errors: Option<DiskErrors>,
}

/// Makes the machine's control socket. Without a name, a machine that can't have one runs without, and says so.
///
/// # Errors
/// The name is taken, or the directory of sockets can't be used.
pub fn claim(name: Option<&str>) -> Result<Option<Claim>> {
    match Directory::open().and_then(|directory| directory.claim(name)) {
        Ok(claim) => Ok(Some(claim)),
        Err(error) if name.is_some() => Err(error),
        Err(error) => {
            out::note(format_args!("stile: this machine can't be reached from other terminals: {error:#}"));
            Ok(None)
        }
    }
}

/// Follows the machine until it ends or the user leaves, and returns the exit status. `signals` are from
/// [`catch_signals`].
///
/// # Errors
/// The emulator or the logs can't be started.
pub fn run(mut request: Request, signals: Signals) -> Result<u8> {
    let (lines, leaves) = Line::all(&request.guests, request.arch);
    let names: Vec<String> = leaves.iter().map(|leaf| leaf.name.clone()).collect();
    // With `--exec`, standard input is not forwarded.
    let commands_only = leaves.iter().all(|leaf| leaf.guest.system.as_ref().is_some_and(|system| system.command));
    let logs = match &request.logs {
        Some(dir) => Logs::create(dir, names.iter().map(String::as_str), &request.source.describe())?,
        None => Logs::default(),
    };
    // Declared first, so that it is restored last in every case.
    let raw = terminal::Raw::enter(!commands_only)?;
    let view = if raw.is_some() {
        View::terminal(io::stdout(), io::stderr(), request.quiet)
    } else {
        let view = View::plain(io::stdout(), io::stderr(), &names, request.quiet, terminal::stderr_is_terminal());
        let view = view.sharing(terminal::streams_are_one() && !terminal::stderr_is_terminal());
        if commands_only || terminal::input_is_piped() { view } else { view.with_prompts() }
    };
    let (emulator, pipes) = request.source.start()?;
    let keyboard = match raw {
        Some(_) => Keyboard::Typed,
        None if request.detached || (commands_only && !terminal::input_is_piped()) => Keyboard::Ignored,
        None => Keyboard::Piped,
    };
    let inputs = Inputs::start(signals, pipes, keyboard);
    // One is the emulator's standard error.
    let error_sources = 1 + usize::from(request.disk_errors.is_some());
    if let Some(errors) = request.disk_errors {
        let source = ErrorSource(inputs.reporter());
        errors.watch(move |line| source.report(&line))?;
    }
    let control = match request.claim {
        Some(claim) => {
            let report = inputs.reporter();
            server::serve(&claim, move |message| report.send(Input::Client(message)).is_ok())?;
            Some(Control::new(claim, request.arch))
        }
        None => None,
    };
    let mut session = Session {
        consoles: leaves.iter().map(Console::new).collect(),
        lines,
        names,
        control,
        sampler: Sampler::default(),
        tracer: Tracer::default(),
        budgets: Budgets::new(&request.guests),
        accounts: request.exits.is_some(),
        heard: false,
        leaving: Vec::new(),
        holds: Vec::new(),
        unwanted: Vec::new(),
        upload: None,
        abandonment: None,
        postponed: Vec::new(),
        transfer: None,
        packages: BTreeMap::new(),
        counting: request.source.counting(),
        image: request.source.image(),
        memory: request.source.take_memory(emulator.as_ref()),
        logs,
        view,
        keys: Keys::default(),
        waiting: Vec::new(),
        waiting_end: false,
        errors: Vec::new(),
        last_error: String::new(),
        error_sources,
        inputs,
        emulator,
        asked: Asked::Nothing,
        interactive: raw.is_some(),
    };
    if session.emulator.is_none() {
        // The board ignores previous connections.
        session.lines[0].restart();
    }
    if session.interactive {
        session.view.note(&format!("{KEYS}\n"));
        if let Some(control) = &session.control {
            let name = control.name();
            session.view.note(&format!("this machine is called {name}: `stile attach {name}` shows it in another terminal\n"));
        }
    }
    let end = session.follow(request.timeout);
    if request.exits.is_some() && !matches!(end, End::Emulator(_)) {
        // Stile reports its accounts before it ends its VMs on request. A second signal ends the run immediately. A board continues
        // to run.
        let ask = if session.emulator.is_some() { Command::Shutdown } else { Command::Ledger };
        session.asked = Asked::Account;
        session.command(&ask);
        session.follow_account();
    }
    if let Some(emulator) = &mut session.emulator {
        emulator.kill();
    }
    let status = session.conclude(&end, request.exits, request.quiet);
    drop(session);
    drop(raw);
    Ok(status)
}

/// Requests to a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Account,
    /// The response has arrived.
    Answered,
}

struct Session<'a> {
    /// The machine's line, and those of Stiles in its VMs.
    lines: Vec<Line>,
    /// Of the consoles' VMs.
    names: Vec<String>,
    /// Clients of the control socket.
    control: Option<Control>,
    /// The live ledger for them.
    sampler: Sampler,
    /// The trace for one of them.
    tracer: Tracer,
    /// The VMs' budgets.
    budgets: Budgets,
    /// Whether accounts are shown at the end.
    accounts: bool,
    /// Whether the machine has sent anything since this was last cleared.
    heard: bool,
    /// VMs with a pending destruction.
    leaving: Vec<Leaving>,
    /// Pauses that end with their clients.
    holds: Vec<Hold>,
    /// VMs that were being restored when their clients disconnected: they are turned off and destroyed.
    unwanted: Vec<(ClientId, String)>,
    /// The VM that is being created.
    upload: Option<Upload>,
    /// The upload whose client disconnected and that Stile has not dropped yet.
    abandonment: Option<Abandonment>,
    /// Requests for transfers that wait for the end of an abandoned one.
    postponed: Vec<(ClientId, protocol::Request)>,
    /// The VM that is being saved or restored.
    transfer: Option<Transfer>,
    /// Packages of VMs that were created, by name.
    packages: BTreeMap<String, Vec<u8>>,
    /// The machine's RAM, if this process has access to it.
    memory: Option<MachineMemory>,
    /// Unit of the machine's counter.
    counting: Counting,
    /// The file that the machine was started with.
    image: Option<PathBuf>,
    consoles: Vec<Console>,
    logs: Logs,
    view: View<'a>,
    keys: Keys,
    /// Piped input received before the guest was ready.
    waiting: Vec<u8>,
    /// Whether the end of the piped input was reached.
    waiting_end: bool,
    /// Output of the emulator on its standard error that is not shown yet: an unfinished line.
    errors: Vec<u8>,
    /// The last line of that output.
    last_error: String,
    /// Number of sources of such output that have not ended.
    error_sources: usize,
    inputs: Inputs,
    /// `None` for a board.
    emulator: Option<Emulator>,
    /// Whether a board was asked for its account, and has responded.
    asked: Asked,
    interactive: bool,
}

impl Session<'_> {
    /// Follows the run to its end.
    fn follow(&mut self, timeout: Option<Duration>) -> End {
        let start = Instant::now();
        let deadline = timeout.map(|timeout| start + timeout);
        // After Stile's last message the emulator exits itself, or is killed.
        let mut grace = Grace::default();
        loop {
            let now = Instant::now();
            if let (Some(limit), Some(deadline)) = (timeout, deadline)
                && now >= deadline
            {
                return End::Timeout(limit);
            }
            if grace.until().is_some_and(|until| now >= until) {
                return End::Emulator(None);
            }
            let story = &self.lines[0].story;
            if self.emulator.is_none() && (story.end.is_some() || self.asked == Asked::Answered) {
                return End::Emulator(None);
            }
            if story.end.is_some() || story.panic.is_some() {
                grace.begin(now);
            }
            let idle = self.view.has_prompt().then(|| now + IDLE);
            let retry_at = self.upload.as_ref().map(|upload| upload.retry_at);
            let abandon_at = self.abandonment.as_ref().map(|abandonment| abandonment.retry_at);
            let watch_at = self.budgets_due(now);
            let trace_at = self.tracer.due();
            let control_at = self.control.as_mut().and_then(|control| control.waiting().repeat_at());
            let hold_at = self.holds.iter().any(|hold| hold.client.is_none()).then(|| now + HOLD);
            let repeats = [control_at, hold_at, self.sampler.retry_at(), retry_at, abandon_at];
            let until = [deadline, grace.until(), idle, watch_at, trace_at].into_iter().chain(repeats).flatten().min();
            let wait = until.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(now));
            if let Some(news) = self.logs.take_news() {
                self.view.note(&news);
            }
            let again = self.sampler.retry(Instant::now());
            self.sampled(again);
            self.control_again();
            self.upload_again();
            self.abandon_again();
            self.look_at_trace();
            self.watch_budgets(Instant::now());
            self.inputs.took(0, self.waiting.len());
            let step = match self.inputs.inputs.recv_timeout(wait) {
                Ok(input) => {
                    if matches!(input, Input::Line(_)) {
                        grace.heard(Instant::now());
                    }
                    self.take(input)
                }
                Err(_) => self.view.idle().map(|()| None),
            };
            match step {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(error) => return End::Unwritable(Unwritable(error)),
            }
        }
    }

    /// Follows the run for as long as the accounts arrive that Stile was asked for. A signal ends it.
    fn follow_account(&mut self) {
        let end = Instant::now() + ACCOUNT;
        loop {
            self.heard = false;
            match self.follow(Some(SILENCE)) {
                End::Timeout(_) if self.heard && Instant::now() < end => {}
                _ => return,
            }
        }
    }

    fn take(&mut self, input: Input) -> io::Result<Option<End>> {
        match input {
            Input::Line(bytes) => {
                self.heard = true;
                self.feed(0, &bytes)?;
            }
            Input::LineEnd => return Ok(Some(self.emulator_end())),
            Input::Errors(bytes) => self.errors(&bytes),
            Input::ErrorsEnd => self.error_sources -= 1,
            Input::Keyboard(bytes) if self.interactive => return self.keys(&bytes),
            Input::Keyboard(bytes) => {
                let count = bytes.len();
                self.waiting.extend(bytes);
                self.pass_on();
                self.inputs.took(count, self.waiting.len());
            }
            Input::KeyboardEnd => {
                self.waiting_end = true;
                self.pass_on();
            }
            Input::Signal(SIGINT) => return Ok(Some(End::Left)),
            Input::Signal(SIGWINCH) => (0..self.consoles.len()).for_each(|console| self.fit(console)),
            Input::Signal(SIGQUIT) => self.command(&Command::Panic),
            Input::Signal(_) => return Ok(Some(End::Terminated)),
            Input::Client(message) => self.client(message),
        }
        Ok(None)
    }

    /// The emulator's own output, shown line by line.
    fn errors(&mut self, bytes: &[u8]) {
        self.logs.emulator(bytes);
        self.errors.extend_from_slice(bytes);
        while let Some(end) = self.errors.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.errors.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.view.text(&line);
            self.last_error = line;
        }
    }

    /// Reaps the emulator after its line was closed.
    fn emulator_end(&mut self) -> End {
        // Its last output may still be in flight, for long on a busy host.
        let mut last = LastErrors::new(self.error_sources, Instant::now() + GRACE);
        while let Some(bytes) = last.next(&self.inputs.inputs) {
            self.errors(&bytes);
        }
        self.error_sources = last.open;
        if !self.errors.is_empty() {
            self.errors(b"\n");
        }
        let Some(emulator) = &mut self.emulator else { return End::Disconnected };
        match emulator.wait(last.until.saturating_duration_since(Instant::now())) {
            Some(status) if emulator.is_success(status) => End::Emulator(None),
            Some(status) if self.last_error.is_empty() => End::Emulator(Some(status.to_string())),
            Some(_) => End::Emulator(Some(std::mem::take(&mut self.last_error))),
            None => End::Emulator(Some("it closed its serial line but does not end".into())),
        }
    }
}
