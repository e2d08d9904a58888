//! Interrupt messages: from the ICR, from redirection entries, from MSIs.

/// How a message is delivered, with the mode's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Delivery {
    Fixed = 0,
    LowestPriority = 1,
    Smi = 2,
    Nmi = 4,
    Init = 5,
    Startup = 6,
    /// From the 8259, which itself tells the vector.
    External = 7,
}

impl Delivery {
    /// Bits 10:8 of an ICR, a redirection entry, a local vector or MSI data; None if reserved.
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

    /// The same of a message that no processor sends ("Redirection Table Entry", "Message Data Register Format"): it starts none.
    const fn from_device_bits(bits: u64) -> Option<Self> {
        match Self::from_bits(bits) {
            Some(Self::Startup) => None,
            delivery => delivery,
        }
    }

    /// The reverse of [`from_bits`](Self::from_bits).
    pub(crate) const fn bits(self) -> u32 {
        (self as u32) << 8
    }
}

/// To whom a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sender.
    Own,
    /// All, the sender among them.
    All,
    /// All others.
    Others,
    /// The one of this APIC ID.
    Physical(u32),
    /// Those that a mask of eight bits names, by xAPIC rules; or of 32 bits, by x2APIC rules.
    Logical {
        /// The mask.
        mask: u32,
        /// It is an x2APIC's.
        wide: bool,
    },
}

/// An interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// To whom.
    pub destination: Destination,
    /// How.
    pub delivery: Delivery,
    /// The vector; of a startup message the page to start in.
    pub vector: u8,
    /// Level-triggered.
    pub level: bool,
}

impl Message {
    /// What an ICR write sends; None for what is ignored: an INIT level de-assert, which modern processors don't know,
    /// reserved delivery modes, and combinations that are not valid ("Valid Combinations for the Local xAPIC Interrupt Command
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

    /// A fixed interrupt or an NMI, as an ICR's low half has it, to the APIC of this ID; None for all else, and for a vector that can't be sent.
    pub const fn fixed_or_nmi(icr: u64, id: u32) -> Option<Self> {
        let delivery = match Delivery::from_bits(icr) {
            Some(Delivery::Fixed) if icr as u8 >= 16 => Delivery::Fixed,
            Some(Delivery::Nmi) => Delivery::Nmi,
            _ => return None,
        };
        Some(Self { destination: Destination::Physical(id), delivery, vector: icr as u8, level: false })
    }

    /// What a redirection entry sends.
    pub(crate) const fn from_redirection(entry: u64) -> Option<Self> {
        let Some(delivery) = Delivery::from_device_bits(entry) else { return None };
        let destination = address((entry >> 56) as u32, false, entry);
        Some(Self { destination, delivery, vector: entry as u8, level: entry & 1 << 15 != 0 })
    }

    /// What a device's write of `data` to `address` means, if it is a message-signalled interrupt ("Message Signalled
    /// Interrupts"). The redirection hint is taken as lowest-priority delivery is: the caller arbitrates.
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

/// Destination of an ID whose mode is in bit 11.
const fn address(id: u32, wide: bool, mode: u64) -> Destination {
    destination(id, wide, mode & 1 << 11 != 0)
}

/// All ones are everyone in both modes, whatever their logical IDs are.
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
