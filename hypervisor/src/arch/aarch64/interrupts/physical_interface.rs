//! Group 1 of the physical CPU interface while EL1 uses it directly ([`super::direct`]).

use stile_vgic::{HostPriorities, Vmcr, record_active_priority};

use super::interface;
use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};

/// ICC_CTLR_EL1.CBPR.
const CTLR_CBPR: u64 = 1 << 0;

/// Copies the virtual CPU interface's group-1 state to the physical one, whose common registers (PMR, CTLR, DIR, RPR) trap.
pub fn hand_over(vmcr: Vmcr, priorities: HostPriorities) {
    if vmcr.common_binary_point() {
        write_sysreg!(ICC_BPR0_EL1, vmcr.binary_point(false));
    } else {
        write_sysreg!(ICC_BPR1_EL1, vmcr.binary_point(true));
    }
    mirror(vmcr, priorities);
    isb();
}

/// Copies the virtual CPU interface's state to the physical one, whose common registers will not trap. ICC_CTLR_EL1.CBPR
/// is clear (`direct::try_enter` requires it), and the guest may set it.
pub fn hand_over_all(vmcr: Vmcr) {
    write_sysreg!(ICC_BPR1_EL1, vmcr.binary_point(true));
    write_sysreg!(ICC_BPR0_EL1, vmcr.binary_point(false));
    write_sysreg!(ICC_CTLR_EL1, if vmcr.eoi_split() { gic::CTLR_EOI_MODE } else { 0 });
    // Not scaled below Stile's priorities as in `mirror`: the guest reads this register.
    write_sysreg!(ICC_PMR_EL1, u64::from(vmcr.priority_mask()));
    isb();
}

/// Applies a guest's trapped write of ICC_PMR_EL1 or ICC_CTLR_EL1 to the physical interface.
pub fn mirror(vmcr: Vmcr, priorities: HostPriorities) {
    let control = u64::from(vmcr.common_binary_point()) | if vmcr.eoi_split() { gic::CTLR_EOI_MODE } else { 0 };
    write_sysreg!(ICC_CTLR_EL1, control);
    // Stile's kick must never be masked; guests' interrupts have lower priorities.
    write_sysreg!(ICC_PMR_EL1, u64::from(priorities.of_guest(vmcr.priority_mask())));
}

/// Returns the virtual interface's state with the values of all registers that the guest may have written without a trap
/// while it had the physical one as [`hand_over_all`] left it.
pub fn all_written_to(vmcr: Vmcr) -> Vmcr {
    let control = read_sysreg!(ICC_CTLR_EL1);
    let vmcr = vmcr.with_control(control & CTLR_CBPR != 0, control & gic::CTLR_EOI_MODE != 0);
    written_to(vmcr.with_priority_mask(read_sysreg!(ICC_PMR_EL1) as u8))
}

/// Returns the virtual interface's state with the values of registers that the guest may have written without a trap while
/// it had the physical one as [`hand_over`] left it: ICC_BPR1_EL1, ICC_IGRPEN1_EL1.
pub fn written_to(vmcr: Vmcr) -> Vmcr {
    let vmcr = vmcr.with_group1(read_sysreg!(ICC_IGRPEN1_EL1) & 1 != 0);
    if vmcr.common_binary_point() { vmcr } else { vmcr.with_binary_point1(read_sysreg!(ICC_BPR1_EL1)) }
}

/// Clears all active priorities of this CPU's group 1, and returns them in the layout of ICH_AP1Rn_EL2, since that of
/// ICC_AP1Rn_EL1 is implementation-defined. `active`: bit mask of active SGIs and PPIs; `priority`: the priority at which
/// the guest acknowledged each.
pub fn drop_priorities(vmcr: Vmcr, priorities: HostPriorities, active: u32, priority: impl Fn(u32) -> u8) -> [u32; 4] {
    let shape = interface::shape();
    let mask = vmcr.group_priority_mask(true);
    let mut ap1r = [0; 4];
    // Writes of ICC_EOIR1_EL1 drop a priority without deactivation.
    write_sysreg!(ICC_CTLR_EL1, gic::CTLR_EOI_MODE | u64::from(vmcr.common_binary_point()));
    isb();
    // Active priorities are distinct, which bounds their number.
    for _ in 0..1 << shape.preemption_bits {
        let running = read_sysreg!(ICC_RPR_EL1) as u8;
        if running == 0xff {
            break;
        }
        let with_it = (0..32).find(|&intid| active >> intid & 1 != 0 && priorities.running(priority(intid), mask) == running);
        record_active_priority(&mut ap1r, with_it.map_or(running, |intid| priority(intid) & mask), shape.preemption_bits);
        // No active interrupt has this priority: the guest wrote ICC_AP1Rn_EL1. Cleared below.
        let Some(intid) = with_it else { break };
        gic::drop_priority(intid);
        isb();
    }
    clear_active_priorities(shape.preemption_bits);
    ap1r
}

/// Clears ICC_AP1Rn_EL1, of which 2^(bits - 5) registers exist.
fn clear_active_priorities(preemption_bits: u8) {
    write_sysreg!(ICC_AP1R0_EL1, 0);
    if preemption_bits >= 6 {
        write_sysreg!(ICC_AP1R1_EL1, 0);
    }
    if preemption_bits >= 7 {
        write_sysreg!(ICC_AP1R2_EL1, 0);
        write_sysreg!(ICC_AP1R3_EL1, 0);
    }
}

/// Reads ICC_RPR_EL1: the priority that is running, 0xff if none is.
pub fn running_priority() -> u64 {
    read_sysreg!(ICC_RPR_EL1) & 0xff
}
