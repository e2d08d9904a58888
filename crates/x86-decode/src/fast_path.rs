//! The fast path: the 32-bit moves that drivers use most, evaluated in a few instructions.

use crate::Width;
use crate::decoded::{Base, Decoded};
use crate::fast_form::{Form, Kind, NO_FORM};
use crate::operation::{Operation, Source};

/// A 32-bit MOV between a register and the device at the exit's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastAccess {
    /// Load the device's value into the general register of this number (below 16), and clear its upper half.
    Load(usize),
    /// Store this value to the device.
    Store(u32),
}

impl Form {
    /// Returns the form of an instruction.
    pub(crate) fn of(decoded: &Decoded) -> Self {
        Self::find(decoded).unwrap_or(Self::NONE)
    }

    fn find(decoded: &Decoded) -> Option<Self> {
        let simple = decoded.index.is_none() && decoded.address_width == Width::Qword && !decoded.has_base(decoded.segment);
        if !simple || decoded.width != Width::Dword || decoded.register_width != Width::Dword {
            return None;
        }
        let (base, base_mask) = match decoded.base {
            Base::Register(register) => (register & 15, u64::MAX),
            Base::None => (0, 0),
            Base::Rip => return None,
        };
        let (kind, register) = match (decoded.operation, decoded.source) {
            (Operation::LoadPart, Source::Register(register)) => (Kind::Load, Some(register & 15)),
            (Operation::Store, Source::Register(register)) => (Kind::Store, Some(register & 15)),
            (Operation::Store, Source::Immediate(_)) => (Kind::StoreImmediate, None),
            _ => return None,
        };
        let registers = base_mask as u32 & 1 << base | register.map_or(0, |register| 1 << register);
        Some(Self { kind, base, register: register.unwrap_or(0), base_mask, registers })
    }
}

impl Decoded {
    /// Returns the instruction's effect, if it loads or stores 32 bits at the guest-physical address `exit` and uses
    /// none of the registers in the bitmap `without`. `general` holds the general registers by number; those in
    /// `without` need not be valid.
    #[inline]
    pub fn fast_path(&self, general: &[u64; 16], without: u16, exit: u64) -> Option<FastAccess> {
        let Form { kind, base, register, base_mask, registers } = self.form;
        let linear = self.displacement.wrapping_add(general[usize::from(base & 15)] & base_mask);
        // The page offsets agree, and the operand is aligned, so it does not cross a page.
        if registers & (without as u32 | NO_FORM) != 0 || (linear ^ exit) & 0xfff | exit & 3 != 0 {
            return None;
        }
        let register = usize::from(register & 15);
        Some(match (kind, self.source) {
            (Kind::Load, _) => FastAccess::Load(register),
            (Kind::StoreImmediate, Source::Immediate(value)) => FastAccess::Store(value as u32),
            _ => FastAccess::Store(general[register] as u32),
        })
    }
}
