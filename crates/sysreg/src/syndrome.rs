//! Exception syndromes: decoding of `ESR_EL2`, and encoding of `ESR_EL1` for injected exceptions. Arm
//! ARM, "ESR_EL2, Exception Syndrome Register (EL2)".

pub use abort::{DataAbort, Fault, FaultKind, InstructionAbort};
pub use class::Ec;
pub use trap::{MsrIss, WfIss, WfKind};

pub mod aarch32;
mod abort;
mod class;
mod trap;

const EC_SHIFT: u32 = 26;
const IL: u64 = 1 << 25;
const ISS_MASK: u64 = IL - 1;

/// An exception syndrome in `ESR_EL2`'s format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Esr(pub u64);

impl Esr {
    /// The exception class.
    #[inline]
    pub const fn ec(self) -> Ec {
        Ec::new((self.0 >> EC_SHIFT) as u8)
    }

    /// The instruction specific syndrome, 25 bits. Its meaning depends on the class.
    #[inline]
    pub const fn iss(self) -> u32 {
        (self.0 & ISS_MASK) as u32
    }

    /// Instruction length: whether the trapped instruction has 32 bits, not 16.
    #[inline]
    pub const fn il(self) -> bool {
        self.0 & IL != 0
    }

    /// The size of the trapped instruction in bytes: 4 or 2.
    #[inline]
    pub const fn instruction_bytes(self) -> u64 {
        2 + (self.0 >> 24 & 2)
    }

    /// The ISS of [`Ec::MSR`].
    #[inline]
    pub const fn msr(self) -> MsrIss {
        MsrIss::from_bits(self.iss())
    }

    /// The ISS of [`Ec::DATA_ABORT_LOWER`].
    #[inline]
    pub const fn data_abort(self) -> DataAbort {
        DataAbort::from_bits(self.iss())
    }

    /// The ISS of [`Ec::INSTRUCTION_ABORT_LOWER`].
    #[inline]
    pub const fn instruction_abort(self) -> InstructionAbort {
        InstructionAbort::from_bits(self.iss())
    }

    /// The ISS of [`Ec::WFX`].
    #[inline]
    pub const fn wfx(self) -> WfIss {
        WfIss::from_bits(self.iss())
    }

    /// The immediate of an `HVC`, `SMC` or `SVC` instruction.
    #[inline]
    pub const fn immediate(self) -> u16 {
        self.0 as u16
    }
}

/// Returns `ESR_EL1` for an undefined instruction. `il` is the trapped instruction's.
#[inline]
pub const fn undefined(il: bool) -> u64 {
    (Ec::UNKNOWN.bits() as u64) << EC_SHIFT | if il { IL } else { 0 }
}

/// The origin of an injected abort, as EL1 sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// EL0.
    LowerEl,
    /// EL1 itself.
    SameEl,
}

/// Returns `ESR_EL1` for a synchronous external abort on a load (`write` false) or store, not on a
/// translation table walk: the answer to an access to an unassigned address. `FAR_EL1` must hold
/// the faulting virtual address.
pub const fn external_data_abort(origin: Origin, write: bool) -> u64 {
    let class = match origin {
        Origin::LowerEl => Ec::DATA_ABORT_LOWER,
        Origin::SameEl => Ec::DATA_ABORT_SAME,
    };
    let iss = DataAbort::new().with_dfsc(Fault::EXTERNAL.bits()).with_wnr(write);
    // IL is 1 for a data abort without a valid instruction syndrome.
    (class.bits() as u64) << EC_SHIFT | IL | iss.into_bits() as u64
}

/// Returns `ESR_EL1` for a synchronous external abort on an instruction fetch. `FAR_EL1` must hold
/// the faulting virtual address.
pub const fn external_instruction_abort(origin: Origin) -> u64 {
    let class = match origin {
        Origin::LowerEl => Ec::INSTRUCTION_ABORT_LOWER,
        Origin::SameEl => Ec::INSTRUCTION_ABORT_SAME,
    };
    let iss = InstructionAbort::new().with_ifsc(Fault::EXTERNAL.bits());
    (class.bits() as u64) << EC_SHIFT | IL | iss.into_bits() as u64
}

#[cfg(test)]
mod tests;
