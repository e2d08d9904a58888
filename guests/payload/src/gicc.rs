//! The CPU interface of a GICv2: GICC registers (GICv2 architecture, "CPU interface register descriptions").
//!
//! All interrupts are in group 0, as after a reset, which is signalled as IRQ.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::board::{GICC, GICD, MAX_CPUS};
use crate::uart::Reg32;
use crate::{instruction, smp};

const CTLR: Reg32 = Reg32(GICC);
const PMR: Reg32 = Reg32(GICC + 0x4);
const BPR: Reg32 = Reg32(GICC + 0x8);
const IAR: Reg32 = Reg32(GICC + 0xC);
const EOIR: Reg32 = Reg32(GICC + 0x10);
const RPR: Reg32 = Reg32(GICC + 0x14);
const HPPIR: Reg32 = Reg32(GICC + 0x18);
const APR0: Reg32 = Reg32(GICC + 0xD0);
const DIR: Reg32 = Reg32(GICC + 0x1000);

/// GICC_CTLR.EnableGrp0.
const ENABLE: u32 = 1 << 0;
/// GICC_CTLR.CBPR.
const CBPR: u32 = 1 << 4;
/// GICC_CTLR.EOImode.
const EOIMODE: u32 = 1 << 9;

/// ICC_CTLR_EL1.EOImode.
const CTLR_EOIMODE: u64 = 1 << 1;
/// ICC_CTLR_EL1.CBPR.
const CTLR_CBPR: u64 = 1;

const INTID: u32 = 0x3FF;

/// By CPU and SGI: the value of GICC_IAR, which has the sender, for the end of the interrupt.
static SENDERS: [[AtomicU32; 16]; MAX_CPUS] = [const { [const { AtomicU32::new(0) }; 16] }; MAX_CPUS];

fn sender(intid: u32) -> Option<&'static AtomicU32> {
    SENDERS[smp::this() % MAX_CPUS].get(intid as usize)
}

/// The value with which an interrupt ends.
fn whole(intid: u32) -> u32 {
    sender(intid).map_or(intid, |sender| sender.load(Relaxed))
}

/// Acknowledges an interrupt: its INTID, without the sender of an SGI.
pub fn iar() -> u32 {
    instruction!("dsb sy");
    let value = IAR.read();
    instruction!("dsb sy");
    if let Some(sender) = sender(value & INTID) {
        sender.store(value, Relaxed);
    }
    value & INTID
}

/// The raw value of GICC_IAR.
pub fn raw_iar() -> u32 {
    IAR.read()
}

/// Ends an interrupt by a raw value.
pub fn raw_eoir(value: u32) {
    EOIR.write(value);
}

/// Ends an interrupt: drops the priority, and deactivates it unless GICC_CTLR.EOImode is set.
pub fn eoir(intid: u32) {
    EOIR.write(whole(intid));
}

/// Deactivates an interrupt.
pub fn dir(intid: u32) {
    DIR.write(whole(intid));
}

/// INTID of the pending interrupt with the highest priority.
pub fn hppir() -> u32 {
    instruction!("dsb sy");
    HPPIR.read() & INTID
}

/// Running priority.
pub fn rpr() -> u64 {
    RPR.read().into()
}

/// Priority mask.
pub fn pmr() -> u64 {
    PMR.read().into()
}

/// Sets the priority mask.
pub fn set_pmr(priority: u64) {
    PMR.write(priority as u32);
    instruction!("dsb sy");
}

/// Binary point.
pub fn bpr() -> u64 {
    BPR.read().into()
}

/// Sets the binary point.
pub fn set_bpr(value: u64) {
    BPR.write(value as u32);
}

/// GICC_CTLR in the layout of ICC_CTLR_EL1. Virtual CPU interfaces have five bits of priority.
pub fn ctlr() -> u64 {
    let value = CTLR.read();
    let bit = |from: u32, to: u64| if value & from != 0 { to } else { 0 };
    bit(EOIMODE, CTLR_EOIMODE) | bit(CBPR, CTLR_CBPR) | 4 << 8
}

/// Sets GICC_CTLR, from the layout of ICC_CTLR_EL1.
pub fn set_ctlr(value: u64) {
    let bit = |from: u64, to: u32| if value & from != 0 { to } else { 0 };
    CTLR.write(CTLR.read() & ENABLE | bit(CTLR_EOIMODE, EOIMODE) | bit(CTLR_CBPR, CBPR));
}

/// Enables or disables interrupts of group 0.
pub fn set_enabled(enabled: bool) {
    let rest = CTLR.read() & !ENABLE;
    CTLR.write(if enabled { rest | ENABLE } else { rest });
}

/// Whether interrupts of group 0 are enabled.
pub fn enabled() -> u64 {
    (CTLR.read() & ENABLE).into()
}

/// Clears all active priorities.
pub fn clear_active_priorities() {
    APR0.write(0);
}

/// Sends an SGI by GICD_SGIR.
pub fn write_sgir(value: u32) {
    instruction!("dsb ish");
    Reg32(GICD + 0xF00).write(value);
}
