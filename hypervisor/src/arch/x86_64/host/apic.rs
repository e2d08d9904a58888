//! The board's interrupt controllers: each CPU's local APIC in x2APIC mode, and the I/O APIC of the console's
//! interrupt. (The manual, "Advanced Programmable Interrupt Controller (APIC)"; Intel 82093AA data sheet.)

use core::sync::atomic::{AtomicU32, Ordering};

use stile_board::MAX_CPUS;
use stile_firmware::serial_tables::Interrupt;

use super::board::Board;
use super::instructions::{msr, out8, rdmsr, wrmsr};
use super::{timer, xapic};
use crate::address_space;
use crate::console::log;

/// Vectors of Stile's own interrupts, in ascending priority: a guest can cause the first five again and again, and must not
/// keep the timer and the console from a CPU.
pub mod vector {
    /// Posted-interrupt notification of the vCPU that runs here; no exit if its guest runs. The lowest: guests with a gate
    /// send it without exits.
    pub const POSTED: u8 = 0xf0;
    /// Wake-up: an interrupt was posted for a vCPU that is not loaded, by a guest that sends IPIs itself.
    pub const WAKE: u8 = 0xf1;
    /// A kick: another CPU requests a reschedule, or has an event for the vCPU that runs here.
    pub const KICK: u8 = 0xf2;
    /// Shootdown of a VM's second-stage permissions that this CPU may have cached ([`super::super::protected`]).
    pub const INVALIDATE: u8 = 0xf3;
    /// Events of the IOMMU.
    pub const IOMMU: u8 = 0xf4;
    /// The console.
    pub const UART: u8 = 0xf5;
    /// This CPU's timer. Even: crate `gate` relies on bit 0 of its register.
    pub const TIMER: u8 = 0xf6;
    /// Stands for messages of PCI functions, in the mask of noted interrupts; no interrupt has it.
    pub const MESSAGE: u8 = 0xf7;
    /// First vector of messages of PCI functions, whose priority is below those of Stile's own.
    pub const FIRST_MESSAGE: u8 = 0x30;
    /// Number of vectors of messages.
    pub const MESSAGES_OF_FUNCTIONS: u8 = POSTED - FIRST_MESSAGE;
    /// Spurious-interrupt vector, which needs no EOI.
    pub const SPURIOUS: u8 = 0xff;

    const _: () = assert!(POSTED < WAKE && WAKE < KICK && KICK < INVALIDATE && INVALIDATE < IOMMU && IOMMU < UART && UART < TIMER);
    const _: () = assert!(TIMER.is_multiple_of(2));
}

const ID: u32 = msr::X2APIC + 0x02;
/// The end-of-interrupt register.
pub const EOI: u32 = msr::X2APIC + 0x0b;
const SPURIOUS_VECTOR: u32 = msr::X2APIC + 0x0f;
const ICR: u32 = msr::X2APIC + 0x30;
const LVT_TIMER: u32 = msr::X2APIC + 0x32;
/// First of the eight registers of ISR.
pub const ISR: u32 = msr::X2APIC + 0x10;
/// First of the eight registers of IRR.
const IRR: u32 = msr::X2APIC + 0x20;
const LVT_LINT0: u32 = msr::X2APIC + 0x35;
const LVT_LINT1: u32 = msr::X2APIC + 0x36;
const MASKED: u64 = 1 << 16;

/// Bits of IA32_APIC_BASE: the APIC is on; it is in x2APIC mode.
const ENABLED: u64 = 1 << 11;
const X2APIC: u64 = 1 << 10;

/// APIC IDs by CPU number.
static IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

fn read(register: u32) -> u64 {
    // SAFETY: boot refuses CPUs without an x2APIC, and `setup_cpu` has switched to it.
    unsafe { rdmsr(register) }
}

fn write(register: u32, value: u64) {
    // SAFETY: boot refuses CPUs without an x2APIC; Stile has handlers for the interrupts that the write can cause.
    unsafe { wrmsr(register, value) }
}

/// Initializes this CPU's APIC.
pub fn setup_cpu(cpu: usize) {
    if !xapic::enter() {
        // SAFETY: the CPU has an x2APIC, and the register exists wherever an APIC does; reads have no side effects.
        let mut base = unsafe { rdmsr(msr::IA32_APIC_BASE) };
        // Firmware may have left it in any mode. Only from xAPIC mode does x2APIC mode begin ("x2APIC States").
        for bit in [ENABLED, X2APIC] {
            if base & bit == 0 {
                base |= bit;
                // SAFETY: disabled to xAPIC, and xAPIC to x2APIC, are valid transitions.
                unsafe { wrmsr(msr::IA32_APIC_BASE, base) };
            }
        }
    }
    write(SPURIOUS_VECTOR, 1 << 8 | u64::from(vector::SPURIOUS));
    write(LVT_LINT0, MASKED);
    write(LVT_LINT1, MASKED);
    set_timer_vector(vector::TIMER);
    timer::setup(timer::frequency(), || is_pending(vector::TIMER));
    IDS[cpu & (MAX_CPUS - 1)].store(id(), Ordering::Relaxed);
}

/// This CPU's APIC ID.
pub fn id() -> u32 {
    let id = read(ID) as u32;
    if xapic::is_on() { id >> 24 } else { id }
}

/// Sets the vector of this CPU's timer, which is not armed.
pub fn set_timer_vector(vector: u8) {
    write(LVT_TIMER, timer::MODE | u64::from(vector));
}

/// APIC ID of a CPU.
pub fn id_of(cpu: usize) -> u32 {
    IDS[cpu & (MAX_CPUS - 1)].load(Ordering::Relaxed)
}

/// Whether an interrupt with this vector is in service on this CPU.
pub fn in_service(vector: u8) -> bool {
    read(ISR + u32::from(vector >> 5)) >> (vector & 31) & 1 != 0
}

/// Whether an interrupt with this vector is requested on this CPU and not yet in service.
pub fn is_pending(vector: u8) -> bool {
    read(IRR + u32::from(vector >> 5)) >> (vector & 31) & 1 != 0
}

/// Ends the interrupt in service with the highest priority (EOI).
#[inline(always)]
pub fn end_of_interrupt() {
    write(EOI, 0);
}

/// Kicks another CPU.
pub fn kick(cpu: usize) {
    send(id_of(cpu), vector::KICK.into());
}

/// Sends the notification of a posted interrupt to the CPU that runs its vCPU.
pub fn notify(cpu: usize) {
    send(id_of(cpu), vector::POSTED.into());
}

/// Makes another CPU apply changes of a second stage.
pub fn invalidate(cpu: usize) {
    send(id_of(cpu), vector::INVALIDATE.into());
}

/// Requests the IOMMU's interrupt on this CPU.
pub fn send_iommu() {
    send(id(), vector::IOMMU.into());
}

/// Address and data of the IOMMU's message to this CPU. `None` if its APIC ID is too large for a message.
pub fn iommu_message() -> Option<(u32, u32)> {
    const MESSAGES: u32 = 0xfee0_0000;
    // 255 is all CPUs.
    let id = Some(id()).filter(|&id| id < 0xff)?;
    Some((MESSAGES | id << 12, vector::IOMMU.into()))
}

fn send(apic: u32, command: u64) {
    // Earlier stores must be visible to the interrupted CPU: this write orders nothing (the manual, "x2APIC Register Access").
    core::sync::atomic::fence(Ordering::SeqCst);
    // SAFETY: a fence, because WRMSR to the x2APIC does not order earlier stores.
    unsafe { core::arch::asm!("mfence", "lfence", options(nostack, preserves_flags)) };
    write(ICR, u64::from(apic) << 32 | command);
}

/// Resets a CPU, which then waits for [`start`].
pub fn stop(apic: u32) {
    const INIT: u64 = 0b101 << 8 | 1 << 14;
    send(apic, INIT);
    timer::wait_us(10_000);
}

/// Starts a CPU at a page below 1 MiB (the manual, "MP Initialization Protocol Algorithm").
pub fn start(apic: u32, page: u8) {
    const STARTUP: u64 = 0b110 << 8 | 1 << 14;
    stop(apic);
    send(apic, STARTUP | u64::from(page));
    timer::wait_us(200);
    send(apic, STARTUP | u64::from(page));
}

/// Masks the 8259s. A BIOS leaves the timer's interrupt on, for which there is no handler.
pub fn mask_8259s() {
    // SAFETY: nothing else uses the 8259s; all of their inputs are masked.
    unsafe {
        out8(0x21, 0xff);
        out8(0xa1, 0xff);
    }
}

/// Routes the console's interrupt, if it has one, to this CPU.
pub fn setup_board(board: &Board, console: Option<Interrupt>) {
    let tables = &board.tables;
    let Some((gsi, flags)) = console.map(|interrupt| tables.route(interrupt)) else { return };
    let Some(io_apic) = tables.io_apics.iter().filter(|io_apic| io_apic.first <= gsi).max_by_key(|io_apic| io_apic.first) else { return };
    let registers = io_apic.address..io_apic.address + 0x20;
    if !board.is_device(&registers) {
        log!("the ACPI tables have the I/O APIC's registers in memory: the console takes no input");
        return;
    }
    let registers = address_space::device(registers) as *mut u32;
    // The register that selects one has eight bits.
    let Some(entry) = u8::try_from(gsi - io_apic.first).ok().and_then(|input| input.checked_mul(2)?.checked_add(0x10)) else { return };
    let entry = u32::from(entry);
    // Active low and level-sensitive if the tables say so, otherwise the ISA bus's defaults.
    let low = u32::from(flags & 0b11 == 0b11) << 13;
    let level = u32::from(flags >> 2 & 0b11 == 0b11) << 15;
    let select = |register: u32, value: u32| {
        // SAFETY: IOREGSEL and IOWIN of an I/O APIC in firmware's tables, mapped for Stile alone.
        unsafe {
            registers.write_volatile(register);
            registers.add(4).write_volatile(value);
        }
    };
    // Destination first: the low half unmasks the interrupt.
    select(entry + 1, id() << 24);
    select(entry, u32::from(vector::UART) | low | level);
}
