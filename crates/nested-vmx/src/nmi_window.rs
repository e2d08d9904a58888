//! The window in which a pending NMI can be delivered.

use crate::controls::primary;

/// Blocking by STI ("Guest Non-Register State").
const STI: u64 = 1;

/// The primary control whose exit reports that a pending NMI may be deliverable. `interruptibility`: the guest's state;
/// `injects`: the next entry injects another event, which ends blocking by STI; `steps`: the processor has the monitor trap flag.
///
/// STI may block an NMI, and the processor refuses to inject one then; but whether it also blocks the exit of an NMI window
/// depends on the processor ("VM-Entry Checks on Guest Non-Register State", "Other Causes of VM Exits"). On one that does not
/// block it, a guest would exit again and again without executing an instruction. The monitor trap flag exits after the next
/// instruction. On a processor without it an interrupt window opens then, unless that instruction clears RFLAGS.IF; the NMI is
/// delivered after the next exit whose handler delivers interrupts in that case.
pub const fn nmi_window(interruptibility: u64, injects: bool, steps: bool) -> u32 {
    if interruptibility & STI == 0 || injects {
        primary::NMI_WINDOW
    } else if steps {
        primary::MONITOR_TRAP
    } else {
        primary::INTERRUPT_WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOV_SS: u64 = 1 << 1;
    const NMI: u64 = 1 << 3;

    #[test]
    fn a_window_that_sti_need_not_block_is_not_used_behind_sti() {
        for blocked in [0, MOV_SS, NMI, MOV_SS | NMI] {
            for steps in [false, true] {
                assert_eq!(nmi_window(blocked, false, steps), primary::NMI_WINDOW);
                assert_eq!(nmi_window(blocked | STI, true, steps), primary::NMI_WINDOW);
            }
            assert_eq!(nmi_window(blocked | STI, false, false), primary::INTERRUPT_WINDOW);
            assert_eq!(nmi_window(blocked | STI, false, true), primary::MONITOR_TRAP);
        }
    }
}
