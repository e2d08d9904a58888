//! Exit statuses, and the error that carries one.

use std::fmt;

use crate::config::Mistakes;
use crate::out::Unwritable;

/// Every VM ended by its own power-off.
pub const OK: u8 = 0;
/// A failure of this program that no other status names.
pub const FAILURE: u8 = 1;
/// Bad usage, or a configuration with a mistake in it.
pub const USAGE: u8 = 2;
/// A guest crashed, ended other than by power-off, or reported a failure.
pub const GUEST: u8 = 100;
/// The hypervisor panicked, or could not start.
pub const HYPERVISOR: u8 = 101;
/// The emulator ended or failed unexpectedly.
pub const EMULATOR: u8 = 102;
/// The time given with `--timeout` was up.
pub const TIMEOUT: u8 = 124;
/// A required program or feature is missing on this machine.
pub const LACKING: u8 = 125;
/// Left by the keyboard.
pub const LEFT: u8 = 130;
/// The reader of standard output left, as `head` does: the status that a shell shows for SIGPIPE.
pub const UNREAD: u8 = 141;
/// Ended by a signal to end (SIGTERM, SIGHUP).
pub const TERMINATED: u8 = 143;

/// The table of statuses, as `--help` shows it.
pub const HELP: &str = "\
Exit status:
  0    every VM ended by its own power-off (with --exec: the command's own status)
  1    a failure of this program that no other status names, such as output or logs that can't be written
  2    bad usage, or a mistake in the configuration
  100  a guest crashed, ended without a power-off, or with a status of its own that is not 0 (with --exec: without the command's status)
  101  the hypervisor panicked or could not start
  102  the emulator ended or failed unexpectedly, or the serial line was disconnected
  124  the time given with --timeout was up
  125  this machine lacks something that is needed
  130  left by the keyboard
  141  the reader of standard output left (as head does)
  143  ended by a signal";

/// An error with the command's exit status.
#[derive(Debug)]
pub struct Failure {
    /// A status of this module.
    pub status: u8,
    /// The message to the user.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// An error for bad usage ([`USAGE`]).
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Failure { status: USAGE, message: message.into() }.into()
}

/// An error for a missing program or file of the host ([`LACKING`]).
pub fn lacking(message: impl Into<String>) -> anyhow::Error {
    Failure { status: LACKING, message: message.into() }.into()
}

/// An error for an emulator that fails ([`EMULATOR`]).
pub fn emulator(message: impl Into<String>) -> anyhow::Error {
    Failure { status: EMULATOR, message: message.into() }.into()
}

/// The status that an error ends the command with.
pub fn status_of(error: &anyhow::Error) -> u8 {
    if error.is::<Mistakes>() {
        return USAGE;
    }
    if let Some(unwritable) = error.downcast_ref::<Unwritable>() {
        return if unwritable.reader_left() { UNREAD } else { FAILURE };
    }
    error.chain().find_map(|cause| cause.downcast_ref::<Failure>()).map_or(FAILURE, |failure| failure.status)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    #[test]
    fn a_status_survives_added_context() {
        let error = Err::<(), _>(super::lacking("no emulator")).context("starting").unwrap_err();
        assert_eq!(super::status_of(&error), super::LACKING);
        assert_eq!(super::status_of(&anyhow::anyhow!("other")), super::FAILURE);
    }
}
