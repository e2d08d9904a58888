//! VMs that are created while the machine runs.

use std::fs;
use std::path::Path;
use std::time::Instant;

use stile_board::MAX_VMS;
use stile_wire::Command;

use super::console::Console;
use super::line::{Leaf, Vm};
use super::outcome::Fate;
use super::upload::Upload;
use super::{Guest, Session};
use crate::control::protocol::Reply;
use crate::control::server::ClientId;

impl Session<'_> {
    /// Begins to send a VM with `memory` bytes of RAM to Stile.
    pub(super) fn create(&mut self, id: ClientId, guest: Guest, package: &Path, memory: u64) {
        if let Err(why) = self.check_idle() {
            return self.refuse(id, why);
        }
        if self.names.contains(&guest.name) {
            return self.refuse(id, format!("the machine has a VM called {}", guest.name));
        }
        let Some(vm) = self.free_number() else {
            return self.refuse(id, format!("the machine has {MAX_VMS} VMs already"));
        };
        let package = match fs::read(package) {
            Ok(package) if u32::try_from(package.len()).is_ok() => package,
            Ok(_) => return self.refuse(id, "its files are larger than 4 GiB"),
            Err(error) => return self.refuse(id, format!("{} can't be read: {error}", package.display())),
        };
        let Some(control) = &mut self.control else { return };
        let tag = control.waiting().tag();
        let (upload, command) = Upload::begin(id, guest, memory, vm, tag, package, Instant::now());
        self.upload = Some(upload);
        self.command_to(0, &command);
    }

    /// The number for a new VM.
    pub(super) fn free_number(&self) -> Option<u8> {
        let fates = &self.lines[0].story.fates;
        let number = fates.iter().position(|fate| *fate == Fate::Destroyed).unwrap_or(fates.len());
        u8::try_from(number).ok().filter(|_| number < MAX_VMS)
    }

    /// Returns the upload in progress, if a message from `line` with this tag is about it. VMs are created by the first line's Stile only.
    fn upload(&mut self, line: usize, tag: u32) -> Option<&mut Upload> {
        self.upload.as_mut().filter(|upload| line == 0 && upload.tag == tag)
    }

    /// Handles Stile's acknowledgement of `next` bytes of the VM.
    pub(super) fn uploaded(&mut self, line: usize, tag: u32, next: u32) {
        let Some(upload) = self.upload(line, tag) else { return };
        let commands = upload.arrived(next, Instant::now());
        let (client, (done, all)) = (upload.client, upload.progress());
        self.send_all(&commands);
        if let Some(control) = &mut self.control {
            control.reply(client, Reply::Progress { done, all });
        }
    }

    /// Resends lost pieces.
    pub(super) fn upload_again(&mut self) {
        let commands = self.upload.as_mut().map(|upload| upload.retry(Instant::now())).unwrap_or_default();
        self.send_all(&commands);
    }

    fn send_all(&mut self, commands: &[Command]) {
        commands.iter().for_each(|command| self.command_to(0, command));
    }

    /// Handles a message about the VM's creation. Returns false for other messages.
    pub(super) fn created(&mut self, line: usize, tag: u32) -> bool {
        if self.upload(line, tag).is_none() {
            return false;
        }
        let Some(Upload { client, guest, vm, package, .. }) = self.upload.take() else { return false };
        self.add_vm(guest, vm, package);
        if let Some(control) = &mut self.control {
            control.reply(client, Reply::Done);
        }
        true
    }

    /// Adds a VM that Stile has created from a package.
    pub(super) fn add_vm(&mut self, guest: Guest, vm: u8, package: Vec<u8>) {
        self.packages.insert(guest.name.clone(), package);
        let number = usize::from(vm);
        let console = self.consoles.len();
        let own = &mut self.lines[0];
        if number == own.vms.len() {
            own.vms.push(Vm::Console(console));
            own.story.fates.push(Fate::Waiting);
        } else {
            own.vms[number] = Vm::Console(console);
            own.story.fates[number] = Fate::Waiting;
        }
        self.consoles.push(Console::new(&Leaf { line: 0, vm, name: guest.name.clone(), guest: &guest }));
        self.logs.add(&guest.name);
        self.view.add(&guest.name);
        self.budgets.add(&guest);
        self.names.push(guest.name);
    }

    /// Handles Stile's refusal to create the VM.
    pub(super) fn not_created(&mut self, line: usize, tag: u32, why: &[u8]) {
        if self.upload(line, tag).is_none() {
            return;
        }
        if let Some(upload) = self.upload.take() {
            self.refuse(upload.client, String::from_utf8_lossy(why));
        }
    }
}
