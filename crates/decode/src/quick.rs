//! What drivers do to devices most, in a form of its own that takes a few instructions to follow.

use crate::Width;
use crate::decoded::{Base, Decoded, Operation, Source};

/// MOV of 32 bits between a register and the device at the address of the exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quick {
    /// What the device says goes to the general register of this number, below 16, whose upper half is cleared.
    Load(usize),
    /// This goes to the device.
    Store(u32),
}

/// The form: an address of 64 bits made from a displacement and perhaps a register, in a segment without a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    kind: Kind,
    /// The address's register; with none of them, what `base_mask` makes of it is 0.
    base: u8,
    register: u8,
    base_mask: u64,
    /// The registers, a bit each; or [`NO_FORM`].
    registers: u32,
}

/// In place of registers: the instruction has no such form.
const NO_FORM: u32 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Load,
    Store,
    StoreImmediate,
}

impl Form {
    pub(crate) const NONE: Self = Self { kind: Kind::Load, base: 0, register: 0, base_mask: 0, registers: NO_FORM };

    /// That of an instruction.
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
    /// What the instruction does, if that is to load or store 32 bits at the guest-physical address `exit`, and it needs none of the
    /// registers `without`, a bit each. `general` are the general registers by number; those `without` are not looked at.
    #[inline]
    pub fn quick(&self, general: &[u64; 16], without: u16, exit: u64) -> Option<Quick> {
        let Form { kind, base, register, base_mask, registers } = self.form;
        let linear = self.displacement.wrapping_add(general[usize::from(base & 15)] & base_mask);
        // The same place in a page, and aligned: it can't cross into another.
        if registers & (without as u32 | NO_FORM) != 0 || (linear ^ exit) & 0xfff | exit & 3 != 0 {
            return None;
        }
        let register = usize::from(register & 15);
        Some(match (kind, self.source) {
            (Kind::Load, _) => Quick::Load(register),
            (Kind::StoreImmediate, Source::Immediate(value)) => Quick::Store(value as u32),
            _ => Quick::Store(general[register] as u32),
        })
    }
}
