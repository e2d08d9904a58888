//! Conditions ("EFLAGS Condition Codes").

use crate::rflags::{CF, OF, PF, SF, ZF};

/// A condition by its encoding in opcodes: bit 0 negates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition(pub u8);

impl Condition {
    /// Whether it holds with these flags.
    pub(crate) const fn holds(self, flags: u64) -> bool {
        let less = (flags & SF != 0) != (flags & OF != 0);
        let holds = match self.0 >> 1 & 7 {
            0 => flags & OF != 0,
            1 => flags & CF != 0,
            2 => flags & ZF != 0,
            3 => flags & (CF | ZF) != 0,
            4 => flags & SF != 0,
            5 => flags & PF != 0,
            6 => less,
            _ => less || flags & ZF != 0,
        };
        holds != (self.0 & 1 != 0)
    }
}
