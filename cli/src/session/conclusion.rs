//! The end of a run: summary and exit status.

use super::exits::Shown;
use super::line::{Line, Vm};
use super::marks::Filter;
use super::outcome::{self, End, Exec, Fate};
use super::{LAST_LINES, LAST_LOG_LINES, Session};
use crate::exit;
use crate::out::Unwritable;

impl Session<'_> {
    /// Reports the end of the run, and returns the exit status.
    pub(super) fn conclude(&mut self, end: &End, exits: Option<Shown>, quiet: bool) -> u8 {
        if let Some(control) = &mut self.control {
            control.end();
        }
        let mut rest = Ok(());
        for vm in 0..self.consoles.len() {
            let parts = self.consoles[vm].filter.as_mut().map(Filter::finish).unwrap_or_default();
            rest = rest.and(self.show(vm, parts));
        }
        rest = rest.and(self.view.finish());
        let unwritable = rest.err().map(|error| End::Unwritable(Unwritable(error)));
        let end = match (&unwritable, end) {
            (Some(unwritable), End::Emulator(_)) => unwritable,
            _ => end,
        };
        let (status, message) = self.judge(end);
        if let Some(message) = message {
            let unfinished = (0..self.lines.len()).any(|line| self.commands(line) == Exec::Unfinished);
            // The user ended the run, or reads no output: no summary.
            let ended_outside = matches!(end, End::Left | End::Terminated | End::Unwritable(_));
            let unseen = !ended_outside && (unfinished || !matches!(end, End::Emulator(_)));
            if unseen {
                self.last_lines();
            }
            if quiet && status == exit::HYPERVISOR {
                let logs: Vec<_> = self.lines.iter().flat_map(|line| line.log.lines(LAST_LOG_LINES)).collect();
                self.view.text(&logs.join("\n"));
            }
            self.view.note(&message);
        }
        if let Some(shown) = exits {
            for line in 0..self.lines.len() {
                self.show_exits(line, shown);
            }
        }
        // Incomplete logs must not be mistaken for complete ones.
        if let Some(news) = self.logs.take_news() {
            self.view.note(&news);
        }
        if self.logs.failure().is_some() && status == exit::OK { exit::FAILURE } else { status }
    }

    /// The result of the commands of a line's VMs.
    fn commands(&self, line: usize) -> Exec {
        let commands = self.consoles.iter().filter(|console| console.line == line && console.has_command());
        Exec::of(commands.map(|console| console.filter.as_ref().and_then(Filter::status)))
    }

    /// The exit status: the machine's, or if that is success, that of the first failed Stile in a VM.
    fn judge(&self, end: &End) -> (u8, Option<String>) {
        let (status, message) = outcome::judge(end, &self.lines[0].story, self.commands(0), &self.vm_names(0));
        if status != exit::OK {
            return (status, message);
        }
        // One without a name was destroyed.
        let inner = (1..self.lines.len()).filter(|&line| !self.lines[line].name.is_empty()).map(|line| {
            let Line { name, story, .. } = &self.lines[line];
            outcome::judge_inner(name, story, self.commands(line), &self.vm_names(line))
        });
        inner.into_iter().find(|(status, _)| *status != exit::OK).unwrap_or((status, message))
    }

    /// The names of a line's VMs.
    pub(super) fn vm_names(&self, line: usize) -> Vec<String> {
        let name = |vm: &Vm| match *vm {
            Vm::Console(console) => self.names[console].clone(),
            Vm::Stile(inner) => self.lines[inner].name.clone(),
        };
        self.lines[line].vms.iter().map(name).collect()
    }

    fn show_exits(&mut self, line: usize, shown: Shown) {
        let Line { name, exits, .. } = &self.lines[line];
        let (who, table) = (format!("Stile in {name}"), exits.text(&self.vm_names(line), shown));
        if line > 0 && !shown.json {
            self.view.note(&format!("the account of {who}:"));
        }
        match table {
            Some(table) => self.view.text(&table),
            None => self.view.note(&format!("{} sent no account of its exits", if line > 0 { &who } else { "Stile" })),
        }
    }

    fn last_lines(&mut self) {
        for (index, (name, console)) in self.names.iter().zip(&self.consoles).enumerate().filter(|(_, (_, console))| !console.gone) {
            let lines = console.tail.lines(LAST_LINES);
            // Without a configuration, a board has as many VMs as there can be.
            if lines.is_empty() && self.emulator.is_none() && self.fate(index) == Fate::Waiting {
                continue;
            }
            let head = if lines.is_empty() {
                format!("the console of {name} said nothing")
            } else {
                format!("the last lines of the console of {name}:")
            };
            self.view.note(&head);
            self.view.text(&lines.iter().map(|line| format!("    {line}\n")).collect::<String>());
        }
    }
}
