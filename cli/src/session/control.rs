//! Requests of the control socket's clients.

use std::time::Instant;

use stile_wire::{Action, Answer, Wait};

use super::budgets::WATCHER;
use super::clients::{Attached, Control, describe, state_of};
use super::console::Console;
use super::leaving::Leaving;
use super::outcome::Fate;
use super::sampler::Step;
use super::{Session, line};
use crate::config::served::device_name;
use crate::control::protocol::{Bytes, Reply, Request, Status, VmStatus, WaitsFor};
use crate::control::server::{ClientId, Message};

impl Session<'_> {
    /// A client connected, sent a request, or disconnected.
    pub(super) fn client(&mut self, message: Message) {
        let Some(control) = &mut self.control else { return };
        match message {
            Message::Connected(id, client) => control.add(id, client),
            Message::Gone(id) => {
                control.remove(id);
                self.forget_trace(id);
                self.forget_upload(id);
                self.forget_transfer(id);
                self.forget_holds(id);
            }
            Message::Request(id, request) => self.request(id, request),
        }
    }

    pub(super) fn request(&mut self, id: ClientId, request: Request) {
        let Some(request) = self.postpone(id, request) else { return };
        match request {
            Request::Status => {
                let status = self.status();
                self.reply_to(id, |_| Reply::Status(status));
                self.ask_states();
            }
            Request::Attach { vm } => match self.console_of(vm.as_deref()) {
                Ok(console) => {
                    let (vm, scrollback) = (self.names[console].clone(), self.consoles[console].tail.raw(usize::MAX));
                    let bare = self.consoles[console].has_command();
                    self.reply_to(id, |client| {
                        client.console = Some(console);
                        Reply::Attached { vm, scrollback: Bytes(scrollback), bare }
                    });
                }
                Err(message) => self.refuse(id, message),
            },
            Request::Input { bytes } => match self.control.as_mut().and_then(|control| control.get_mut(id)).map(|client| client.console) {
                Some(Some(console)) => self.send(console, &bytes.0),
                Some(None) => self.refuse(id, "attach to a console first"),
                None => {}
            },
            Request::Sample => {
                let names = self.vm_names(0);
                let step = self.sampler.ask(id, Instant::now(), &names);
                self.sampled(step);
            }
            Request::State { vm } => self.tell_state(id, vm),
            Request::Keep { vm } => {
                self.keep_hold(id, &vm);
                self.tell_state(id, vm);
            }
            Request::Image => {
                let path = self.image.clone();
                self.reply_to(id, |_| Reply::Image { path });
            }
            Request::Create { guest, package, memory } => self.create(id, *guest, &package, memory),
            Request::Save { vm, file } => self.save(id, &vm, &file),
            Request::Hold { vm } => self.begin_hold(id, &vm),
            Request::Copy { vm, file } => self.copy(id, &vm, &file),
            Request::CopyStep { step } => self.step_of_copy(id, step),
            Request::Restore { file, clock, sections, trusted } => self.restore(id, &file, (clock, sections), trusted),
            Request::RestoreMore { sections } => self.restore_more(id, sections),
            Request::Trace => self.trace(id),
            Request::TraceStop => self.stop_trace(id),
            Request::Control { vm, action } => self.control(id, &vm, action),
            Request::Hello { .. } => self.refuse(id, "hello came before"),
        }
    }

    fn tell_state(&mut self, id: ClientId, vm: String) {
        match line::find(&self.lines, &self.names, &vm) {
            Some((line, number)) => {
                let state = state_of(self.lines[line].story.fates[usize::from(number)]);
                self.reply_to(id, |_| Reply::State { vm, state });
                self.ask_state(line, number);
            }
            None => self.refuse(id, self.no_vm(&vm)),
        }
    }

    /// Passes a request on to the VM's Stile.
    pub(super) fn control(&mut self, id: ClientId, name: &str, action: Action) {
        let Some((line, vm)) = line::find(&self.lines, &self.names, name) else {
            return self.refuse(id, self.no_vm(name));
        };
        if action == Action::Destroy && self.keeps_accounts(line, vm) {
            self.leaving.push(Leaving { client: id, name: name.to_owned(), vm, is_sampled: false });
            return self.sample_leaving();
        }
        self.pass_on_control(id, name, (line, vm), action);
    }

    /// Passes it on without further conditions. Returns its tag; `None` if it is refused.
    pub(super) fn pass_on_control(&mut self, id: ClientId, name: &str, (line, vm): (usize, u8), action: Action) -> Option<u32> {
        let Some((tag, command)) = self.control.as_mut()?.waiting().add(Some(id), (line, vm), name, action, Instant::now()) else {
            self.refuse(id, "Stile has not answered many requests: wait, or see its log");
            return None;
        };
        self.command_to(line, &command);
        Some(tag)
    }

    /// Repeats changes of VMs' states whose answers are late.
    pub(super) fn control_again(&mut self) {
        let late = self.control.as_mut().map(|control| control.waiting().repeat(Instant::now())).unwrap_or_default();
        late.iter().for_each(|(line, command)| self.command_to(*line, command));
        let left: Vec<_> = self.holds.iter().filter(|hold| hold.client.is_none()).map(|hold| hold.vm.clone()).collect();
        for (line, vm) in left.iter().filter_map(|name| line::find(&self.lines, &self.names, name)).collect::<Vec<_>>() {
            self.ask_state(line, vm);
        }
    }

    /// Asks for the states of all VMs of which a message may have been lost.
    fn ask_states(&mut self) {
        for line in 0..self.lines.len() {
            (0..self.lines[line].vms.len()).for_each(|vm| self.ask_state(line, vm as u8));
        }
    }

    /// Asks for the state of a VM of which a message may have been lost: somebody waits for it to change. A VM that was destroyed stays so.
    pub(super) fn ask_state(&mut self, line: usize, vm: u8) {
        if self.lines[line].story.fates.get(usize::from(vm)).is_none_or(|fate| *fate == Fate::Destroyed) {
            return;
        }
        if let Some(command) = self.control.as_mut().and_then(|control| control.waiting().ask_state(line, vm, Instant::now())) {
            self.command_to(line, &command);
        }
    }

    /// Takes the next step to a sample.
    pub(super) fn sampled(&mut self, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Send(command) => self.command_to(0, &command),
            Step::Done(mut sample, mut clients) => {
                // Clients that have disconnected.
                sample.vms.retain(|vm| !vm.name.is_empty());
                if clients.contains(&WATCHER) {
                    self.check_budgets(&sample);
                    clients.retain(|id| *id != WATCHER);
                }
                sample.budgets = self.budgets.usage();
                if let Some(control) = &mut self.control {
                    clients.into_iter().for_each(|id| control.reply(id, Reply::Sample(sample.clone())));
                }
                self.let_leave();
            }
        }
    }

    /// Stile has answered a request.
    pub(super) fn answered(&mut self, line: usize, tag: u32, answer: Answer) {
        self.answered_hold(line, tag, answer);
        let Some(control) = &mut self.control else { return };
        let Some((Some(id), vm)) = control.waiting().take(line, tag) else { return };
        match answer {
            Answer::Done => control.reply(id, Reply::Done),
            Answer::NoVm => control.refuse(id, format!("Stile knows no VM called {vm}: the configuration is another machine's")),
            Answer::HasLinks => control.refuse(id, format!("{vm} serves devices to other VMs, or they to it: stop it instead")),
            Answer::HasFunctions => control.refuse(id, format!("{vm} owns PCI functions, which stay with it")),
            Answer::NoButton => control.refuse(id, format!("{vm} does not listen to a power button")),
            Answer::WrongState => {
                let state = line::find(&self.lines, &self.names, &vm).map(|(line, vm)| self.lines[line].story.fates[usize::from(vm)]);
                let state = state.map_or_else(|| "in another state".to_owned(), describe);
                control.refuse(id, format!("{vm} is {state}"));
            }
        }
    }

    fn reply_to(&mut self, id: ClientId, reply: impl FnOnce(&mut Attached) -> Reply) {
        let Some(control) = &mut self.control else { return };
        let Some(client) = control.get_mut(id) else { return };
        let reply = reply(client);
        control.reply(id, reply);
    }

    pub(super) fn refuse(&mut self, id: ClientId, message: impl Into<String>) {
        if let Some(control) = &mut self.control {
            control.refuse(id, message);
        }
    }

    fn status(&self) -> Status {
        let vms = (0..self.names.len()).filter(|&console| !self.consoles[console].gone);
        let vms = vms.map(|console| VmStatus {
            name: self.names[console].clone(),
            state: state_of(self.fate(console)),
            waits_for: self.waits_for(console),
        });
        let vms = vms.collect();
        let control = self.control.as_ref();
        Status {
            name: control.map(|control| control.name().to_owned()).unwrap_or_default(),
            pid: std::process::id(),
            arch: control.map(Control::arch).unwrap_or_default(),
            seconds: control.map_or(0, Control::seconds),
            vms,
        }
    }

    /// Returns the served device for which a VM waits, if it does.
    fn waits_for(&self, console: usize) -> Option<WaitsFor> {
        let Console { line, vm, .. } = self.consoles[console];
        let Wait { server, number, device } = *self.lines[line].story.waits.get(&usize::from(vm))?;
        let server = self.consoles.iter().position(|other| (other.line, other.vm, other.gone) == (line, server, false))?;
        Some(WaitsFor { server: self.names[server].clone(), device: device_name(device).to_owned(), number })
    }

    /// The console of a VM; of the first one without a name.
    fn console_of(&self, vm: Option<&str>) -> Result<usize, String> {
        let Some(vm) = vm else { return Ok(self.consoles.iter().position(|console| !console.gone).unwrap_or(0)) };
        self.names.iter().position(|name| name == vm).ok_or_else(|| self.no_vm(vm))
    }

    pub(super) fn no_vm(&self, vm: &str) -> String {
        let names: Vec<&str> = self.names.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
        format!("there is no VM called {vm}; the VMs are {}", names.join(", "))
    }
}
