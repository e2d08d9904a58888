//! Kinds of operands and registers in the decoder's terms.

use crate::SegmentName;
use iced_x86::{OpKind, Register};

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
