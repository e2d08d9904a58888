//! Exceptions that an instruction raises.

use stile_x86_walk::PageFault;

/// An exception to raise in the guest instead of the instruction's effect. No guest-visible state has changed, except for elements that a
/// repeated string instruction has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// #DE.
    Divide,
    /// #UD.
    InvalidOpcode,
    /// #NM.
    DeviceNotAvailable,
    /// #GP(0).
    Protection,
    /// #SS(0).
    Stack,
    /// #PF.
    Page(PageFault),
    /// #MF.
    FloatingPoint,
    /// #AC(0).
    Alignment,
    /// #TS(selector), without RPL.
    InvalidTask(u16),
    /// #NP(selector), without RPL.
    NotPresent(u16),
    /// #SS(selector), without RPL.
    StackSegment(u16),
    /// #GP(selector), without RPL.
    Selector(u16),
}

impl Fault {
    /// The exception's vector.
    pub const fn vector(self) -> u8 {
        match self {
            Self::Divide => 0,
            Self::InvalidOpcode => 6,
            Self::DeviceNotAvailable => 7,
            Self::InvalidTask(_) => 10,
            Self::NotPresent(_) => 11,
            Self::Stack | Self::StackSegment(_) => 12,
            Self::Protection | Self::Selector(_) => 13,
            Self::Page(_) => 14,
            Self::FloatingPoint => 16,
            Self::Alignment => 17,
        }
    }

    /// Its error code, if it has one.
    pub const fn code(self) -> Option<u32> {
        match self {
            Self::Divide | Self::InvalidOpcode | Self::DeviceNotAvailable | Self::FloatingPoint => None,
            Self::Protection | Self::Stack | Self::Alignment => Some(0),
            Self::InvalidTask(selector) | Self::NotPresent(selector) | Self::StackSegment(selector) | Self::Selector(selector) => {
                Some(selector as u32)
            }
            Self::Page(fault) => Some(fault.code.0),
        }
    }
}

impl From<PageFault> for Fault {
    fn from(fault: PageFault) -> Self {
        Self::Page(fault)
    }
}
