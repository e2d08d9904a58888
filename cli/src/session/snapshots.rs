//! VMs that are saved and restored while the machine runs.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter};
use std::path::Path;

use stile_blob::{Blob, Package};
use stile_board::MAX_VMS;
use stile_wire::{Action, Answer, Command, Event};

use super::clients::Control;
use super::copying::Copying;
use super::line::Vm;
use super::next::Next;
use super::outcome::Fate;
use super::transfer::{Restoring, Saving, Steps, Transfer};
use super::work::WorkMeter;
use super::{Session, line};
use crate::config::Arch;
use crate::control::protocol::{Clock, CopyStep, Reply};
use crate::control::server::ClientId;
use crate::emulator::MachineMemory;
use crate::guest::Guest;
use crate::image;
use crate::snapshot::{Reader, Writer, whole_package};

/// A file that was begun for a VM.
struct Begun {
    /// For the commands.
    tag: u32,
    /// The VM's number.
    vm: u8,
    /// First and last address of its RAM.
    ram: (u64, u64),
    writer: Writer<BufWriter<File>>,
}

impl Session<'_> {
    /// Begins to save a paused VM into a file, which exists.
    pub(super) fn save(&mut self, id: ClientId, name: &str, file: &Path) {
        let steps = |Begun { tag, vm, ram, writer }| (tag, Steps::Saving(Box::new(Saving::new(tag, vm, writer, ram))));
        let begun = self.begin_file(name, file).map(steps);
        self.begin(id, Some(file), begun);
    }

    /// Begins the steps of a transfer with this tag, or tells the client why there is none.
    fn begin(&mut self, client: ClientId, file: Option<&Path>, begun: Result<(u32, Steps), String>) {
        match begun {
            Ok((tag, steps)) => {
                let (file, work) = (file.map(Path::to_owned), WorkMeter::new(self.counting));
                self.transfer = Some(Transfer { client, tag, file, abandoned: false, work, steps });
                self.open_window(client, tag);
            }
            Err(why) => self.refuse(client, why),
        }
    }

    fn open_window(&mut self, id: ClientId, tag: u32) {
        match self.memory.as_mut().map_or(Ok(0), MachineMemory::choose_mark) {
            Ok(mark) => self.command_to(0, &Command::OpenWindow { tag, mark }),
            Err(error) => {
                self.transfer = None;
                self.refuse(id, error.to_string());
            }
        }
    }

    /// Begins to copy a paused VM into a file, which exists.
    pub(super) fn copy(&mut self, id: ClientId, name: &str, file: &Path) {
        let steps = |Begun { tag, vm, writer, .. }| (tag, Steps::Copying(Box::new(Copying::new(tag, vm, writer))));
        let begun = self.begin_file(name, file).map(steps);
        self.begin(id, Some(file), begun);
    }

    /// Takes the next step of a copy.
    pub(super) fn step_of_copy(&mut self, id: ClientId, step: CopyStep) {
        match &mut self.transfer {
            Some(Transfer { client, steps: Steps::Copying(copying), .. }) if *client == id && copying.is_idle() => {
                let next = copying.begin(step);
                self.take_step(Ok(next));
            }
            _ => self.refuse(id, "no VM is being copied"),
        }
    }

    /// There is more of a file from which a VM is being restored.
    pub(super) fn restore_more(&mut self, id: ClientId, sections: Option<u32>) {
        match (&mut self.transfer, &self.memory) {
            (Some(Transfer { client, steps: Steps::Restoring(restoring), .. }), Some(memory))
                if *client == id && restoring.is_waiting() =>
            {
                let next = restoring.go_on(sections, memory).map_err(|error| error.to_string());
                self.take_step(next);
            }
            _ => self.refuse(id, "no VM is being restored"),
        }
    }

    /// Begins a file for a VM with its description.
    fn begin_file(&mut self, name: &str, file: &Path) -> Result<Begun, String> {
        self.check_transfers()?;
        let tag = self.new_tag()?;
        let (line, vm) = line::find(&self.lines, &self.names, name).ok_or_else(|| format!("there is no VM called {name}"))?;
        if line != 0 {
            return Err(format!("{name} is inside another VM: save that one"));
        }
        let Vm::Console(console) = self.lines[0].vms[usize::from(vm)] else {
            return Err(format!("{name} runs a Stile; VMs with `nested` can't be saved yet"));
        };
        if self.fate(console) != Fate::Paused {
            return Err(format!("{name} is not paused"));
        }
        let guest = Guest { name: name.to_owned(), system: None, budget: self.budgets.of(name), inner: Vec::new() };
        let image = self.image.as_ref().map(fs::read).transpose().map_err(|error| format!("reading the machine's image: {error}"))?;
        let blob = image.as_deref().and_then(image::blob).and_then(|blob| Blob::parse(blob).ok());
        let files = blob.as_ref().map(Blob::files).unwrap_or_default();
        let (vm_config, files) = match self.packages.get(name) {
            Some(package) => {
                Package::parse(package, files).map(|package| (package.vm, package.files)).map_err(|error| error.to_string())?
            }
            None => {
                let config = blob.as_ref().and_then(|blob| blob.vms.clone().find(|vm| vm.name == name));
                (
                    config
                        .ok_or("the image that the machine was started with is not on this computer, so that the VM's files are unknown")?,
                    files,
                )
            }
        };
        let package = whole_package(&vm_config, files).map_err(|error| error.to_string())?;
        let arch = self.arch();
        let file = OpenOptions::new().write(true).open(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let writer =
            Writer::new(BufWriter::new(file), &guest, &vm_config, &package, arch).map_err(|error| format!("writing the file: {error}"))?;
        let span = vm_config.memory_span();
        let ram = (span.start, span.end);
        Ok(Begun { tag, vm, ram, writer })
    }

    /// Begins to restore a VM from a file.
    pub(super) fn restore(&mut self, id: ClientId, file: &Path, how: (Clock, Option<u32>), trusted: bool) {
        let begun = self.begin_restore(file, how, trusted);
        self.begin(id, None, begun);
    }

    fn begin_restore(&mut self, file: &Path, (clock, sections): (Clock, Option<u32>), trusted: bool) -> Result<(u32, Steps), String> {
        self.check_transfers()?;
        let opened = File::open(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut reader = Reader::new(BufReader::new(opened)).map_err(|error| format!("{}: {error}", file.display()))?;
        let drops = !trusted && reader.drop_trust().map_err(|error| format!("{}: {error}", file.display()))?;
        if reader.arch() != self.arch() {
            return Err(format!("the snapshot is of a VM on {}, this machine is of another architecture", reader.arch().name()));
        }
        if self.names.contains(&reader.guest.name) {
            return Err(format!("the machine has a VM called {}", reader.guest.name));
        }
        let vm = self.free_number().ok_or_else(|| format!("the machine has {MAX_VMS} VMs already"))?;
        let tag = self.new_tag()?;
        if drops {
            let name = &reader.guest.name;
            self.view.note(&format!("{name}: SGIs trap, as the snapshot is not trusted: use --trusted to keep ipi = \"direct\""));
        }
        Ok((tag, Steps::Restoring(Box::new(Restoring::new(tag, vm, reader, clock, sections)))))
    }

    /// Whether a transfer can begin.
    fn check_transfers(&self) -> Result<(), String> {
        if self.memory.is_none() {
            return Err(
                "snapshots need a machine whose memory this computer shares: one of `stile run` without `nodes` and memory options of the \
                        emulator, on x86_64 with at most 2 GiB"
                    .into(),
            );
        }
        self.check_idle()
    }

    /// Whether Stile handles no transfer: it handles one at a time.
    pub(super) fn check_idle(&self) -> Result<(), String> {
        let is_idle = self.transfer.is_none() && self.upload.is_none() && self.abandonment.is_none();
        if is_idle { Ok(()) } else { Err("another VM is being created, saved or restored: try again".into()) }
    }

    fn arch(&self) -> Arch {
        self.control.as_ref().map(Control::arch).unwrap_or_default()
    }

    pub(super) fn new_tag(&mut self) -> Result<u32, String> {
        Ok(self.control.as_mut().ok_or("the machine has no control socket")?.waiting().tag())
    }

    /// Handles an answer of Stile to a transfer's command. False if it is about something else.
    pub(super) fn transferred(&mut self, line: usize, event: &Event) -> bool {
        let (Event::Window { tag, .. }
        | Event::Saved { tag, .. }
        | Event::Restored { tag, .. }
        | Event::Uploaded { tag, .. }
        | Event::Answer { tag, .. }
        | Event::Refused { tag, .. }) = *event
        else {
            return false;
        };
        if line != 0 || self.transfer.as_ref().is_none_or(|transfer| transfer.tag != tag) {
            return false;
        }
        if matches!(&self.transfer, Some(Transfer { steps: Steps::Restoring(restoring), .. }) if restoring.is_creating())
            && matches!(event, Event::Answer { answer: Answer::Done, .. })
        {
            self.add_restored();
        }
        if self.transfer.as_ref().is_some_and(|transfer| transfer.abandoned) {
            self.abandon();
            return true;
        }
        let next = self.advance(event);
        self.take_step(next);
        true
    }

    /// Takes the next step of the transfer.
    fn take_step(&mut self, next: Result<Next, String>) {
        let Some(transfer) = &mut self.transfer else { return };
        let client = transfer.client;
        match next {
            Ok(Next::Send(command)) => {
                let progress = progress(&transfer.steps);
                self.command_to(0, &command);
                if let Some(control) = &mut self.control {
                    control.reply(client, progress);
                }
            }
            Ok(Next::Wait(reply)) => {
                let reply = transfer.work.report(reply);
                if let Some(control) = &mut self.control {
                    control.reply(client, reply);
                }
            }
            Ok(Next::Complete(reply)) => {
                let reply = transfer.work.report(reply);
                self.complete_transfer(client, reply);
            }
            Err(why) => self.complete_transfer(client, Reply::Refused { message: why }),
        }
    }

    fn complete_transfer(&mut self, client: ClientId, reply: Reply) {
        let failed = matches!(reply, Reply::Refused { .. });
        if failed {
            self.drop_package();
        }
        if let Some(transfer) = self.end_transfer().filter(|_| failed) {
            self.remove_restored(transfer);
        }
        if let Some(control) = &mut self.control {
            control.reply(client, reply);
        }
    }

    fn advance(&mut self, event: &Event) -> Result<Next, String> {
        let (Some(transfer), Some(memory)) = (&mut self.transfer, &mut self.memory) else {
            return Err("the transfer was abandoned".into());
        };
        match *event {
            Event::Window { counter_hz, .. } => transfer.work.set_frequency(counter_hz),
            Event::Saved { ticks, .. } | Event::Restored { ticks, .. } => transfer.work.add(ticks),
            _ => {}
        }
        if let Event::Window { .. } = event {
            memory.opened().map_err(|error| format!("the machine's memory: {error}"))?;
        }
        let complete = |file: BufWriter<File>| file.into_inner().map_err(|error| error.into_error())?.sync_all();
        match (&mut transfer.steps, event) {
            (_, Event::Refused { why, .. }) => Err(String::from_utf8_lossy(why.bytes()).into_owned()),
            (_, Event::Answer { answer, .. }) if *answer != Answer::Done => Err("the VM is gone, or was stopped".into()),
            (Steps::Saving(saving), Event::Window { address, .. }) => Ok(saving.opened(*address)),
            (Steps::Saving(saving), Event::Saved { length, next, .. }) => {
                saving.saved((*length, *next), &*memory, complete).map_err(|error| format!("writing the file: {error}"))
            }
            (Steps::Copying(copying), Event::Window { address, .. }) => Ok(copying.opened(*address)),
            (Steps::Copying(copying), Event::Saved { length, next, .. }) => {
                copying.saved((*length, *next), &*memory, complete).map_err(|error| format!("writing the file: {error}"))
            }
            (Steps::Restoring(restoring), Event::Window { address, .. }) => Ok(restoring.opened(*address)),
            (Steps::Restoring(restoring), Event::Uploaded { next, .. }) => {
                restoring.uploaded(*next, &*memory).map_err(|error| format!("the machine's memory: {error}"))
            }
            (Steps::Restoring(restoring), Event::Answer { .. }) => restoring.done(&*memory).map_err(|error| error.to_string()),
            (Steps::Restoring(restoring), Event::Restored { done, all, .. }) => {
                restoring.restored(*done, *all, &*memory).map_err(|error| error.to_string())
            }
            (Steps::Saving(_) | Steps::Copying(_) | Steps::Restoring(_), _) => Err("Stile gave another answer than was asked for".into()),
        }
    }

    /// Adds the VM that Stile has created for a snapshot.
    fn add_restored(&mut self) {
        let Some(Transfer { steps: Steps::Restoring(restoring), .. }) = &self.transfer else { return };
        let (guest, vm, package) = (restoring.guest().clone(), restoring.vm, restoring.package().to_vec());
        self.add_vm(guest, vm, package);
    }

    /// Lets Stile drop the package of a VM that it has not created for a snapshot.
    fn drop_package(&mut self) {
        let Some(Transfer { tag, steps: Steps::Restoring(restoring), .. }) = &self.transfer else { return };
        if !self.names.contains(&restoring.guest().name) {
            self.abandon_package(*tag);
        }
    }

    fn end_transfer(&mut self) -> Option<Transfer> {
        let transfer = self.transfer.take();
        self.command_to(0, &Command::CloseWindow);
        transfer
    }

    /// A client disconnected: its transfer ends with the answer that is outstanding.
    pub(super) fn forget_transfer(&mut self, id: ClientId) {
        let Some(transfer) = self.transfer.as_mut().filter(|transfer| transfer.client == id) else { return };
        transfer.abandoned = true;
        if transfer.is_idle() {
            self.abandon();
        }
    }

    /// Ends an abandoned transfer. The incomplete file is removed, and nothing is left of a VM that was being restored.
    fn abandon(&mut self) {
        self.drop_package();
        let Some(mut transfer) = self.end_transfer() else { return };
        if let Some(file) = transfer.file.take() {
            // The client may have removed it.
            let _ = fs::remove_file(file);
        }
        self.remove_restored(transfer);
    }

    /// Removes what there is of a VM that was being restored. No other VM got its name meanwhile.
    fn remove_restored(&mut self, Transfer { client, steps, .. }: Transfer) {
        if let Steps::Restoring(restoring) = steps
            && let Some(console) = self.names.iter().position(|name| *name == restoring.guest().name)
        {
            let (name, fate) = (self.names[console].clone(), self.fate(console));
            self.unwanted.push((client, name.clone()));
            if fate.is_over() {
                self.remove_unwanted(&name, fate);
            } else {
                self.send_unasked(0, restoring.vm, Action::Off);
            }
        }
        if self.abandonment.is_none() {
            self.take_postponed();
        }
    }

    /// An unwanted VM has another state: destroys it once it is off.
    pub(super) fn remove_unwanted(&mut self, name: &str, fate: Fate) {
        let Some(&(client, _)) = self.unwanted.iter().find(|(_, unwanted)| unwanted == name) else { return };
        if fate.is_over() {
            self.unwanted.retain(|(_, unwanted)| unwanted != name);
            // The answer is for nobody.
            self.control(client, name, Action::Destroy);
        }
    }
}

fn progress(steps: &Steps) -> Reply {
    match steps {
        Steps::Saving(saving) => {
            let (done, all) = saving.progress();
            Reply::Progress { done, all: all.max(done) }
        }
        Steps::Copying(copying) => Reply::Progress { done: copying.progress(), all: 0 },
        Steps::Restoring(restoring) => Reply::Progress { done: restoring.progress(), all: 0 },
    }
}
