//! Keeps the figures of a machine that measures in variables of UEFI firmware, until the next start writes them to the stick
//! ([`efi::figures`](crate::efi)).

use core::fmt;

use stile_firmware::figures::{Document, PIECE, part};

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::console::{self, log};
use crate::{figures, memory, screen};

/// Begins the document, before the machine is described, if there is a place for it.
///
/// # Errors
/// A description: no memory is left.
pub fn setup() -> Result<(), &'static str> {
    match Arch::prepare_variables() {
        Ok(true) => figures::begin(memory::allocate()?.write(Document::new(env!("CARGO_PKG_VERSION")))),
        Ok(false) => {
            log!(
                "figures: on the serial line and the screen only, as UEFI firmware did not start Stile from a partition that it can write, or its services can't be called"
            )
        }
        Err(what) => log!("figures: on the serial line and the screen only, as {what}"),
    }
    Ok(())
}

/// Has firmware keep the figures, if there are any. All VMs are off. `passed`: all has been measured.
pub fn keep(passed: bool) {
    let Some(document) = figures::take() else { return };
    // Firmware's faults end in a panic, but nothing ends an endless loop in it: announce the call.
    say(format_args!(
        "Firmware stores the figures. If no line follows, it does not return: turn the machine off; the lines above have them."
    ));
    console::flush();
    match store(document.end(passed)) {
        Ok(()) => {
            say(format_args!("The figures are stored. Start the machine from this stick again: they are then written to it."));
        }
        Err(status) => say(format_args!("Firmware can't store the figures (status {status:#x}); the lines above have them.")),
    }
    console::flush();
}

/// Stores all parts, or none; the first part last, without which the next start finds no figures but removes the others. Errors are firmware's
/// status.
fn store(document: &[u8]) -> Result<(), usize> {
    let count = document.len().div_ceil(PIECE);
    for index in (0..count).rev() {
        let Some(part) = part(document, index) else { break };
        if let Err(status) = Arch::set_variable(index, &part) {
            for written in index + 1..count {
                let _ = Arch::set_variable(written, &[]);
            }
            return Err(status);
        }
    }
    Ok(())
}

/// Writes a line to the log and the screen, which has no log since VMs run.
fn say(line: fmt::Arguments<'_>) {
    log!("{line}");
    screen::write(format_args!("{line}\n"));
}
