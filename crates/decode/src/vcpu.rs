//! The processor whose instruction is emulated.

use crate::{Segment, SegmentName, Width};
use stile_walk::PageFault;

/// An exception for the guest, in place of the instruction's effect. Nothing that the guest sees has changed,
/// but for what a repeated string instruction had already done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// #UD.
    InvalidOpcode,
    /// #GP(0).
    Protection,
    /// #SS(0).
    Stack,
    /// #PF.
    Page(PageFault),
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
pub trait Vcpu {
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

    /// Whether the exit was for a port, to which the processor has checked the right, as nothing here does. If not, INS and OUTS do nothing yet:
    /// code was changed meanwhile, and the processor is to look at it again.
    fn may_use_ports(&self) -> bool {
        true
    }

    /// IN, as INS does it: reads a port. The default is a machine without any.
    fn port_read(&mut self, _port: u16, _width: Width) -> u64 {
        u64::MAX
    }

    /// OUT, as OUTS does it; `value` is zero above `width`.
    fn port_write(&mut self, _port: u16, _width: Width, _value: u64) {}

    /// Faults if [`store`](Self::store) would: asked before something is read that can't be read again.
    fn check_store(&mut self, _linear: u64, _width: Width) -> Result<(), Fault> {
        Ok(())
    }

    /// Reads what is at a linear address, memory or device, with the instruction's privilege. May cross a page.
    fn load(&mut self, linear: u64, width: Width, intent: Intent) -> Result<u64, Fault>;

    /// Writes at a linear address, memory or device. May cross a page: writes all or faults.
    fn store(&mut self, linear: u64, width: Width, value: u64) -> Result<(), Fault>;
}
