//! The local APIC, by its page or by MSRs, and the I/O APIC.

use crate::machine::{rdmsr, wrmsr};

const BASE: u32 = 0x1b;
const PAGE: u64 = 0xfee0_0000;
const IO_PAGE: u64 = 0xfec0_0000;
/// In IA32_APIC_BASE.
pub const ENABLED: u64 = 1 << 11;
/// Mode of access: by MSRs.
pub const X2: u64 = 1 << 10;

/// Offsets of registers.
#[allow(missing_docs)]
pub mod register {
    pub const ID: u32 = 0x20;
    pub const VERSION: u32 = 0x30;
    pub const TPR: u32 = 0x80;
    pub const EOI: u32 = 0xb0;
    pub const SPURIOUS: u32 = 0xf0;
    pub const ISR: u32 = 0x100;
    pub const TMR: u32 = 0x180;
    pub const IRR: u32 = 0x200;
    pub const ICR: u32 = 0x300;
    pub const ICR_HIGH: u32 = 0x310;
    pub const TIMER: u32 = 0x320;
    pub const LINT0: u32 = 0x350;
    pub const INITIAL: u32 = 0x380;
    pub const CURRENT: u32 = 0x390;
    pub const DIVIDE: u32 = 0x3e0;
}

/// Bits of the ICR.
#[allow(missing_docs)]
pub mod command {
    pub const NMI: u32 = 4 << 8;
    pub const INIT: u32 = 5 << 8;
    pub const STARTUP: u32 = 6 << 8;
    pub const LOGICAL: u32 = 1 << 11;
    pub const ASSERT: u32 = 1 << 14;
    pub const SELF: u32 = 1 << 18;
    pub const ALL: u32 = 2 << 18;
    pub const OTHERS: u32 = 3 << 18;
}

/// IA32_APIC_BASE.
pub fn base() -> u64 {
    // SAFETY: each CPU with an APIC has the register.
    unsafe { rdmsr(BASE) }
}

/// Writes IA32_APIC_BASE, with a valid value.
pub fn set_base(value: u64) {
    // SAFETY: the caller is responsible for the APIC's state.
    unsafe { wrmsr(BASE, value) }
}

fn is_x2() -> bool {
    base() & X2 != 0
}

/// Reads a register.
pub fn read(register: u32) -> u32 {
    // SAFETY: the page is mapped, and the registers are an APIC's.
    unsafe { if is_x2() { rdmsr(0x800 + (register >> 4)) as u32 } else { ((PAGE + u64::from(register)) as *const u32).read_volatile() } }
}

/// Writes a register.
pub fn write(register: u32, value: u32) {
    // SAFETY: the page is mapped, and the registers are an APIC's.
    unsafe {
        if is_x2() {
            wrmsr(0x800 + (register >> 4), value.into());
        } else {
            ((PAGE + u64::from(register)) as *mut u32).write_volatile(value);
        }
    }
}

/// Sends a message to an APIC, or to those that the command names.
pub fn send(to: u32, command: u32) {
    if is_x2() {
        // SAFETY: the APIC is in x2APIC mode, and the command is valid.
        unsafe { wrmsr(0x830, u64::from(to) << 32 | u64::from(command)) };
        return;
    }
    write(register::ICR_HIGH, to << 24);
    write(register::ICR, command);
    while read(register::ICR) & 1 << 12 != 0 {}
}

/// Ends an interrupt.
pub fn end() {
    write(register::EOI, 0);
}

/// Ends up to `count` interrupts. The mode is read once: the read exits.
pub fn end_all(count: usize) {
    let x2 = is_x2();
    for _ in 0..count {
        // SAFETY: the page is mapped, and the register is an APIC's.
        unsafe {
            if x2 {
                wrmsr(0x800 + (register::EOI >> 4), 0);
            } else {
                ((PAGE + u64::from(register::EOI)) as *mut u32).write_volatile(0);
            }
        }
    }
}

/// This CPU's identifier.
pub fn id() -> u32 {
    let id = read(register::ID);
    if is_x2() { id } else { id >> 24 }
}

/// Enables this CPU's APIC by the spurious-interrupt vector register, with all sources off.
pub fn enable() {
    write(register::SPURIOUS, 0x1ff);
    write(register::TPR, 0);
}

/// Writes a register of the I/O APIC.
pub fn io_write(index: u32, value: u32) {
    let page = IO_PAGE as *mut u32;
    // SAFETY: the page is mapped, and is the I/O APIC's.
    unsafe {
        page.write_volatile(index);
        page.add(4).write_volatile(value);
    }
}

/// Reads one.
pub fn io_read(index: u32) -> u32 {
    let page = IO_PAGE as *mut u32;
    // SAFETY: the page is mapped, and is the I/O APIC's.
    unsafe {
        page.write_volatile(index);
        page.add(4).read_volatile()
    }
}

/// Ends the level-triggered interrupts of a vector, by the I/O APIC's EOI register.
pub fn io_end(vector: u8) {
    // SAFETY: the page is mapped, and is the I/O APIC's.
    unsafe { ((IO_PAGE + 0x40) as *mut u32).write_volatile(vector.into()) };
}

/// A masked input.
pub const IO_MASKED: u32 = 1 << 16;
/// A level-sensitive one.
pub const IO_LEVEL: u32 = 1 << 15;
/// Its interrupt was sent and not ended.
pub const IO_REMOTE: u32 = 1 << 14;

/// Sets the routing of an input.
pub fn io_route(input: u32, to: u32, low: u32) {
    io_write(0x11 + 2 * input, to << 24);
    io_write(0x10 + 2 * input, low);
}
