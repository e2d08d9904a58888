//! Figures of an earlier start of a bench stick: firmware's variables have them, and the stick's partition gets them as a file.
//!
//! A bench stick is a partition with the folder [`FOLDER`] that can be written to. No other image reads a variable.

use stile_firmware::figures::{Fault, MOST_PARTS, PART, delivery, join};
use stile_firmware::runtime::Runtime;
use uefi_raw::protocol::file_system::FileMode;
use uefi_raw::table::boot::BootServices;
use uefi_raw::table::runtime::{ResetType, RuntimeServices, VariableAttributes};
use uefi_raw::table::system::SystemTable;
use uefi_raw::{Guid, Handle, Status, guid};

use super::files::Open;
use super::{has_screen, write_text};

/// The vendor of the variables: Stile.
pub const VENDOR: Guid = guid!("5d1a8a3e-2c0f-4b0e-9c62-8f0d8a6b7e41");
/// Non-volatile, and accessible by runtime services, since they are set after boot services have ended.
pub const ATTRIBUTES: VariableAttributes =
    VariableAttributes::NON_VOLATILE.union(VariableAttributes::BOOTSERVICE_ACCESS).union(VariableAttributes::RUNTIME_ACCESS);

/// Name of a part's variable without its last character, a letter.
const NAME: &str = "StileFigures";
/// Length of a variable's name, with its NUL.
pub const NAME_LEN: usize = NAME.len() + 2;
const _: () = assert!(MOST_PARTS <= 26);

/// Folder of the partition.
const FOLDER: &str = stile_config::boot::FIGURES;
/// Size of a buffer for a path: 16-bit characters and a NUL.
const PATH: usize = 24;

/// Message of a start that goes on to measure, as it would else do the same as the last one for ever.
const IS_LEFT: &str = "Firmware refuses to remove its copy of them. Stile measures, and the next start may find the old figures again.\r\n";

/// NUL-terminated name of a part's variable.
pub fn name(part: usize) -> [u16; NAME_LEN] {
    let mut name = [0; NAME_LEN];
    name.iter_mut().zip(NAME.bytes().chain([b'A' + part as u8])).for_each(|(to, byte)| *to = u16::from(byte));
    name
}

/// Stores the figures of an earlier start, if there are any, on the medium from which firmware loaded the program `handle`, and ends the
/// machine. Else returns the address of SetVariable if the medium and the variables can take figures: the image is a bench stick's, and
/// firmware has no figures that it can't read. `to` is space for them.
pub fn deliver(system: &SystemTable, boot: &BootServices, handle: Handle, to: &mut [u8]) -> Option<u64> {
    let root = Open::root(boot, handle)?;
    let mut path = Path::new();
    path.add(FOLDER);
    let mut is_writable = root.open(&path.text, FileMode::READ).is_ok() && !root.is_read_only();
    // SAFETY: the table of runtime services is valid while boot services are.
    let services = unsafe { &*system.runtime_services };
    let result = is_writable.then(|| join(|part, bytes| read(services, part, bytes), to));
    let written = match result {
        Some(Ok(Some(document))) => Some(write(&root, path, document)),
        _ => None,
    };
    drop(root);
    match result {
        Some(Ok(Some(_))) => {
            let Some(path) = written.flatten() else {
                say(
                    system,
                    "\r\nStile: the figures of the last start can't be written to this stick: its partition is full, or faulty.\r\n",
                );
                say(system, "Firmware keeps them. Start from a bench stick with space to get them.\r\n");
                end(system, boot, services)
            };
            say(system, "\r\nStile: the figures of the last start are in ");
            path.show(system);
            if remove(services) {
                say(system, " on this stick. Remove it, or start from it again to measure again.\r\n");
                end(system, boot, services)
            }
            say(system, " on this stick.\r\n");
            say(system, IS_LEFT);
        }
        Some(Err(Fault::Damaged)) => {
            say(system, "\r\nStile: the figures of the last start are damaged, and are removed\r\n");
            if !remove(services) {
                say(system, IS_LEFT);
            }
        }
        Some(Err(Fault::Unreadable)) => {
            say(system, "\r\nStile: firmware can't read the figures of the last start, and keeps them. New ones are not stored.\r\n");
            is_writable = false;
        }
        // A store or a removal that was interrupted leaves parts without the first one.
        Some(Ok(None)) => _ = remove(services),
        None => {}
    }
    is_writable.then_some(services.set_variable as usize as u64)
}

/// Reads the services' addresses in the final memory map.
pub fn runtime(set_variable: Option<u64>, map: &[u8], descriptor: usize) -> Option<Runtime> {
    Runtime::new(set_variable?, map, descriptor)
}

/// Reads a part. Returns its length; `None` if there is none.
fn read(services: &RuntimeServices, part: usize, to: &mut [u8; PART]) -> Result<Option<usize>, Fault> {
    let (name, mut size) = (name(part), to.len());
    // SAFETY: boot services have not ended, so that runtime services are at their addresses; the name is NUL-terminated, and the buffer has
    // `size` bytes.
    let status = unsafe { (services.get_variable)(name.as_ptr(), &VENDOR, core::ptr::null_mut(), &mut size, to.as_mut_ptr()) };
    match status {
        Status::SUCCESS => Ok(Some(size)),
        Status::NOT_FOUND => Ok(None),
        Status::BUFFER_TOO_SMALL => Err(Fault::Damaged),
        _ => Err(Fault::Unreadable),
    }
}

/// Removes all parts. Returns whether none is left.
fn remove(services: &RuntimeServices) -> bool {
    let is_there = |part| !matches!(read(services, part, &mut [0; PART]), Ok(None));
    delivery::remove(is_there, |part, by_attributes| {
        let (name, attributes) = (name(part), if by_attributes { ATTRIBUTES } else { VariableAttributes::empty() });
        // SAFETY: as of `read`; without data or attributes, the variable is deleted, or stays.
        let _ = unsafe { (services.set_variable)(name.as_ptr(), &VENDOR, attributes, 0, core::ptr::null()) };
    })
}

/// Writes a file of its own to the folder. Returns its path; `None` if that fails.
fn write(root: &Open, folder: Path, document: &[u8]) -> Option<Path> {
    let number = delivery::free_number(|number| match root.open(&folder.file(number).text, FileMode::READ) {
        Ok(_) => Some(true),
        Err(Status::NOT_FOUND) => Some(false),
        Err(_) => None,
    })?;
    let path = folder.file(number);
    let file = root.open(&path.text, FileMode::CREATE.union(FileMode::READ).union(FileMode::WRITE)).ok()?;
    if !file.is_empty() {
        return None;
    }
    if file.write(document) {
        return Some(path);
    }
    file.delete();
    None
}

/// Shows the messages until the machine is turned off, if there is a screen; else turns it off.
fn end(system: &SystemTable, boot: &BootServices, services: &RuntimeServices) -> ! {
    if has_screen(system, boot) {
        say(system, "The machine stays on, so that this can be read. It can be turned off now.\r\n");
        // SAFETY: boot services have not ended. Without a time-out, the watchdog is off.
        let _ = unsafe { (boot.set_watchdog_timer)(0, 0, 0, core::ptr::null()) };
    } else {
        // SAFETY: boot services have not ended, so that runtime services are at their addresses.
        unsafe { (services.reset_system)(ResetType::SHUTDOWN, Status::SUCCESS, 0, core::ptr::null()) }
    }
    loop {
        // SAFETY: boot services have not ended.
        let _ = unsafe { (boot.stall)(1_000_000) };
    }
}

/// Shows a text on firmware's console.
fn say(system: &SystemTable, text: &str) {
    write_text(system, text.bytes().map(u16::from));
}

/// A path from the root directory. Texts are added byte by byte, since formatting needs pointers in constant data.
#[derive(Clone, Copy)]
struct Path {
    text: [u16; PATH],
    length: usize,
}

impl Path {
    fn new() -> Path {
        Path { text: [0; PATH], length: 0 }
    }

    /// Adds text, as far as there is room before the NUL.
    fn add(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.push(byte));
    }

    fn push(&mut self, byte: u8) {
        if let Some(to) = self.text.get_mut(self.length).filter(|_| self.length < PATH - 1) {
            *to = byte.into();
            self.length += 1;
        }
    }

    /// The path of a numbered file in this folder.
    fn file(self, number: u32) -> Path {
        let mut path = self;
        path.push(b'\\');
        let mut unit = 1;
        while number / unit >= 10 {
            unit *= 10;
        }
        while unit > 0 {
            path.push(b'0' + (number / unit % 10) as u8);
            unit /= 10;
        }
        path.add(".JSON");
        path
    }

    fn show(&self, system: &SystemTable) {
        write_text(system, self.text.iter().copied().take(self.length));
    }
}
