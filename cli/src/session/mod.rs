//! One run of the emulator, from start to exit status: consoles to the user, keys to the guests, messages to the account.

mod conclusion;
mod demux;
mod exits;
mod input;
mod keys;
mod line;
mod lines;
mod logs;
mod marks;
mod outcome;
mod tail;
mod terminal;
mod view;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGQUIT};
use stile_wire::{Channel, Command, Event, VmState};

pub use exits::{By, Exits, SAME_MEMORY, catalogue};
pub use keys::HELP as KEYS;
pub use tail::plain;

use crate::emulator::{Emulator, Machine};
use crate::initramfs::Marks;
use demux::Piece;
use input::{Input, Inputs};
use keys::{Action, Keys};
use line::{Leaf, Line, Vm};
use logs::Logs;
use marks::{Filter, Part, Show};
use outcome::{End, Fate};
use tail::Tail;
use view::View;

/// How many lines of a console are shown when a run ends badly.
const LAST_LINES: usize = 30;

/// The same of Stile's log, which has a backtrace in it if Stile panicked.
const LAST_LOG_LINES: usize = 100;

/// How long the emulator may take to end after Stile's last message.
const GRACE: Duration = Duration::from_secs(10);

/// How long after the last output an unfinished line is shown.
const IDLE: Duration = Duration::from_millis(100);

/// End of transmission: what a terminal sends for the end of input.
const EOT: u8 = 0x04;

/// What the small system of [`crate::initramfs`] in a VM does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// Its marks.
    pub marks: Marks,
    /// Whether it runs a command, whose output alone is shown.
    pub command: bool,
}

/// A VM, as the user sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// If Stile made its root file system.
    pub system: Option<System>,
    /// If it is a Stile: the VMs in that, at least one.
    pub inner: Vec<Guest>,
}

/// What to run, and what to show of it.
#[derive(Debug)]
pub struct Request {
    /// The emulated machine.
    pub machine: Machine,
    /// The image that it starts.
    pub image: PathBuf,
    /// The VMs in the image, at least one.
    pub guests: Vec<Guest>,
    /// Where to write logs.
    pub logs: Option<PathBuf>,
    /// After how long the run is over.
    pub timeout: Option<Duration>,
    /// Whether and how to show the ledger at the end.
    pub exits: Option<By>,
    /// Whether to keep Stile's log from the user.
    pub quiet: bool,
}

/// Runs the emulator until it ends or is to end, and returns the exit status.
///
/// # Errors
/// The emulator or the logs can't be started.
pub fn run(request: &Request) -> Result<u8> {
    let (lines, leaves) = Line::all(&request.guests, request.machine.arch());
    let names: Vec<String> = leaves.iter().map(|leaf| leaf.name.clone()).collect();
    // Where a command's output is all that matters, nobody types.
    let commands_only = leaves.iter().all(|leaf| leaf.guest.system.as_ref().is_some_and(|system| system.command));
    let logs = match &request.logs {
        Some(dir) => Logs::create(dir, names.iter().map(String::as_str), &command_line(request))?,
        None => Logs::default(),
    };
    // Declared first, so that it is restored last, whatever happens in between.
    let raw = terminal::Raw::enter(!commands_only)?;
    let view = if raw.is_some() {
        View::terminal(io::stdout(), io::stderr(), request.quiet)
    } else {
        View::plain(io::stdout(), io::stderr(), &names, request.quiet, terminal::notes_go_to_one())
    };
    let (emulator, pipes) = request.machine.start(&request.image)?;
    let inputs = Inputs::start(pipes, !commands_only || terminal::input_is_piped())?;
    let mut session = Session {
        consoles: leaves.iter().map(Console::new).collect(),
        lines,
        names,
        logs,
        view,
        keys: Keys::default(),
        waiting: Vec::new(),
        waiting_end: false,
        errors: Vec::new(),
        last_error: String::new(),
        inputs,
        emulator,
        interactive: raw.is_some(),
    };
    if session.interactive {
        session.view.note(&format!("{KEYS}\n"));
    }
    let end = session.follow(request.timeout);
    session.emulator.kill();
    let status = session.conclude(&end, request.exits, request.quiet);
    drop(session);
    drop(raw);
    Ok(status)
}

fn command_line(request: &Request) -> String {
    request.machine.command_line(&request.image)
}

/// One VM's console.
struct Console {
    /// The index of the line that has it, and the VM's number there.
    line: usize,
    vm: u8,
    system: Option<System>,
    /// Takes the system's marks out.
    filter: Option<Filter>,
    tail: Tail,
}

impl Console {
    fn new(leaf: &Leaf<'_>) -> Self {
        let (line, vm, system) = (leaf.line, leaf.vm, leaf.guest.system.clone());
        let mut console = Self { line, vm, system, filter: None, tail: Tail::default() };
        console.start();
        console
    }

    /// The VM starts, for the first time or again.
    fn start(&mut self) {
        self.filter =
            self.system.as_ref().map(|system| Filter::new(system.marks.clone(), if system.command { Show::Command } else { Show::All }));
    }

    fn has_shell(&self) -> bool {
        self.system.as_ref().is_some_and(|system| !system.command)
    }

    fn has_command(&self) -> bool {
        self.system.as_ref().is_some_and(|system| system.command)
    }

    /// Whether input reaches the one who reads it: a system that is starting would lose it.
    fn is_ready(&self) -> bool {
        self.filter.as_ref().is_none_or(Filter::has_begun)
    }
}

struct Session<'a> {
    /// The machine's line, and those of Stiles in its VMs.
    lines: Vec<Line>,
    /// Of the consoles' VMs.
    names: Vec<String>,
    consoles: Vec<Console>,
    logs: Logs,
    view: View<'a>,
    keys: Keys,
    /// Piped input that came before the guest was ready for it.
    waiting: Vec<u8>,
    /// Whether the end of piped input came, too.
    waiting_end: bool,
    /// What the emulator said on its standard error and is not shown yet: no whole line.
    errors: Vec<u8>,
    /// The last line that it said there.
    last_error: String,
    inputs: Inputs,
    emulator: Emulator,
    interactive: bool,
}

impl Session<'_> {
    /// Follows the run to its end.
    fn follow(&mut self, timeout: Option<Duration>) -> End {
        let start = Instant::now();
        let deadline = timeout.map(|timeout| start + timeout);
        // After Stile's last message the emulator ends by itself; if it doesn't, it is ended.
        let mut grace: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if let (Some(limit), Some(deadline)) = (timeout, deadline)
                && now >= deadline
            {
                return End::Timeout(limit);
            }
            if grace.is_some_and(|until| now >= until) {
                return End::Emulator(None);
            }
            let story = &self.lines[0].story;
            if grace.is_none() && (story.end.is_some() || story.panic.is_some()) {
                grace = Some(now + GRACE);
            }
            let idle = self.view.has_partial().then(|| now + IDLE);
            let until = [deadline, grace, idle].into_iter().flatten().min();
            let wait = until.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(now));
            let step = match self.inputs.inputs.recv_timeout(wait) {
                Ok(input) => self.take(input),
                Err(_) => self.view.idle().map(|()| None),
            };
            match step {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                // Nobody reads what we write any more.
                Err(_) => return End::Left,
            }
        }
    }

    fn take(&mut self, input: Input) -> io::Result<Option<End>> {
        match input {
            Input::Line(bytes) => self.feed(0, &bytes)?,
            Input::LineEnd => return Ok(Some(self.emulator_end())),
            Input::Errors(bytes) => self.errors(&bytes),
            Input::Keyboard(bytes) if self.interactive => return self.keys(&bytes),
            Input::Keyboard(bytes) => {
                self.waiting.extend(bytes);
                self.pass_on();
            }
            Input::KeyboardEnd => {
                self.waiting_end = true;
                self.pass_on();
            }
            Input::Signal(SIGINT) => return Ok(Some(End::Left)),
            Input::Signal(SIGQUIT) => self.command(&Command::Panic),
            Input::Signal(_) => return Ok(Some(End::Terminated)),
        }
        Ok(None)
    }

    /// What the emulator itself says: shown line by line.
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

    /// Bytes of a line.
    fn feed(&mut self, line: usize, bytes: &[u8]) -> io::Result<()> {
        for piece in self.lines[line].demux.feed(bytes) {
            self.piece(line, piece)?;
        }
        Ok(())
    }

    fn piece(&mut self, line: usize, piece: Piece) -> io::Result<()> {
        match piece {
            Piece::Text(Channel::LOG, text) => {
                self.lines[line].log.push(&text);
                let shown = self.lines[line].shown_log(&text);
                self.logs.stile(&shown);
                self.view.log(&shown);
            }
            Piece::Text(channel, text) => match channel.vm().and_then(|vm| self.lines[line].vms.get(usize::from(vm)).copied()) {
                Some(Vm::Console(console)) => self.console(console, &text)?,
                Some(Vm::Stile(inner)) => self.feed(inner, &text)?,
                None => {}
            },
            Piece::Event(event) => self.event(line, &event)?,
            Piece::Bad(error) => self.logs.stile(format!("[a message was lost: {error}]\n").as_bytes()),
        }
        Ok(())
    }

    fn console(&mut self, vm: usize, text: &[u8]) -> io::Result<()> {
        let Some(console) = self.consoles.get_mut(vm) else { return Ok(()) };
        let was_ready = console.is_ready();
        let parts = match &mut console.filter {
            Some(filter) => filter.feed(text),
            None => vec![Part::Shown(text.to_vec())],
        };
        let became_ready = !was_ready && console.is_ready();
        self.show(vm, parts)?;
        if became_ready {
            self.pass_on();
        }
        Ok(())
    }

    fn show(&mut self, vm: usize, parts: Vec<Part>) -> io::Result<()> {
        for part in parts {
            let (Part::Shown(text) | Part::Hidden(text)) = &part;
            self.logs.console(vm, text);
            self.consoles[vm].tail.push(text);
            if let Part::Shown(text) = &part {
                self.view.console(vm, text)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, line: usize, event: &Event) -> io::Result<()> {
        self.logs.event(&self.lines[line].name, event);
        self.lines[line].exits.take(event);
        let Some(vm) = self.lines[line].story.tell(event) else { return Ok(()) };
        let resets = matches!(event, Event::Vm { state: VmState::Reset, .. });
        let console = match self.lines[line].vms[vm] {
            Vm::Console(console) => console,
            Vm::Stile(inner) if resets => {
                self.lines[inner].restart();
                self.consoles.iter_mut().filter(|console| console.line == inner).for_each(Console::start);
                return Ok(());
            }
            Vm::Stile(_) => return Ok(()),
        };
        if resets {
            self.consoles[console].start();
        }
        let over = self.fate(console) != Fate::Running;
        if over && self.interactive && self.names.len() > 1 {
            self.view.note(&format!("{} is off", self.names[console]));
            if console == self.view.focus()
                && let Some(next) = (0..self.consoles.len()).find(|&console| self.fate(console) == Fate::Running)
            {
                self.view.switch(next, &self.names, &self.consoles[next].tail)?;
            }
        }
        Ok(())
    }

    /// What became of a console's VM.
    fn fate(&self, console: usize) -> Fate {
        let Console { line, vm, .. } = self.consoles[console];
        self.lines[line].story.fates[usize::from(vm)]
    }

    fn keys(&mut self, bytes: &[u8]) -> io::Result<Option<End>> {
        let count = self.names.len();
        for action in self.keys.feed(bytes) {
            let focus = self.view.focus();
            let to = match action {
                Action::Leave => return Ok(Some(End::Left)),
                Action::Send(bytes) => {
                    self.send(focus, &bytes);
                    continue;
                }
                Action::List => {
                    self.list();
                    continue;
                }
                Action::Next => (focus + 1) % count,
                Action::Previous => (focus + count - 1) % count,
                Action::Show(vm) => vm,
            };
            if let Some(console) = self.consoles.get(to) {
                self.view.switch(to, &self.names, &console.tail)?;
            }
        }
        Ok(None)
    }

    fn list(&mut self) {
        let mut text = String::new();
        for (vm, name) in self.names.iter().enumerate() {
            let shown = if vm == self.view.focus() { '*' } else { ' ' };
            let fate = match self.fate(vm) {
                Fate::Waiting => "has not started",
                Fate::Running => "runs",
                Fate::Off | Fate::Exited(_) => "is off",
                Fate::Crashed(_) => "crashed",
            };
            text += &format!("{shown} {} {name} {fate}\n", vm + 1);
        }
        // The guest's cursor is somewhere in a line.
        self.view.text("\n");
        self.view.note(&text);
        self.view.note(KEYS);
    }

    /// Gives piped input to the first VM when it is ready for it.
    fn pass_on(&mut self) {
        let Some(console) = self.consoles.first() else { return };
        if !console.is_ready() {
            return;
        }
        let shell = console.has_shell();
        let bytes = std::mem::take(&mut self.waiting);
        self.send(0, &bytes);
        // A shell ends at the end of its input, as it would in a pipe; other guests are not told.
        if std::mem::take(&mut self.waiting_end) && shell {
            self.send(0, &[EOT]);
        }
    }

    fn send(&mut self, console: usize, bytes: &[u8]) {
        let Some(&Console { line, vm, .. }) = self.consoles.get(console) else { return };
        if bytes.is_empty() {
            return;
        }
        let line = line::to_console(&mut self.lines, line, vm, bytes);
        // It fails only when the emulator is gone, which the closed line tells, too.
        let _ = self.inputs.line.send(line);
    }

    fn command(&mut self, command: &Command) {
        let line = line::command(&mut self.lines, command);
        // As in `send`.
        let _ = self.inputs.line.send(line);
    }

    /// The line is closed: reaps the emulator.
    fn emulator_end(&mut self) -> End {
        // What it said last may still be on the way.
        while let Ok(input) = self.inputs.inputs.recv_timeout(IDLE) {
            if let Input::Errors(bytes) = input {
                self.errors(&bytes);
            }
        }
        if !self.errors.is_empty() {
            self.errors(b"\n");
        }
        match self.emulator.wait(GRACE) {
            Some(status) if self.emulator.is_success(status) => End::Emulator(None),
            Some(status) if self.last_error.is_empty() => End::Emulator(Some(status.to_string())),
            Some(_) => End::Emulator(Some(std::mem::take(&mut self.last_error))),
            None => End::Emulator(Some("it closed its serial line but does not end".into())),
        }
    }
}
