//! The GIC's distributor and redistributors.

use crate::board::{GICD, GICR, GICR_STRIDE};
use crate::uart::Reg32;
use crate::{gicc, icc, instruction, irq, machine, smp};

/// A set of registers with one bit per interrupt. The value is the offset of the first.
#[derive(Clone, Copy)]
#[repr(u64)]
pub enum Bits {
    /// IGROUPR.
    Group = 0x080,
    /// ISENABLER; its clear register follows at 0x80.
    Enable = 0x100,
    /// ISPENDR, and ICPENDR.
    Pending = 0x200,
    /// ISACTIVER, and ICACTIVER.
    Active = 0x300,
}

/// INMIR: non-maskable interrupts; reserved without FEAT_GICv3_NMI.
const NMI: u64 = 0xF80;
/// GICD_CTLR.
pub const GICD_CTLR: Reg32 = Reg32(GICD);
/// GICD_CTLR.EnableGrp0, EnableGrp1 and ARE where there is one security state.
pub const CTLR_GROUP1: u32 = 1 << 1;
/// GICD_CTLR.ARE.
pub const CTLR_ARE: u32 = 1 << 4;
/// GICD_CTLR.DS.
pub const CTLR_DS: u32 = 1 << 6;
/// GICD_CTLR.RWP and, at bit 3, GICR_CTLR.RWP.
pub const CTLR_RWP: u32 = 1 << 31;
/// The priority of all interrupts after [`reset`].
pub const PRIORITY: u8 = 0xA0;

/// A register of the distributor.
pub fn gicd(offset: u64) -> Reg32 {
    Reg32(GICD + offset)
}

/// A register of a CPU's redistributor, RD_base frame.
pub fn gicr(cpu: usize, offset: u64) -> Reg32 {
    Reg32(redistributor(cpu) + offset)
}

/// Redistributors of the first region, and the address of the others.
pub const FIRST_REGION: usize = 123;
const SECOND_REGION: u64 = 0x0b00_0000;

/// Address of a CPU's redistributor.
pub fn redistributor(cpu: usize) -> u64 {
    match cpu.checked_sub(FIRST_REGION) {
        None => GICR + GICR_STRIDE * cpu as u64,
        Some(cpu) => SECOND_REGION + GICR_STRIDE * cpu as u64,
    }
}

/// The frame with an interrupt's registers: the SGI_base frame of this CPU's redistributor, or the
/// distributor. A GICv2's has this CPU's SGIs and PPIs.
fn frame(cpu: usize, intid: u32) -> u64 {
    if intid < 32 && !machine::is_gicv2() { redistributor(cpu) + 0x1_0000 } else { GICD }
}

/// The exclusive end of SPIs.
pub fn limit() -> u32 {
    (32 * ((gicd(0x4).read() & 0x1F) + 1)).min(1020)
}

/// Reads an interrupt's bit; SGIs and PPIs of this CPU.
pub fn get(bits: Bits, intid: u32) -> bool {
    get_on(smp::this(), bits, intid)
}

/// Reads an interrupt's bit; SGIs and PPIs of the given CPU.
pub fn get_on(cpu: usize, bits: Bits, intid: u32) -> bool {
    Reg32(frame(cpu, intid) + bits as u64 + u64::from(intid / 32 * 4)).read() >> (intid % 32) & 1 != 0
}

/// Sets an interrupt's bit; SGIs and PPIs of this CPU.
pub fn set(bits: Bits, intid: u32) {
    set_on(smp::this(), bits, intid);
}

/// Sets an interrupt's bit; SGIs and PPIs of the given CPU.
pub fn set_on(cpu: usize, bits: Bits, intid: u32) {
    Reg32(frame(cpu, intid) + bits as u64 + u64::from(intid / 32 * 4)).write(1 << (intid % 32));
    settle(intid);
}

/// Clears an interrupt's enable, pending or active bit, by the clear register, and waits for the effect.
pub fn clear(bits: Bits, intid: u32) {
    clear_on(smp::this(), bits, intid);
}

/// Clears an interrupt's enable, pending or active bit; SGIs and PPIs of the given CPU.
pub fn clear_on(cpu: usize, bits: Bits, intid: u32) {
    Reg32(frame(cpu, intid) + bits as u64 + 0x80 + u64::from(intid / 32 * 4)).write(1 << (intid % 32));
    settle(intid);
}

/// Waits for the effect of a write (RWP).
fn settle(intid: u32) {
    instruction!("dsb sy");
    if machine::is_gicv2() {
        return;
    }
    if intid < 32 { while gicr(smp::this(), 0).read() & 1 << 3 != 0 {} } else { while GICD_CTLR.read() & CTLR_RWP != 0 {} }
}

/// Puts an interrupt in group 1, or in group 0.
pub fn set_group1(intid: u32, group1: bool) {
    let register = Reg32(frame(smp::this(), intid) + Bits::Group as u64 + u64::from(intid / 32 * 4));
    let bit = 1 << (intid % 32);
    let value = register.read();
    register.write(if group1 { value | bit } else { value & !bit });
    settle(intid);
}

/// Writes an interrupt's priority, a byte.
pub fn set_priority(intid: u32, priority: u8) {
    let address = frame(smp::this(), intid) + 0x400 + u64::from(intid);
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("strb {:w}, [{}]", in(reg) u32::from(priority), in(reg) address, options(nostack)) };
}

/// Reads an interrupt's priority, a byte.
pub fn priority(intid: u32) -> u8 {
    let address = frame(smp::this(), intid) + 0x400 + u64::from(intid);
    let value: u32;
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("ldrb {:w}, [{}]", out(reg) value, in(reg) address, options(nostack)) };
    value as u8
}

/// Makes an interrupt edge-triggered or level-sensitive; it must be disabled.
pub fn set_edge(intid: u32, edge: bool) {
    let register = Reg32(frame(smp::this(), intid) + 0xC00 + u64::from(intid / 16 * 4));
    let bit = 2 << (intid % 16 * 2);
    let value = register.read();
    register.write(if edge { value | bit } else { value & !bit });
}

/// Routes an SPI to one CPU.
pub fn route(intid: u32, cpu: usize) {
    if machine::is_gicv2() {
        return set_targets(intid, 1 << cpu);
    }
    let address = GICD + 0x6000 + 8 * u64::from(intid);
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("str {}, [{}]", in(reg) cpu as u64, in(reg) address, options(nostack)) };
}

/// Writes the target list of a GICv2's SPI, a byte.
pub fn set_targets(intid: u32, cpus: u8) {
    let address = GICD + 0x800 + u64::from(intid);
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("strb {:w}, [{}]", in(reg) u32::from(cpus), in(reg) address, options(nostack)) };
}

/// Reads the target list of a GICv2's interrupt, a byte.
pub fn targets(intid: u32) -> u8 {
    let address = GICD + 0x800 + u64::from(intid);
    let value: u32;
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("ldrb {:w}, [{}]", out(reg) value, in(reg) address, options(nostack)) };
    value as u8
}

/// GICD_CTLR with no group enabled.
pub fn control_off() -> u32 {
    if machine::is_gicv2() { 0 } else { CTLR_ARE | CTLR_DS }
}

/// GICD_CTLR with the group of the tests enabled: group 1, or a GICv2's group 0.
pub fn control_on() -> u32 {
    if machine::is_gicv2() { 1 } else { CTLR_ARE | CTLR_DS | CTLR_GROUP1 }
}

/// IGROUPR with all interrupts in that group.
fn all_in_group() -> u32 {
    if machine::is_gicv2() { 0 } else { !0 }
}

/// Reads an SPI's route.
pub fn routed(intid: u32) -> u64 {
    let address = GICD + 0x6000 + 8 * u64::from(intid);
    let value: u64;
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("ldr {}, [{}]", out(reg) value, in(reg) address, options(nostack)) };
    value
}

/// Number of [`spare_spis`].
pub const SPARE_SPIS: u32 = 24;

/// SPIs for tests: not driven by any device of the board, on Stile or on QEMU.
pub fn spare_spis() -> core::ops::Range<u32> {
    let end = limit().min(128);
    end - SPARE_SPIS..end
}

/// Resets the distributor to a known state: all SPIs disabled, inactive, edge-triggered, group 1, routed to
/// this CPU.
pub fn reset_distributor() {
    GICD_CTLR.write(control_off());
    settle(32);
    let limit = u64::from(limit());
    for word in 1..limit / 32 {
        gicd(Bits::Enable as u64 + 0x80 + 4 * word).write(!0);
        gicd(Bits::Pending as u64 + 0x80 + 4 * word).write(!0);
        gicd(Bits::Active as u64 + 0x80 + 4 * word).write(!0);
        gicd(Bits::Group as u64 + 4 * word).write(all_in_group());
        if !machine::is_gicv2() {
            gicd(NMI + 4 * word).write(0);
        }
    }
    settle(32);
    for word in 8..limit / 4 {
        gicd(0x400 + 4 * word).write(u32::from_ne_bytes([PRIORITY; 4]));
    }
    for intid in spare_spis() {
        set_edge(intid, true);
        route(intid, smp::this());
    }
    GICD_CTLR.write(control_on());
    settle(32);
}

/// Resets this CPU's redistributor and interface to a known state: SGIs and PPIs disabled and inactive, no
/// priority mask, group 1 enabled.
pub fn reset_cpu() {
    irq::mask();
    let cpu = smp::this();
    icc::enable_sre();
    // Ends every acknowledged interrupt, one priority at a time.
    icc::set_ctlr(0);
    icc::set_group1(false);
    icc::set_group0(false);
    if !machine::is_gicv2() {
        let waker = gicr(cpu, 0x14);
        waker.write(0);
        // Another CPU may write it, too.
        while waker.read() & 1 << 2 != 0 {
            waker.write(0);
        }
    }
    let frame = frame(cpu, 0);
    Reg32(frame + Bits::Enable as u64 + 0x80).write(!0);
    Reg32(frame + Bits::Pending as u64 + 0x80).write(!0);
    clear_pending_sgis();
    Reg32(frame + Bits::Active as u64 + 0x80).write(!0);
    Reg32(frame + Bits::Group as u64).write(all_in_group());
    if !machine::is_gicv2() {
        Reg32(frame + NMI).write(0);
    }
    for word in 0..8 {
        Reg32(frame + 0x400 + 4 * word).write(u32::from_ne_bytes([PRIORITY; 4]));
    }
    settle(0);
    icc::set_pmr(0xFF);
    icc::set_bpr1(0);
    clear_active_priorities();
    icc::set_group1(true);
    irq::clear();
}

/// Makes an SGI or PPI of this CPU pending by register.
pub fn pend_private(intid: u32) {
    if machine::is_gicv2() && intid < 16 {
        gicd(0xF20 + u64::from(intid / 4 * 4)).write(1 << (intid % 4 * 8));
    } else {
        set(Bits::Pending, intid);
    }
}

/// A GICv2 has other registers for that.
fn clear_pending_sgis() {
    if machine::is_gicv2() {
        for word in 0..4 {
            gicd(0xF10 + 4 * word).write(!0);
        }
    }
}

/// Drops the running priority of interrupts left acknowledged by a test.
fn clear_active_priorities() {
    if machine::is_gicv2() {
        return gicc::clear_active_priorities();
    }
    // ICC_AP1R0_EL1; the others exist only with more priority bits.
    crate::msr!("S3_0_C12_C9_0", 0);
}

/// [`reset_distributor`] and [`reset_cpu`].
pub fn reset() {
    reset_distributor();
    reset_cpu();
}
