//! A board's serial line: a terminal device in raw mode, whose settings are restored at the end.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, OFlags, fcntl_getfl, fcntl_setfl, flock};
use rustix::io::Errno;
use rustix::termios::{ControlModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

use crate::emulator::Pipes;
use crate::exit;

/// An open serial line.
#[derive(Debug)]
pub struct Serial {
    file: File,
    /// Its settings before.
    before: Termios,
}

impl Serial {
    /// Opens a device: 8 data bits, no parity, 1 stop bit, no flow control, `baud` bits per second.
    ///
    /// # Errors
    /// The device is missing, can't be opened, is not a serial line, is in use, or doesn't support the speed.
    pub fn open(path: &Path, baud: u32) -> Result<Self> {
        let refuse = |what: String| exit::usage(format!("{}: {what}", path.display()));
        // Neither the controlling terminal of this command, nor waiting for a modem's carrier.
        let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path);
        let file = file.map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => refuse(format!("{error}; the group of serial lines is often dialout")),
            _ => refuse(error.to_string()),
        })?;
        // Two readers would each get a part of the output. Other terminal programs, such as picocom, take the same lock.
        // Once it is taken, none of them changes the settings to restore.
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => refuse("another program uses the line: end that program first".into()),
            other => refuse(other.to_string()),
        })?;
        let before = tcgetattr(&file).map_err(|error| match error {
            Errno::NOTTY => refuse("not a serial line; expected a device such as /dev/ttyUSB0".into()),
            other => refuse(other.to_string()),
        })?;
        let mut raw = before.clone();
        raw.make_raw();
        raw.control_modes.remove(ControlModes::CRTSCTS | ControlModes::CSTOPB | ControlModes::HUPCL);
        raw.control_modes.insert(ControlModes::CLOCAL | ControlModes::CREAD);
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        raw.set_speed(baud).map_err(|error| refuse(format!("no {baud} bits a second: {error}")))?;
        tcsetattr(&file, OptionalActions::Now, &raw).map_err(|error| refuse(format!("setting up the line: {error}")))?;
        let blocking = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK));
        blocking.map_err(|error| refuse(error.to_string()))?;
        Ok(Self { file, before })
    }

    /// The line's ends, without an error stream.
    ///
    /// # Errors
    /// There are too many open files.
    pub fn pipes(&self) -> Result<Pipes> {
        let (input, output) = (self.file.try_clone(), self.file.try_clone());
        let (input, output) = (input.context("sharing the serial line")?, output.context("sharing the serial line")?);
        Ok(Pipes { input: Box::new(input), output: Box::new(output), errors: Box::new(std::io::empty()) })
    }
}

impl Drop for Serial {
    fn drop(&mut self) {
        // It fails if the line was unplugged.
        let _ = tcsetattr(&self.file, OptionalActions::Now, &self.before);
    }
}
