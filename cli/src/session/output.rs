//! Output of the lines: text to the user and to the logs, messages to the account.

use std::io;
use std::time::Instant;

use stile_wire::{Channel, Event, VmState};

use super::clients::state_of;
use super::console::Console;
use super::demux::Piece;
use super::line::Vm;
use super::marks::Part;
use super::outcome::{Fate, Story, times};
use super::{Asked, Session};

impl Session<'_> {
    /// Bytes of a line.
    pub(super) fn feed(&mut self, line: usize, bytes: &[u8]) -> io::Result<()> {
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
                None => self.unknown(line, channel),
            },
            Piece::Event(event) => self.event(line, &event)?,
            Piece::Bad(error) => self.logs.stile(format!("[a message was lost: {error}]\n").as_bytes()),
        }
        Ok(())
    }

    /// Notes, once until Stile restarts, that a console is not shown: the configuration of `stile connect` is not the board's.
    fn unknown(&mut self, line: usize, channel: Channel) {
        if let Some(vm) = channel.vm().filter(|&vm| self.lines[line].unknown.insert(vm)) {
            self.view.note(&format!("the configuration has no VM with the number {vm}, whose console is not shown"));
        }
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
        self.fit(vm);
        Ok(())
    }

    /// Processes parts of a VM's output, and shows some of them.
    pub(super) fn show(&mut self, vm: usize, parts: Vec<Part>) -> io::Result<()> {
        for part in parts {
            let (Part::Shown(text) | Part::Hidden(text)) = &part;
            self.logs.console(vm, text);
            self.consoles[vm].tail.push(text);
            match &part {
                Part::Shown(text) => {
                    if let Some(control) = &mut self.control {
                        control.output(vm, text);
                    }
                    self.view.console(vm, text, self.consoles[vm].has_command())?;
                }
                Part::Hidden(_) if !self.consoles[vm].is_ready() => {
                    let line = self.consoles[vm].tail.lines(1).pop().unwrap_or_default();
                    self.view.status(&format!("{} boots: {line}", self.names[vm]));
                }
                Part::Hidden(_) => {}
            }
        }
        Ok(())
    }

    fn event(&mut self, line: usize, event: &Event) -> io::Result<()> {
        if line == 0 {
            let step = self.sampler.take(event, &self.lines[0].exits, Instant::now());
            self.sampled(step);
            self.take_for_trace(event);
        }
        if is_of_watching(event) {
            // They are many, and not of the run.
            self.transferred(line, event);
            return Ok(());
        }
        if self.lines[line].story.knows(event) {
            return Ok(());
        }
        self.logs.event(&self.lines[line].name, event, &self.lines[line].exits);
        self.lines[line].exits.take(event);
        if matches!(event, Event::LedgerEnd) && line == 0 && self.asked == Asked::Account {
            self.asked = Asked::Answered;
        }
        if matches!(event, Event::Hello { .. }) && line == 0 && self.emulator.is_none() {
            // The board was reset.
            self.lines[0].story = Story::of(self.lines[0].vms.len());
            self.lines[0].unknown.clear();
        }
        if self.transferred(line, event) {
            return Ok(());
        }
        if let Event::Answer { tag, answer } = *event
            && !self.created(line, tag)
            && !self.abandoned(line, tag)
        {
            self.answered(line, tag, answer);
        }
        match *event {
            Event::Uploaded { tag, next } => self.uploaded(line, tag, next),
            Event::Refused { tag, why } => self.not_created(line, tag, why.bytes()),
            _ => {}
        }
        let was_over: Vec<bool> = self.lines[line].story.fates.iter().map(|fate| fate.is_over()).collect();
        let Some(vm) = self.lines[line].story.tell(event) else { return Ok(()) };
        let name = match self.lines[line].vms[vm] {
            Vm::Console(console) => &self.names[console],
            Vm::Stile(inner) => &self.lines[inner].name,
        };
        if let Event::Vm { state: VmState::Restarted(count), .. } = *event
            && count.is_power_of_two()
        {
            // Ever more rarely: a VM may reset in a loop.
            self.view.note(&format!("{name} was reset {}", times(count)));
        }
        if let Some(control) = &mut self.control {
            control.state(name, state_of(self.lines[line].story.fates[vm]));
        }
        if let Event::Vm { state, .. } = *event {
            let (name, fate) = (name.clone(), self.lines[line].story.fates[vm]);
            self.held_changed(&name, fate, matches!(state, VmState::Restarted(_)));
            self.remove_unwanted(&name, fate);
        }
        if matches!(event, Event::Vm { state: VmState::Destroyed, .. }) {
            return self.destroyed(line, vm);
        }
        let resets = match event {
            Event::Vm { state: VmState::Restarted(_), .. } => true,
            Event::Vm { state: VmState::Started, .. } => was_over[vm],
            _ => false,
        };
        let console = match self.lines[line].vms[vm] {
            Vm::Console(console) => console,
            Vm::Stile(inner) if resets => {
                self.lines[inner].restart();
                for (index, console) in self.consoles.iter_mut().enumerate().filter(|(_, console)| console.line == inner) {
                    console.start();
                    self.view.end_line(index)?;
                }
                return Ok(());
            }
            Vm::Stile(_) => return Ok(()),
        };
        if resets {
            self.consoles[console].start();
        }
        if matches!(event, Event::Vm { state: VmState::Started, .. }) && self.consoles[console].has_command() {
            // A quiet kernel prints nothing until the command runs.
            self.view.status(&format!("{} boots; its command's output follows", self.names[console]));
        }
        let over = self.fate(console).is_over();
        if over || resets {
            self.view.end_line(console)?;
        }
        if over && self.interactive && self.names.len() > 1 {
            self.view.note(&format!("{} is off", self.names[console]));
            if console == self.view.focus()
                && let Some(next) = (0..self.consoles.len()).find(|&console| self.fate(console) == Fate::Running)
            {
                let console = &self.consoles[next];
                self.view.switch(next, &self.names, &console.tail, console.has_command())?;
            }
        }
        Ok(())
    }

    /// Removes a destroyed VM, with the consoles of its nested VMs.
    fn destroyed(&mut self, line: usize, vm: usize) -> io::Result<()> {
        let inner = match self.lines[line].vms[vm] {
            Vm::Console(_) => None,
            Vm::Stile(inner) => Some(inner),
        };
        if let Some(inner) = inner {
            self.budgets.remove(&self.lines[inner].name);
            self.lines[inner].name.clear();
        }
        for index in 0..self.consoles.len() {
            let console = &mut self.consoles[index];
            let is_in = if let Some(inner) = inner { console.line == inner } else { (console.line, usize::from(console.vm)) == (line, vm) };
            if is_in && !console.gone {
                console.gone = true;
                self.budgets.remove(&self.names[index]);
                self.packages.remove(&self.names[index]);
                self.names[index].clear();
                self.view.end_line(index)?;
                if let Some(control) = &mut self.control {
                    control.detach(index);
                }
            }
        }
        Ok(())
    }

    /// The fate of a console's VM.
    pub(super) fn fate(&self, console: usize) -> Fate {
        let Console { line, vm, gone, .. } = self.consoles[console];
        if gone {
            return Fate::Destroyed;
        }
        self.lines[line].story.fates[usize::from(vm)]
    }
}

/// Whether a message is part of a sample or a trace.
const fn is_of_watching(event: &Event) -> bool {
    matches!(
        event,
        Event::Sample(_)
            | Event::NoSample { .. }
            | Event::SampleRow(_)
            | Event::SampleRows { .. }
            | Event::TraceStarted { .. }
            | Event::TraceRecords { .. }
            | Event::TraceCpu { .. }
            | Event::TraceFetched { .. }
            | Event::TraceRow { .. }
            | Event::Window { .. }
            | Event::Saved { .. }
            | Event::Restored { .. }
    )
}
