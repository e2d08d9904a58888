//! Registers of a type 0 header, and their bits (PCI Local Bus Specification, 6.1 and 6.2).

/// Vendor ID; device ID above it.
pub const ID: u8 = 0x00;
/// Command; status above it.
pub const COMMAND: u8 = 0x04;
/// Revision and class code.
pub const CLASS: u8 = 0x08;
/// Cache line size, latency timer, header type, BIST.
pub const HEADER: u8 = 0x0c;
/// The first base address register.
pub const BAR0: u8 = 0x10;
/// Subsystem vendor ID and ID.
pub const SUBSYSTEM: u8 = 0x2c;
/// Offset of the first capability.
pub const CAPABILITIES: u8 = 0x34;
/// Expansion ROM base address of a type 0 header.
pub const ROM: u8 = 0x30;
/// Expansion ROM base address of a bridge.
pub const BRIDGE_ROM: u8 = 0x38;
/// Interrupt line and pin.
pub const INTERRUPT: u8 = 0x3c;

/// Command: memory decoding.
pub const MEMORY: u32 = 1 << 1;
/// Command: bus mastering.
pub const BUS_MASTER: u32 = 1 << 2;
/// Command: parity error response.
pub const PARITY: u32 = 1 << 6;
/// Command: SERR#.
pub const SERR: u32 = 1 << 8;
/// Command: no INTx interrupts.
pub const INTX_DISABLE: u32 = 1 << 10;
/// Status: there is a list of capabilities.
pub const HAS_CAPABILITIES: u32 = 1 << 20;
/// MSI-X message control, in the upper half of the capability's first register: enable.
pub const MSIX_ENABLE: u32 = 1 << 31;
/// MSI-X message control: all vectors are masked.
pub const MSIX_MASK_ALL: u32 = 1 << 30;
