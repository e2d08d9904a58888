//! The channels of one serial line.

/// Number of channels on a line: the log, the operator's, and 128 consoles.
pub const MAX_CHANNELS: u8 = 130;

/// The byte that selects channel 0 after a [`crate::DLE`]; the others follow, up to 0xc2.
const SELECT_BASE: u8 = b'A';

/// One of the streams on a serial line: less than [`MAX_CHANNELS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(u8);

impl Channel {
    /// Stile's log. Selected until another channel is.
    pub const LOG: Channel = Channel(0);
    /// Frames: messages to and from the operator.
    pub const OPERATOR: Channel = Channel(16);

    /// Channel `number`, if it exists.
    pub const fn new(number: u8) -> Option<Self> {
        if number < MAX_CHANNELS { Some(Self(number)) } else { None }
    }

    /// The console of virtual machine `vm`, numbered from 0.
    ///
    /// There are 128, around the operator's channel. A higher number returns the last of them, so that a missing check mixes two consoles
    /// at worst.
    pub const fn console(vm: u8) -> Self {
        match vm {
            0..15 => Self(vm + 1),
            15..128 => Self(vm + 2),
            _ => Self(MAX_CHANNELS - 1),
        }
    }

    /// The virtual machine of a console.
    pub const fn vm(self) -> Option<u8> {
        match self.0 {
            1..=15 => Some(self.0 - 1),
            17..MAX_CHANNELS => Some(self.0 - 2),
            _ => None,
        }
    }

    /// The channel's number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The byte that selects this channel when it follows a [`crate::DLE`].
    pub const fn select_byte(self) -> u8 {
        SELECT_BASE + self.0
    }

    /// The channel that `byte` selects when it follows a [`crate::DLE`].
    pub const fn of_select_byte(byte: u8) -> Option<Self> {
        match byte.checked_sub(SELECT_BASE) {
            Some(number) => Self::new(number),
            None => None,
        }
    }
}
