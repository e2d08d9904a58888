//! Addresses of functions: segment, bus, device and function number.

use core::fmt;
use core::str::FromStr;

/// The address of a function in segment 0: the routing ID that its requests carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u16);

/// Reason for rejecting the text of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// It does not have the form `0000:00:02.0` (or `00:02.0`).
    Form,
    /// The device is above 1f or the function above 7.
    Range,
    /// The segment is not 0.
    Segment,
}

impl Address {
    /// The function with this routing ID: bus in bits 15 to 8, device in 7 to 3, function in 2 to 0.
    pub const fn from_routing_id(id: u16) -> Address {
        Address(id)
    }

    /// Its routing ID.
    pub const fn routing_id(self) -> u16 {
        self.0
    }

    /// Its bus.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Its device number on the bus: 0 to 31.
    pub const fn device(self) -> u8 {
        (self.0 >> 3) as u8 & 0x1f
    }

    /// Its function number in the device: 0 to 7.
    pub const fn function(self) -> u8 {
        self.0 as u8 & 7
    }

    /// Offset of the function's configuration space from the start of an enhanced configuration access mechanism
    /// (ECAM) that begins with bus 0, in bytes.
    pub const fn ecam_offset(self) -> u64 {
        (self.0 as u64) << 12
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0000:{:02x}:{:02x}.{:x}", self.bus(), self.device(), self.function())
    }
}

impl FromStr for Address {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Address, ParseError> {
        fn hex(text: &str, digits: usize) -> Result<u16, ParseError> {
            if text.len() != digits || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(ParseError::Form);
            }
            u16::from_str_radix(text, 16).map_err(|_| ParseError::Form)
        }
        let (rest, function) = text.rsplit_once('.').ok_or(ParseError::Form)?;
        let (rest, device) = rest.rsplit_once(':').ok_or(ParseError::Form)?;
        let (segment, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
        let (segment, bus, device, function) = (hex(segment, 4)?, hex(bus, 2)?, hex(device, 2)?, hex(function, 1)?);
        if segment != 0 {
            return Err(ParseError::Segment);
        }
        if device > 0x1f || function > 7 {
            return Err(ParseError::Range);
        }
        Ok(Address(bus << 8 | device << 3 | function))
    }
}
