//! The posted-interrupt descriptor ("Posted-Interrupt Descriptor"): 64 bytes, of which software may change those below
//! atomically only while the processor may use it.

/// Bytes, and the alignment that hardware asks for. Bochs 3.0 asks for 4096.
pub const SIZE: usize = 64;

/// Byte offset of the 256 posted-interrupt requests, one bit for each vector.
pub const REQUESTS: usize = 0;

/// Byte offset of the 64-bit word that holds the rest.
pub const CONTROL: usize = 32;

/// In [`CONTROL`]: a notification is outstanding.
pub const OUTSTANDING: u64 = 1 << 0;

/// In [`CONTROL`]: suppress notifications.
pub const SUPPRESS: u64 = 1 << 1;

/// [`CONTROL`] of a descriptor whose notifications go as `vector` to the physical processor with this APIC ID: the
/// ID itself with a physical x2APIC, in bits 15:8 of it with an xAPIC.
pub const fn control(vector: u8, destination: u32) -> u64 {
    (vector as u64) << 16 | (destination as u64) << 32
}
