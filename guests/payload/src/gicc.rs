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

/// As `icc::iar1`.
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

/// As `icc::eoir1`.
pub fn eoir(intid: u32) {
    EOIR.write(whole(intid));
}

/// As `icc::dir`.
pub fn dir(intid: u32) {
    DIR.write(whole(intid));
}

/// As `icc::hppir1`.
pub fn hppir() -> u32 {
    instruction!("dsb sy");
    HPPIR.read() & INTID
}

/// As `icc::rpr`.
pub fn rpr() -> u64 {
    RPR.read().into()
}

/// As `icc::pmr`.
pub fn pmr() -> u64 {
    PMR.read().into()
}

/// As `icc::set_pmr`.
pub fn set_pmr(priority: u64) {
    PMR.write(priority as u32);
    instruction!("dsb sy");
}

/// As `icc::bpr1`.
pub fn bpr() -> u64 {
    BPR.read().into()
}

/// As `icc::write_bpr1`.
pub fn set_bpr(value: u64) {
    BPR.write(value as u32);
}

/// As `icc::ctlr`, in its layout. Virtual CPU interfaces have five bits of priority.
pub fn ctlr() -> u64 {
    let value = CTLR.read();
    let bit = |from: u32, to: u64| if value & from != 0 { to } else { 0 };
    bit(EOIMODE, CTLR_EOIMODE) | bit(CBPR, CTLR_CBPR) | 4 << 8
}

/// As `icc::set_ctlr`.
pub fn set_ctlr(value: u64) {
    let bit = |from: u64, to: u32| if value & from != 0 { to } else { 0 };
    CTLR.write(CTLR.read() & ENABLE | bit(CTLR_EOIMODE, EOIMODE) | bit(CTLR_CBPR, CBPR));
}

/// As `icc::set_group1`, for group 0.
pub fn set_enabled(enabled: bool) {
    let rest = CTLR.read() & !ENABLE;
    CTLR.write(if enabled { rest | ENABLE } else { rest });
}

/// As `icc::group1`.
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
