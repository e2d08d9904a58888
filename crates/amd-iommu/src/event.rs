//! Events ("Event Logging").

use stile_pci::Access;

/// Cause of an event: a request that was stopped, or a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IO_PAGE_FAULT of a request for memory.
    PageFault,
    /// IO_PAGE_FAULT of an interrupt.
    Interrupt,
    /// INVALID_DEVICE_REQUEST: a request that no function may make.
    Request,
    /// Number of an event that no function causes: Stile or the IOMMU is at fault.
    Failure(u8),
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its cause.
    pub kind: Kind,
    /// Routing ID of the function that caused it.
    pub device: u16,
    /// The direction, which the IOMMU knows only of pages that are mapped.
    pub access: Option<Access>,
    /// The input address of a page fault.
    pub address: u64,
}

/// Addresses of interrupts, in units of 1 MiB.
const MESSAGES: u64 = 0xfee;

impl Event {
    /// Number of an event. 0 is none: the entry is not written yet.
    pub const fn code(words: [u64; 2]) -> u8 {
        (words[0] >> 60) as u8
    }

    /// Decodes a log entry.
    pub const fn decode(words: [u64; 2]) -> Event {
        const INTERRUPT: u64 = 1 << 51;
        const PRESENT: u64 = 1 << 52;
        const WRITE: u64 = 1 << 53;
        let (flags, address) = (words[0], words[1]);
        let kind = match Event::code(words) {
            // QEMU (10.0) sets the flag for all requests.
            2 if flags & INTERRUPT != 0 && address >> 20 == MESSAGES => Kind::Interrupt,
            2 => Kind::PageFault,
            8 => Kind::Request,
            code => Kind::Failure(code),
        };
        let access = match kind {
            Kind::PageFault if flags & PRESENT != 0 => Some(if flags & WRITE != 0 { Access::Write } else { Access::Read }),
            _ => None,
        };
        Event { kind, device: flags as u16, access, address }
    }
}
