//! The GIC's CPU interface: ICC system registers (GICv3 architecture, "AArch64 System register descriptions"), or their
//! equivalents of a GICv2 ([`gicc`]).

use crate::{gicc, instruction, machine, mrs, msr};

/// The INTID that IAR1 and HPPIR1 return if no interrupt is pending.
pub const SPURIOUS: u32 = 1023;
/// The running priority without active interrupts.
pub const IDLE: u64 = 0xFF;

/// Acknowledges the highest-priority pending group 1 interrupt.
pub fn iar1() -> u32 {
    if machine::is_gicv2() {
        return gicc::iar();
    }
    // Orders earlier accesses, such as a write to a GIC register, before the acknowledge, and the handler's
    // accesses after it.
    instruction!("dsb sy");
    let intid = mrs!("S3_0_C12_C12_0") as u32;
    instruction!("dsb sy");
    intid
}

/// Ends an interrupt: priority drop, and deactivation unless EOImode is 1.
pub fn eoir1(intid: u32) {
    if machine::is_gicv2() {
        return gicc::eoir(intid);
    }
    msr!("S3_0_C12_C12_1", u64::from(intid));
}

/// Deactivates an interrupt, with EOImode 1.
pub fn dir(intid: u32) {
    if machine::is_gicv2() {
        return gicc::dir(intid);
    }
    msr!("S3_0_C12_C11_1", u64::from(intid));
}

/// The highest-priority pending interrupt, without acknowledging it.
pub fn hppir1() -> u32 {
    if machine::is_gicv2() {
        return gicc::hppir();
    }
    instruction!("dsb sy");
    mrs!("S3_0_C12_C12_2") as u32
}

/// The running priority.
pub fn rpr() -> u64 {
    if machine::is_gicv2() {
        return gicc::rpr();
    }
    mrs!("S3_0_C12_C11_3")
}

/// Reads the priority mask.
pub fn pmr() -> u64 {
    if machine::is_gicv2() {
        return gicc::pmr();
    }
    mrs!("S3_0_C4_C6_0")
}

/// Masks interrupts whose priority value is not below this.
pub fn set_pmr(priority: u64) {
    if machine::is_gicv2() {
        return gicc::set_pmr(priority);
    }
    msr!("S3_0_C4_C6_0", priority);
    // The mask applies at the redistributor as well (PMHE): the manual requires a DSB for its effect to be
    // visible.
    instruction!("dsb sy");
}

/// Reads the binary point of group 1.
pub fn bpr1() -> u64 {
    if machine::is_gicv2() {
        return gicc::bpr();
    }
    mrs!("S3_0_C12_C12_3")
}

/// Writes ICC_BPR1_EL1, whether or not group 1 uses it.
pub fn write_bpr1(value: u64) {
    if machine::is_gicv2() {
        return gicc::set_bpr(value);
    }
    msr!("S3_0_C12_C12_3", value);
}

/// Sets the binary point of group 1. If group 1 uses group 0's, sets ICC_BPR0_EL1, whose value is one less
/// for the same split.
pub fn set_bpr1(point: u64) {
    if machine::is_gicv2() {
        return gicc::set_bpr(point);
    }
    if ctlr() & CTLR_CBPR == 0 {
        write_bpr1(point);
    } else {
        msr!("S3_0_C12_C8_3", point.saturating_sub(1));
    }
}

/// Reads ICC_CTLR_EL1.
pub fn ctlr() -> u64 {
    if machine::is_gicv2() {
        return gicc::ctlr();
    }
    mrs!("S3_0_C12_C12_4")
}

/// Writes ICC_CTLR_EL1.
pub fn set_ctlr(value: u64) {
    if machine::is_gicv2() {
        return gicc::set_ctlr(value);
    }
    msr!("S3_0_C12_C12_4", value);
}

/// ICC_CTLR_EL1.EOImode.
pub const CTLR_EOIMODE: u64 = 1 << 1;
/// ICC_CTLR_EL1.CBPR.
pub const CTLR_CBPR: u64 = 1;

/// Number of priority bits.
pub fn priority_bits() -> u64 {
    (ctlr() >> 8 & 7) + 1
}

/// Enables or disables group 1 interrupts for this CPU.
pub fn set_group1(enabled: bool) {
    if machine::is_gicv2() {
        return gicc::set_enabled(enabled);
    }
    msr!("S3_0_C12_C12_7", u64::from(enabled));
}

/// Reads ICC_IGRPEN1_EL1.
pub fn group1() -> u64 {
    if machine::is_gicv2() {
        return gicc::enabled();
    }
    mrs!("S3_0_C12_C12_7")
}

/// Enables or disables group 0 interrupts for this CPU.
pub fn set_group0(enabled: bool) {
    if machine::is_gicv2() {
        return;
    }
    msr!("S3_0_C12_C12_6", u64::from(enabled));
}

/// Reads ICC_SRE_EL1.
pub fn sre() -> u64 {
    mrs!("S3_0_C12_C12_5")
}

/// Selects the system register interface.
pub fn enable_sre() {
    if machine::is_gicv2() {
        return;
    }
    msr!("S3_0_C12_C12_5", sre() | 1);
}

/// Sends an SGI with a raw ICC_SGI1R_EL1 value; or one of a GICv2's GICD_SGIR.
pub fn sgi1r(value: u64) {
    if machine::is_gicv2() {
        return gicc::write_sgir(value as u32);
    }
    // Makes earlier writes visible to the receiver before the interrupt.
    instruction!("dsb ish");
    msr!("S3_0_C12_C11_5", value);
}

/// Sends SGI `intid` to the CPUs of a bit mask.
pub fn sgi(intid: u32, cpus: u64) {
    if machine::is_gicv2() {
        return gicc::write_sgir((cpus as u32 & 0xFF) << 16 | intid);
    }
    sgi1r(u64::from(intid) << 24 | cpus & 0xFFFF);
}

/// Sends SGI `intid`, if it is in group 0, to all CPUs but this one, by ICC_SGI0R_EL1.
pub fn group0_sgi_others(intid: u32) {
    instruction!("dsb ish");
    msr!("S3_0_C12_C11_7", u64::from(intid) << 24 | 1 << 40);
}

/// Sends SGI `intid` to all CPUs but this one.
pub fn sgi_others(intid: u32) {
    if machine::is_gicv2() {
        return gicc::write_sgir(1 << 24 | intid);
    }
    sgi1r(u64::from(intid) << 24 | 1 << 40);
}
