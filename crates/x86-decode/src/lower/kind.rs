//! Classification of `iced_x86`'s operand kinds, and translation of its segment registers.

use crate::SegmentName;
use iced_x86::{OpKind, Register};

/// Whether an operand of this kind is in memory. `MemorySegDI` and its wider forms are left out: only MASKMOVQ and
/// MASKMOVDQU have them, which are not emulated.
pub(super) const fn is_memory(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Memory
            | OpKind::MemorySegSI
            | OpKind::MemorySegESI
            | OpKind::MemorySegRSI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI
    )
}

/// Returns the segment of a segment register; `None` for any other register.
pub(super) const fn segment(register: Register) -> Option<SegmentName> {
    Some(match register {
        Register::ES => SegmentName::Es,
        Register::CS => SegmentName::Cs,
        Register::SS => SegmentName::Ss,
        Register::DS => SegmentName::Ds,
        Register::FS => SegmentName::Fs,
        Register::GS => SegmentName::Gs,
        _ => return None,
    })
}
