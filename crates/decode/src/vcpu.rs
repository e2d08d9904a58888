//! The processor whose instruction is emulated.

use crate::{OtherRegisters, Segment, SegmentName, Width};
use stile_walk::PageFault;

/// An exception for the guest, in place of the instruction's effect. Nothing that the guest sees has changed,
/// but for what a repeated string instruction had already done.
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
    /// #TS of a selector, which is without its RPL.
    InvalidTask(u16),
    /// #NP, as above.
    NotPresent(u16),
    /// #SS, as above.
    StackSegment(u16),
    /// #GP, as above.
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

/// Why memory is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// To use it.
    Use,
    /// To write it back changed: what may not be written must fault now.
    Modify,
}

/// What an instruction needs of its processor. Each value is asked for only when the instruction needs it, as
/// some are dear to read.
pub trait Vcpu: OtherRegisters {
    /// The general register of this encoding, 0 (RAX) to 15 (R15); 4 is RSP.
    fn register(&self, index: u8) -> u64;

    /// Writes all 64 bits of a general register.
    fn set_register(&mut self, index: u8, value: u64);

    /// RIP of the instruction.
    fn rip(&self) -> u64;

    /// RFLAGS.
    fn flags(&self) -> u64;

    /// Writes RFLAGS.
    fn set_flags(&mut self, flags: u64);

    /// A segment's base address alone.
    fn segment_base(&self, name: SegmentName) -> u64;

    /// All of a segment register. Not asked for in 64-bit mode.
    fn segment(&self, name: SegmentName) -> Segment;

    /// Is this a linear address of the mode that the processor is in?
    fn canonical(&self, linear: u64) -> bool;

    /// Reads a device at a guest-physical address. Bits above `width` are ignored.
    fn device_read(&mut self, address: u64, width: Width) -> u64;

    /// Writes a device; `value` is zero above `width`.
    fn device_write(&mut self, address: u64, width: Width, value: u64);

    /// Whether the exit was for a port, to which the processor has checked the right, as nothing here does. If not, INS and OUTS end in
    /// [`Outcome::Changed`](crate::Outcome::Changed).
    fn may_use_ports(&self) -> bool {
        true
    }

    /// IN, as INS does it: reads a port. The default is a machine without any.
    fn port_read(&mut self, _port: u16, _width: Width) -> u64 {
        u64::MAX
    }

    /// OUT, as OUTS does it; `value` is zero above `width`.
    fn port_write(&mut self, _port: u16, _width: Width, _value: u64) {}

    /// Reads what is at a linear address, memory or device, with the instruction's privilege. May cross a page.
    fn load(&mut self, linear: u64, width: Width, intent: Intent) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.load_bytes(linear, bytes.get_mut(..width.bytes() as usize).unwrap_or_default(), intent)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes at a linear address, memory or device. May cross a page: writes all or faults.
    fn store(&mut self, linear: u64, width: Width, value: u64) -> Result<(), Fault> {
        self.store_bytes(linear, value.to_le_bytes().get(..width.bytes() as usize).unwrap_or_default())
    }

    /// [`load`](Self::load) of up to 32 bytes.
    fn load_bytes(&mut self, linear: u64, bytes: &mut [u8], intent: Intent) -> Result<(), Fault>;

    /// [`store`](Self::store) of up to 32 bytes.
    fn store_bytes(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Faults if [`store_bytes`](Self::store_bytes) would: asked before something is done that can't be undone.
    fn check_store(&mut self, linear: u64, bytes: u64) -> Result<(), Fault>;
}
