//! Interrupt remapping ("Interrupt Remapping Tables"): a function's message names an entry of its table, which has the vector and
//! the CPU. So a function, which may write anything to the messages' addresses by DMA, causes only its own interrupts.

/// Number of entries of a table. A message's data has 11 bits of index. QEMU (10.0) does not compare them to the table's length, so
/// tables have all entries.
pub const MESSAGES: usize = 1 << 11;

/// Lowest physical address of messages.
const MESSAGE_ADDRESS: u32 = 0xfee0_0000;

/// An entry in the 32-bit format, for local APICs with IDs below 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemappingEntry(pub u32);

impl RemappingEntry {
    /// Aborts the interrupt, and logs nothing (SupIOPF).
    pub const BLOCKED: RemappingEntry = RemappingEntry(1 << 1);

    /// A fixed, edge-triggered interrupt with a vector, for the local APIC with an ID in physical mode. `None` if the format has no
    /// such ID.
    pub const fn fixed(vector: u8, apic: u32) -> Option<RemappingEntry> {
        const VALID: u32 = 1 << 0;
        // 255 is all local APICs.
        if apic >= 0xff {
            return None;
        }
        Some(RemappingEntry(VALID | apic << 8 | (vector as u32) << 16))
    }
}

/// Address and data of the message that uses an entry: an index below 256 leaves the delivery mode, the bits above, at fixed.
pub const fn message(index: u8) -> (u32, u32) {
    (MESSAGE_ADDRESS, index as u32)
}
