//! The table from which `exit.S` answers CPUID.

use core::mem::offset_of;

use super::instructions::CpuidResult;

/// Number of leaves that the table can hold: leaf 0 and those that follow.
pub const LEAVES: usize = 32;

/// Constant answers.
#[repr(C)]
pub struct Table {
    /// Bit mask of the leaves that the table answers.
    present: u32,
    /// EAX, EBX, ECX and EDX.
    answers: [[u32; 4]; LEAVES],
}

/// Offset for `exit.S`.
pub const ANSWERS: usize = offset_of!(Table, answers);
const _: () = assert!(offset_of!(Table, present) == 0, "exit.S relies on it");

impl Table {
    /// Fills the table with the answers of the leaves in the mask `present`.
    pub fn new(present: u32, answer: impl Fn(u32) -> CpuidResult) -> Table {
        let answers = core::array::from_fn(|leaf| {
            if present >> leaf & 1 == 0 {
                return [0; 4];
            }
            let CpuidResult { eax, ebx, ecx, edx } = answer(leaf as u32);
            [eax, ebx, ecx, edx]
        });
        Table { present, answers }
    }
}
