//! The local APIC, in xAPIC mode by its page and in x2APIC mode by MSRs (Intel SDM volume 3, "Advanced
//! Programmable Interrupt Controller (APIC)").

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::cpu::{note_absent, rdmsr, wrmsr};
use super::ports::out8;
use super::xen;
use super::{interrupts, paravirtual_eoi};

/// IA32_APIC_BASE.
pub const BASE: u32 = 0x1b;
const BASE_X2APIC: u64 = 1 << 10;
/// IA32_TSC_DEADLINE.
pub const TSC_DEADLINE: u32 = 0x6e0;
/// The page in xAPIC mode.
pub const PAGE: u64 = 0xfee0_0000;
/// The registers in x2APIC mode.
const MSRS: u32 = 0x800;

/// Offsets of registers in the page; 16 bytes of it correspond to one MSR in x2APIC mode.
pub const ID: u64 = 0x20;
/// End of interrupt.
pub const EOI: u64 = 0xb0;
const SPURIOUS: u64 = 0xf0;
/// Interrupt command.
pub const ICR: u64 = 0x300;
const ICR_HIGH: u64 = 0x310;
const LVT_TIMER: u64 = 0x320;
const LVT_LINT0: u64 = 0x350;
/// The timer's initial count.
const INITIAL_COUNT: u64 = 0x380;
/// The timer's current count.
pub const CURRENT_COUNT: u64 = 0x390;
/// Self-IPI, in x2APIC mode only.
pub const SELF_IPI: u64 = 0x3f0;

/// The ICR's destination shorthand: self.
pub const TO_SELF: u32 = 1 << 18;
/// An ICR's level bit: asserted.
pub const ASSERT: u32 = 1 << 14;
const INIT: u32 = 5 << 8;
const STARTUP: u32 = 6 << 8;
const MASKED: u32 = 1 << 16;
/// APIC enabled; the vector of spurious interrupts.
const ON: u32 = 1 << 8 | 0xff;
/// LVT_TIMER: TSC-deadline mode.
const DEADLINE: u32 = 2 << 17;

/// Whether the CPUs are in x2APIC mode.
static X2APIC: AtomicBool = AtomicBool::new(false);
/// Whether the timer takes deadlines.
static DEADLINES: AtomicBool = AtomicBool::new(false);

/// The MSR of a register in x2APIC mode.
pub const fn msr(register: u64) -> u32 {
    MSRS + (register >> 4) as u32
}

fn read(register: u64) -> u32 {
    if X2APIC.load(Relaxed) {
        return rdmsr(msr(register)) as u32;
    }
    // SAFETY: the page is mapped, without Rust objects.
    unsafe { ((PAGE + register) as *const u32).read_volatile() }
}

fn write(register: u64, value: u32) {
    if X2APIC.load(Relaxed) {
        return wrmsr(msr(register), value.into());
    }
    // SAFETY: the page is mapped, without Rust objects.
    unsafe { ((PAGE + register) as *mut u32).write_volatile(value) };
}

/// Masks the PICs, and enables the first CPU's APIC in xAPIC mode.
pub fn setup() {
    for pic in [0x21, 0xa1] {
        out8(pic, 0xff);
    }
    write(LVT_LINT0, MASKED);
    write(SPURIOUS, ON);
}

/// Stile's feature `ipi = "direct"`.
pub const DIRECT: u32 = 1 << 0;

/// Stile's feature `timer = "direct"`.
const DIRECT_TIMER: u32 = 1 << 2;
/// Stile's control register of both.
const CONTROL: u32 = 0x4000_00f0;

/// Makes this CPU's ICR the physical one, or opens the gate, where a hypervisor offers that: Stile with the feature. Returns
/// the address of the posted-interrupt descriptor of the CPU with an identifier.
pub fn send_directly(feature: u32, cpu: u64) -> Option<u64> {
    enable(feature, 1).map(|descriptors| descriptors + cpu * 4096)
}

/// Makes expiries of this CPU's timer notifications, where a hypervisor offers that. Returns the address of the first CPU's
/// posted-interrupt descriptor.
pub fn direct_timer() -> Option<u64> {
    enable(DIRECT_TIMER, 3)
}

/// Ends both.
pub fn end_direct() {
    wrmsr(CONTROL, 0);
}

fn enable(feature: u32, control: u64) -> Option<u64> {
    const FEATURES: u32 = 0x4000_0001;
    // SAFETY: CPUID writes only four registers, which are outputs.
    #[allow(unused_unsafe, reason = "it is no longer unsafe in newer compilers")]
    let (hypervisor, features) = unsafe { (__cpuid(1).ecx >> 31 != 0, __cpuid(FEATURES).eax) };
    if !hypervisor || features & feature == 0 {
        note_absent();
        return None;
    }
    wrmsr(CONTROL, control);
    Some(rdmsr(CONTROL) & !0xfff)
}

/// Checks that this CPU is in xAPIC mode. x2APIC mode can't be left.
pub fn need_xapic() {
    if X2APIC.load(Relaxed) {
        note_absent();
    }
}

/// Switches the first CPU to x2APIC mode, if supported.
pub fn need_x2apic() {
    if X2APIC.load(Relaxed) {
        return;
    }
    // SAFETY: CPUID writes only four registers, which are outputs.
    #[allow(unused_unsafe, reason = "it is no longer unsafe in newer compilers")]
    let features = unsafe { __cpuid(1) };
    if features.ecx & 1 << 21 == 0 {
        return note_absent();
    }
    wrmsr(BASE, rdmsr(BASE) | BASE_X2APIC);
    X2APIC.store(true, Relaxed);
    interrupts::end_by_msr();
    paravirtual_eoi::setup();
}

/// Sets up this CPU in the first one's mode.
pub fn setup_other() {
    if X2APIC.load(Relaxed) {
        wrmsr(BASE, rdmsr(BASE) | BASE_X2APIC);
    }
    write(SPURIOUS, ON);
}

/// Starts the timer, masked, with a deadline or a large count.
pub fn start_timer(by_deadline: bool) {
    DEADLINES.store(by_deadline, Relaxed);
    if by_deadline {
        write(LVT_TIMER, DEADLINE | u32::from(interrupts::FIRST));
    } else {
        write(LVT_TIMER, MASKED | u32::from(interrupts::FIRST));
        write(INITIAL_COUNT, u32::MAX);
    }
}

/// Starts the timer for deadlines, unless this has been done.
pub fn keep_timer() {
    if !DEADLINES.load(Relaxed) {
        start_timer(true);
    }
}

/// Stops the timer.
pub fn stop_timer() {
    DEADLINES.store(false, Relaxed);
    wrmsr(TSC_DEADLINE, 0);
    write(LVT_TIMER, MASKED | u32::from(interrupts::FIRST));
    write(INITIAL_COUNT, 0);
}

/// The identifier of a CPU's APIC.
pub fn id(cpu: u64) -> u64 {
    cpu * xen::apic_ids_of_a_cpu()
}

/// Starts a CPU at a page of the first MiB ("Typical BSP Initialization Sequence").
pub fn start(cpu: u64, page: u8, wait: fn(u64)) {
    command(id(cpu), INIT | ASSERT);
    wait(10_000);
    command(id(cpu), STARTUP | ASSERT | u32::from(page));
    wait(200);
}

/// Interrupts all other CPUs, in x2APIC mode.
pub fn interrupt_others(vector: u8) {
    const TO_OTHERS: u32 = 3 << 18;
    wrmsr(msr(ICR), u64::from(TO_OTHERS | ASSERT) | u64::from(vector));
}

/// The ICR's value that interrupts a CPU, in x2APIC mode.
pub fn command_of_interrupt(cpu: u64, vector: u8) -> u64 {
    id(cpu) << 32 | u64::from(ASSERT) | u64::from(vector)
}

/// Interrupts a CPU, in x2APIC mode.
pub fn interrupt(cpu: u64, vector: u8) {
    wrmsr(msr(ICR), command_of_interrupt(cpu, vector));
}

/// Sends a message to the APIC with an identifier.
fn command(id: u64, message: u32) {
    if X2APIC.load(Relaxed) {
        return wrmsr(msr(ICR), id << 32 | u64::from(message));
    }
    write(ICR_HIGH, (id as u32) << 24);
    write(ICR, message);
    const PENDING: u32 = 1 << 12;
    while read(ICR) & PENDING != 0 {}
}
