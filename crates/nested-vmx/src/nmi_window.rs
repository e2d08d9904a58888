//! The window in which a pending NMI can be delivered.

use crate::controls::primary;

/// Blocking by STI ("Guest Non-Register State").
const STI: u64 = 1;

/// The primary control whose exit reports that a pending NMI may be deliverable. `interruptibility`: the guest's state;
/// `injects`: the next entry injects another event, which ends blocking by STI.
///
/// STI may block an NMI, and the processor refuses to inject one then; but whether it also blocks the exit of an NMI window
/// depends on the processor ("VM-Entry Checks on Guest Non-Register State", "Other Causes of VM Exits"). On one that does not
/// block it, a guest would exit again and again without executing an instruction. An interrupt window opens
/// after the next instruction, unless that clears RFLAGS.IF; then the NMI is delivered after the next exit whose handler delivers
/// interrupts.
pub const fn nmi_window(interruptibility: u64, injects: bool) -> u32 {
    if interruptibility & STI != 0 && !injects { primary::INTERRUPT_WINDOW } else { primary::NMI_WINDOW }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOV_SS: u64 = 1 << 1;
    const NMI: u64 = 1 << 3;

    #[test]
    fn a_window_that_sti_need_not_block_is_not_used_behind_sti() {
        for blocked in [0, MOV_SS, NMI, MOV_SS | NMI] {
            assert_eq!(nmi_window(blocked, false), primary::NMI_WINDOW);
            assert_eq!(nmi_window(blocked | STI, false), primary::INTERRUPT_WINDOW);
            assert_eq!(nmi_window(blocked | STI, true), primary::NMI_WINDOW);
        }
    }
}
