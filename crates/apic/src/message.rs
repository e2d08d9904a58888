//! Interrupt messages: from the ICR, redirection entries and MSIs.

/// Delivery mode, with its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Delivery {
    Fixed = 0,
    LowestPriority = 1,
    Smi = 2,
    Nmi = 4,
    Init = 5,
    Startup = 6,
    /// ExtINT: the 8259 supplies the vector.
    External = 7,
}

impl Delivery {
    /// Decodes bits 10:8 of an ICR, redirection entry, local vector or MSI data; `None` if reserved.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        Some(match bits >> 8 & 7 {
            0 => Self::Fixed,
            1 => Self::LowestPriority,
            2 => Self::Smi,
            4 => Self::Nmi,
            5 => Self::Init,
            6 => Self::Startup,
            7 => Self::External,
            _ => return None,
        })
    }

    /// Decodes the delivery mode of a device's message ("Redirection Table Entry", "Message Data Register
    /// Format"): startup is reserved.
    const fn from_device_bits(bits: u64) -> Option<Self> {
        match Self::from_bits(bits) {
            Some(Self::Startup) => None,
            delivery => delivery,
        }
    }

    /// Returns the bits that [`from_bits`](Self::from_bits) reads.
    pub(crate) const fn bits(self) -> u32 {
        (self as u32) << 8
    }
}

/// The destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sender.
    Own,
    /// All, including the sender.
    All,
    /// All but the sender.
    Others,
    /// The processor with this APIC ID.
    Physical(u32),
    /// Logical destination: a mask of eight bits by xAPIC rules, or 32 bits by x2APIC rules.
    Logical {
        /// The mask.
        mask: u32,
        /// Whether x2APIC rules apply.
        wide: bool,
    },
}

/// An interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The destination.
    pub destination: Destination,
    /// The delivery mode.
    pub delivery: Delivery,
    /// The vector; for SIPI the start page.
    pub vector: u8,
    /// Whether it is level-triggered.
    pub level: bool,
}

impl Message {
    /// The message of an ICR write. `None` for ignored writes: INIT level de-assert (obsolete), reserved
    /// delivery modes, and invalid combinations ("Valid Combinations for the Local xAPIC Interrupt Command
    /// Register").
    pub(crate) const fn from_icr(icr: u64, wide: bool) -> Option<Self> {
        const ASSERT: u64 = 1 << 14;
        const LEVEL: u64 = 1 << 15;
        let Some(delivery) = Delivery::from_bits(icr) else { return None };
        let shorthand = icr >> 18 & 3;
        if !matches!(delivery, Delivery::Fixed) {
            let includes_sender = matches!(shorthand, 1 | 2);
            if includes_sender
                || matches!(delivery, Delivery::External)
                || matches!(delivery, Delivery::Init) && icr & (ASSERT | LEVEL) == LEVEL
            {
                return None;
            }
        }
        let destination = match shorthand {
            1 => Destination::Own,
            2 => Destination::All,
            3 => Destination::Others,
            _ if wide => address((icr >> 32) as u32, true, icr),
            _ => address((icr >> 56) as u32, false, icr),
        };
        Some(Self { destination, delivery, vector: icr as u8, level: false })
    }

    /// A fixed interrupt or NMI with an ICR's low half, to the APIC with this ID; `None` for other modes, and
    /// for an illegal vector.
    pub const fn fixed_or_nmi(icr: u64, id: u32) -> Option<Self> {
        let delivery = match Delivery::from_bits(icr) {
            Some(Delivery::Fixed) if icr as u8 >= 16 => Delivery::Fixed,
            Some(Delivery::Nmi) => Delivery::Nmi,
            _ => return None,
        };
        Some(Self { destination: Destination::Physical(id), delivery, vector: icr as u8, level: false })
    }

    /// The message of a redirection entry.
    pub(crate) const fn from_redirection(entry: u64) -> Option<Self> {
        let Some(delivery) = Delivery::from_device_bits(entry) else { return None };
        // Bits 55:49 extend a physical destination to 15 bits ("Extended Destination ID"); otherwise they are 0.
        let more = if entry & 1 << 11 == 0 { (entry >> 49 & 0x7f) << 8 } else { 0 };
        let destination = address((entry >> 56 | more) as u32, false, entry);
        Some(Self { destination, delivery, vector: entry as u8, level: entry & 1 << 15 != 0 })
    }

    /// Decodes a device's write of `data` to `address` as a message-signalled interrupt ("Message Signalled
    /// Interrupts"); `None` if it is not one. The redirection hint is treated like lowest-priority delivery:
    /// the caller arbitrates.
    pub const fn from_msi(address: u64, data: u32) -> Option<Self> {
        if address >> 20 != 0xfee {
            return None;
        }
        let Some(delivery) = Delivery::from_device_bits(data as u64) else { return None };
        let id = (address >> 12) as u32 & 0xff;
        let destination = destination(id, false, address & 1 << 2 != 0);
        Some(Self { destination, delivery, vector: data as u8, level: data & 1 << 15 != 0 })
    }
}

/// Decodes the destination of an ID with the mode in bit 11.
const fn address(id: u32, wide: bool, mode: u64) -> Destination {
    destination(id, wide, mode & 1 << 11 != 0)
}

/// All ones is a broadcast in both modes, for any logical IDs.
const fn destination(id: u32, wide: bool, logical: bool) -> Destination {
    let everyone = if wide { u32::MAX } else { 0xff };
    if id == everyone {
        Destination::All
    } else if logical {
        Destination::Logical { mask: id, wide }
    } else {
        Destination::Physical(id)
    }
}

/// Effect of a received message on the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// None, or a notification is already outstanding.
    Nothing,
    /// [`LocalApic::pending`](crate::LocalApic::pending) may have changed, and the processor must be notified: a posted-interrupt
    /// notification is sufficient.
    Interrupt,
    /// As [`Interrupt`](Self::Interrupt), but a running guest must exit: the interrupt is level-triggered.
    Level,
    /// ExtINT: the 8259 has an interrupt for the processor.
    External,
    /// NMI.
    Nmi,
    /// SMI.
    Smi,
    /// INIT: the processor and this APIC ([`LocalApic::init`](crate::LocalApic::init)) are reset, and the processor waits for SIPI.
    Init,
    /// SIPI: a processor in wait-for-SIPI starts in real mode at this page.
    Startup(u8),
}
