//! Event delivery through the IDT, and faults during it.

use crate::Fault;

/// The event whose delivery an exit interrupted ("IDT-Vectoring Information Field").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub u32);

/// An exception to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Its vector.
    pub vector: u8,
    /// Its error code, if it has one.
    pub code: Option<u32>,
}

/// Exception classes for double faults ("Interrupt 8—Double Fault Exception").
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Benign,
    Contributory,
    Page,
    Double,
}

impl Class {
    const fn of(vector: u8) -> Self {
        match vector {
            0 | 10..=13 | 21 => Self::Contributory,
            14 | 20 => Self::Page,
            8 => Self::Double,
            _ => Self::Benign,
        }
    }
}

const NMI: u32 = 2;
const HARDWARE_EXCEPTION: u32 = 3;
const SOFTWARE_INTERRUPT: u32 = 4;
const PRIVILEGED_SOFTWARE_EXCEPTION: u32 = 5;
const SOFTWARE_EXCEPTION: u32 = 6;

impl Event {
    /// Decodes the field; none if it is not valid.
    pub const fn new(field: u64) -> Option<Self> {
        const VALID: u64 = 1 << 31;
        if field & VALID != 0 { Some(Self(field as u32)) } else { None }
    }

    const fn kind(self) -> u32 {
        self.0 >> 8 & 7
    }

    /// Whether it is a non-maskable interrupt.
    pub const fn is_nmi(self) -> bool {
        self.kind() == NMI
    }

    /// Whether a completed instruction caused it (INT n, INT3, INTO, INT1).
    pub const fn is_software(self) -> bool {
        matches!(self.kind(), SOFTWARE_INTERRUPT | PRIVILEGED_SOFTWARE_EXCEPTION | SOFTWARE_EXCEPTION)
    }

    /// Whether it has an error code.
    pub const fn has_code(self) -> bool {
        self.0 & 1 << 11 != 0
    }

    /// Bit 0 (EXT) of error codes of faults during its delivery: set unless it comes from INT n, INT3 or INTO.
    const fn is_external(self) -> bool {
        !matches!(self.kind(), SOFTWARE_INTERRUPT | SOFTWARE_EXCEPTION)
    }

    fn class(self) -> Class {
        if self.kind() == HARDWARE_EXCEPTION { Class::of(self.0 as u8) } else { Class::Benign }
    }
}

/// Returns the exception that results from a fault, during delivery of `event` if there is one; none for a triple fault.
pub fn follow(event: Option<Event>, fault: Fault) -> Option<Exception> {
    const DOUBLE_FAULT: Exception = Exception { vector: 8, code: Some(0) };
    let alone = Exception { vector: fault.vector(), code: fault.code() };
    let Some(event) = event else { return Some(alone) };
    let second = Class::of(alone.vector);
    match (event.class(), second) {
        (Class::Double, Class::Contributory | Class::Page) => return None,
        (Class::Page, Class::Contributory | Class::Page) | (Class::Contributory, Class::Contributory) => return Some(DOUBLE_FAULT),
        _ => {}
    }
    // A page fault's error code has no EXT bit.
    let external = u32::from(event.is_external() && second != Class::Page);
    Some(Exception { code: alone.code.map(|code| code | external), ..alone })
}
