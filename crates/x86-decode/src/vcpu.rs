//! The interface to the processor whose instruction is emulated.

use crate::{Fault, OtherRegisters, Segment, SegmentName, Width};

/// The purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// To use the value.
    Use,
    /// To modify and write it back: the read faults if the write would.
    Modify,
}

/// The processor state that instructions need. Each value is read only on demand, because some reads are expensive.
pub trait Vcpu: OtherRegisters {
    /// Reads the general register with this encoding, 0 (RAX) to 15 (R15); 4 is RSP.
    fn register(&self, index: u8) -> u64;

    /// Writes all 64 bits of a general register.
    fn set_register(&mut self, index: u8, value: u64);

    /// RIP of the instruction.
    fn rip(&self) -> u64;

    /// RFLAGS.
    fn flags(&self) -> u64;

    /// Writes RFLAGS.
    fn set_flags(&mut self, flags: u64);

    /// A segment's base address.
    fn segment_base(&self, name: SegmentName) -> u64;

    /// A whole segment register. Not used in 64-bit mode.
    fn segment(&self, name: SegmentName) -> Segment;

    /// Whether a linear address is canonical in the current mode.
    fn canonical(&self, linear: u64) -> bool;

    /// Reads a device at a guest-physical address. Bits above `width` are ignored.
    fn device_read(&mut self, address: u64, width: Width) -> u64;

    /// Writes a device; `value` is zero above `width`.
    fn device_write(&mut self, address: u64, width: Width, value: u64);

    /// Whether the exit was for this access to a port, so that the processor has checked the right to it. If not, INS and
    /// OUTS return [`Outcome::Changed`](crate::Outcome::Changed).
    fn may_use_port(&self, _port: u16, _width: Width, _is_input: bool) -> bool {
        true
    }

    /// Reads a port for INS. The default models a machine without ports.
    fn port_read(&mut self, _port: u16, _width: Width) -> u64 {
        u64::MAX
    }

    /// Writes a port for OUTS; `value` is zero above `width`.
    fn port_write(&mut self, _port: u16, _width: Width, _value: u64) {}

    /// Reads memory or a device at a linear address, with the instruction's privilege. May cross a page.
    fn load(&mut self, linear: u64, width: Width, intent: Intent) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.load_bytes(linear, bytes.get_mut(..width.bytes() as usize).unwrap_or_default(), intent)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes memory or a device at a linear address. May cross a page: writes everything or faults.
    fn store(&mut self, linear: u64, width: Width, value: u64) -> Result<(), Fault> {
        self.store_bytes(linear, value.to_le_bytes().get(..width.bytes() as usize).unwrap_or_default())
    }

    /// Reads up to 32 bytes, as [`load`](Self::load).
    fn load_bytes(&mut self, linear: u64, bytes: &mut [u8], intent: Intent) -> Result<(), Fault>;

    /// Writes up to 32 bytes, as [`store`](Self::store).
    fn store_bytes(&mut self, linear: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// Faults if [`store_bytes`](Self::store_bytes) would. Called before an irreversible effect.
    fn check_store(&mut self, linear: u64, bytes: u64) -> Result<(), Fault>;
}
