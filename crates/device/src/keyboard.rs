//! A PC's keyboard controller, at ports 0x60 and 0x64 (IBM, *Personal System/2 Hardware Interface Technical Reference*,
//! "Keyboard and Auxiliary Device Controller"; Intel 8042), and port 0x92 (fast A20 and reset).
//!
//! No keyboard is attached: bytes sent to it time out. The controller resets the machine. The A20 bit reads back, but
//! address line 20 is always enabled. It raises no interrupts.

#[cfg(test)]
mod tests;

use stile_snapshot::pc::Keyboard as Saved;

/// Its ports: data; status and commands; fast A20 and reset.
pub const PORTS: [u16; 3] = [DATA, COMMAND, QUICK];
const DATA: u16 = 0x60;
const COMMAND: u16 = 0x64;
const QUICK: u16 = 0x92;

/// Status bits. The input buffer is never full, because writes complete immediately.
mod status {
    pub const OUTPUT_FULL: u8 = 1 << 0;
    pub const TESTED: u8 = 1 << 2;
    pub const COMMAND: u8 = 1 << 3;
    pub const NOT_LOCKED: u8 = 1 << 4;
    pub const TIME_OUT: u8 = 1 << 6;
}

/// Commands of the command port.
mod command {
    pub const READ_MODE: u8 = 0x20;
    pub const WRITE_MODE: u8 = 0x60;
    pub const TEST: u8 = 0xaa;
    pub const TEST_KEYBOARD: u8 = 0xab;
    pub const DISABLE: u8 = 0xad;
    pub const ENABLE: u8 = 0xae;
    pub const READ_OUTPUT: u8 = 0xd0;
    pub const WRITE_OUTPUT: u8 = 0xd1;
    /// The first command that pulses output port lines: those whose bit of bits 3:0 is clear.
    pub const PULSE: u8 = 0xf0;
}

const TEST_PASSED: u8 = 0x55;
const KEYBOARD_PASSED: u8 = 0;
/// The controller's answer for a keyboard that does not respond.
const RESEND: u8 = 0xfe;
/// Output port: the processor's reset line, low for reset.
const NO_RESET: u8 = 1 << 0;
/// Output port, and port 0x92: A20 enabled.
const A20: u8 = 1 << 1;
/// Port 0x92: reset.
const QUICK_RESET: u8 = 1 << 0;
/// Mode ("command byte"): the keyboard is disabled; the self-test has passed.
const MODE_DISABLED: u8 = 1 << 4;
const MODE_TESTED: u8 = 1 << 2;

/// The controller.
#[derive(Clone, Debug)]
pub struct Keyboard {
    output: Option<u8>,
    timed_out: bool,
    mode: u8,
    /// The last write was a command; and the command that expects a data byte, if any.
    was_command: bool,
    wants: Option<u8>,
    a20: bool,
}

impl Default for Keyboard {
    fn default() -> Self {
        Self::new()
    }
}

impl Keyboard {
    /// The state that firmware leaves: self-test passed.
    pub const fn new() -> Self {
        Self { output: None, timed_out: false, mode: MODE_TESTED, was_command: true, wants: None, a20: true }
    }

    /// Exports the state.
    pub const fn save(&self) -> Saved {
        let Self { output, timed_out, mode, was_command, wants, a20 } = *self;
        Saved { output, timed_out, mode, was_command, wants, a20 }
    }

    /// Imports a state, reduced to one that a guest could have produced.
    pub fn restore(&mut self, from: &Saved) {
        let Saved { output, timed_out, mode, was_command, wants, a20 } = *from;
        let wants = wants.filter(|&wants| matches!(wants, command::WRITE_MODE | command::WRITE_OUTPUT));
        *self = Self { output, timed_out, mode, was_command, wants, a20 };
    }

    /// The guest reads one of [`PORTS`].
    pub fn read(&mut self, port: u16) -> u8 {
        match port {
            DATA => {
                self.timed_out = false;
                self.output.take().unwrap_or(0)
            }
            QUICK => self.a20_bit(),
            _ => self.status(),
        }
    }

    /// The guest writes one of [`PORTS`]. True if that resets the machine.
    pub fn write(&mut self, port: u16, value: u8) -> bool {
        match port {
            QUICK => {
                self.a20 = value & A20 != 0;
                return value & QUICK_RESET != 0;
            }
            DATA => {
                self.was_command = false;
                match self.wants.take() {
                    Some(command::WRITE_MODE) => self.mode = value,
                    Some(_) => {
                        self.a20 = value & A20 != 0;
                        return value & NO_RESET == 0;
                    }
                    None => {
                        self.output = Some(RESEND);
                        self.timed_out = true;
                    }
                }
            }
            _ => {
                self.was_command = true;
                return self.command(value);
            }
        }
        false
    }

    fn command(&mut self, value: u8) -> bool {
        self.wants = None;
        match value {
            command::READ_MODE => self.output = Some(self.mode),
            command::WRITE_MODE | command::WRITE_OUTPUT => self.wants = Some(value),
            command::TEST => {
                self.mode |= MODE_TESTED;
                self.output = Some(TEST_PASSED);
            }
            command::TEST_KEYBOARD => self.output = Some(KEYBOARD_PASSED),
            command::DISABLE => self.mode |= MODE_DISABLED,
            command::ENABLE => self.mode &= !MODE_DISABLED,
            command::READ_OUTPUT => self.output = Some(NO_RESET | self.a20_bit()),
            command::PULSE.. => return value & NO_RESET == 0,
            _ => {}
        }
        false
    }

    const fn a20_bit(&self) -> u8 {
        if self.a20 { A20 } else { 0 }
    }

    const fn status(&self) -> u8 {
        let full = if self.output.is_some() { status::OUTPUT_FULL } else { 0 };
        let tested = if self.mode & MODE_TESTED != 0 { status::TESTED } else { 0 };
        let command = if self.was_command { status::COMMAND } else { 0 };
        let time_out = if self.timed_out { status::TIME_OUT } else { 0 };
        full | tested | command | status::NOT_LOCKED | time_out
    }
}
