//! Events: injection, windows, traps, and exits amid their delivery.

use core::sync::atomic::Ordering;

use pc::exception::{self, COUNTS, PLACES};
use pc::lapic;

use crate::exits::{VMCALL, area};
use crate::field::{self, pin, primary};
use crate::test::{Outcome, Test, check, is_guest, same};
use crate::vmcs::{AREA, BITMAP, VIRTUAL_NMIS, clear, code, enable, fresh, get, misc, page, run, set};

pub const ALL: &[Test] = &[
    ("injected_interrupts", interrupts),
    ("injected_exceptions", exceptions),
    ("injected_nmis", nmis),
    ("injected_software_interrupts", software),
    ("interrupt_behind_an_injected_one", interrupt_behind),
    ("delivery_that_exits", delivery),
    ("interrupt_window", interrupt_window),
    ("nmi_window", nmi_window),
    ("monitor_trap", monitor_trap),
    ("monitor_trap_of_completed_instructions", completed),
    ("int1_keeps_dr6", int1),
    ("wakes_from_hlt", wakes),
    ("launch_that_is_interrupted", interrupted_launch),
    ("init_in_vmx_operation", init),
    ("deadline_in_msr_areas", deadline),
];

const VECTOR: u64 = 0x41;
const IF: u64 = 1 << 9;
const VALID: u64 = 1 << 31;

/// Handles interrupts of the tests' vector: they come from no interrupt controller.
fn take() -> u64 {
    exception::handle(VECTOR as u8, Some(|_| {}));
    exception::take(VECTOR as u8)
}

fn count() -> u64 {
    COUNTS[VECTOR as usize].swap(0, Ordering::SeqCst)
}

fn interrupts() -> Outcome {
    take();
    let start = code!("nop");
    fresh(start);
    set(field::GUEST_RFLAGS, 2 | IF);
    set(field::ENTRY_INTERRUPTION, VALID | VECTOR);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(count(), 1, "the number of interrupts");
    same!(PLACES[VECTOR as usize].load(Ordering::SeqCst), start, "where it interrupted");
    // The exit clears the valid bit, and nothing else.
    same!(get(field::ENTRY_INTERRUPTION), VECTOR, "the field after the exit");
    set(field::GUEST_RIP, start);
    same!(run(&mut [0; 8], true), VMCALL, "the next exit");
    same!(count(), 0, "an interrupt that was not injected");
    Outcome::Pass
}

/// An exception resumes at this address.
pub fn resume_at(address: u64) {
    // SAFETY: the variable of exception.s; only exceptions that are injected occur.
    unsafe { core::arch::asm!("mov [RESUME], {}", in(reg) address) };
}

fn exceptions() -> Outcome {
    for (information, code, expected) in [(0x8000_0b0d, 0x1238, (13, 0x1238)), (0x8000_0306, 0, (6, 0)), (0x8000_0b0b, 0x10, (11, 0x10))] {
        let start = code!("nop");
        let mut exit = VMCALL;
        let found = exception::run(|| {
            fresh(start);
            resume_at(start);
            set(field::ENTRY_INTERRUPTION, information);
            set(field::ENTRY_ERROR_CODE, code);
            exit = run(&mut [0; 8], false);
        });
        same!(exit, VMCALL, "the exit");
        same!(found, Some(expected), "the exception");
    }
    Outcome::Pass
}

fn nmis() -> Outcome {
    exception::take(2);
    fresh(code!("nop"));
    set(field::ENTRY_INTERRUPTION, VALID | 2 << 8 | 2);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(exception::take(2), 1, "the number of NMIs");
    // Without virtual NMIs it may be injected while NMIs are blocked.
    fresh(code!("nop"));
    set(field::GUEST_INTERRUPTIBILITY, 1 << 3);
    set(field::ENTRY_INTERRUPTION, VALID | 2 << 8 | 2);
    same!(run(&mut [0; 8], false), VMCALL, "the exit after an NMI while NMIs are blocked");
    same!(exception::take(2), 1, "the number of NMIs");
    Outcome::Pass
}

fn software() -> Outcome {
    take();
    let start = code!("int 0x41");
    fresh(start);
    set(field::ENTRY_INTERRUPTION, VALID | 4 << 8 | VECTOR);
    set(field::ENTRY_LENGTH, 2);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(count(), 1, "the number of interrupts");
    same!(PLACES[VECTOR as usize].load(Ordering::SeqCst), start + 2, "where it returns");
    exception::take(3);
    let start = code!("int3");
    fresh(start);
    set(field::ENTRY_INTERRUPTION, VALID | 6 << 8 | 3);
    set(field::ENTRY_LENGTH, 1);
    same!(run(&mut [0; 8], false), VMCALL, "the exit of INT3");
    same!(exception::take(3), 1, "the number of breakpoints");
    same!(PLACES[3].load(Ordering::SeqCst), start + 1, "where INT3 returns");
    Outcome::Pass
}

/// An interrupt for L1 that is pending at an entry which injects an interrupt: L2 takes that first, and exits before its handler begins.
fn interrupt_behind() -> Outcome {
    const INJECTED: u8 = 0x42;
    exception::handle(VECTOR as u8, None);
    exception::handle(INJECTED, Some(|_| {}));
    exception::take(INJECTED);
    lapic::enable();
    let start = code!("nop");
    fresh(start);
    check!(enable(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPTS), "exits by external interrupts");
    set(field::GUEST_RFLAGS, 2 | IF);
    set(field::ENTRY_INTERRUPTION, VALID | u64::from(INJECTED));
    lapic::send(0, VECTOR as u32 | lapic::command::SELF);
    same!(run(&mut [0; 8], false), Ok(1), "the exit");
    same!(get(field::VECTORING) & VALID, 0, "an event whose delivery was interrupted");
    check!(get(field::GUEST_RIP) != start, "L2 is at the handler");
    check!(wait(), "the interrupt");
    same!(run(&mut [0; 8], true), VMCALL, "the next exit");
    same!(exception::take(INJECTED), 1, "the number of injected interrupts");
    same!(PLACES[usize::from(INJECTED)].load(Ordering::SeqCst), start, "where it interrupted");
    Outcome::Pass
}

/// The IDT is not mapped: delivery of an event is a page fault, which exits.
fn delivery() -> Outcome {
    const NOWHERE: u64 = 0x1234_5678_0000;
    let with = |information, code, length| {
        fresh(code!("nop"));
        set(field::GUEST_RFLAGS, 2 | IF);
        set(field::GUEST_IDTR_BASE, NOWHERE);
        set(field::GUEST_IDTR_LIMIT, 0xfff);
        set(field::EXCEPTION_BITMAP, 1 << 14);
        set(field::ENTRY_INTERRUPTION, information);
        set(field::ENTRY_ERROR_CODE, code);
        set(field::ENTRY_LENGTH, length);
        run(&mut [0; 8], false)
    };
    same!(with(VALID | VECTOR, 0, 0), Ok(0), "an interrupt");
    same!(get(field::EXIT_INTERRUPTION) & 0x8000_07ff, 0x8000_030e, "the page fault");
    same!(get(field::EXIT_QUALIFICATION), NOWHERE + 16 * VECTOR, "its address");
    same!(get(field::VECTORING) & !0x1000, VALID | VECTOR, "the interrupt");
    same!(with(VALID | 0xb0d, 0x28, 0), Ok(0), "an exception with an error code");
    same!(get(field::VECTORING) & !0x1000, VALID | 0xb0d, "the exception");
    same!(get(0x440a), 0x28, "its error code");
    same!(with(VALID | 4 << 8 | VECTOR, 0, 2), Ok(0), "a software interrupt");
    same!(get(field::VECTORING) & !0x1000, VALID | 4 << 8 | VECTOR, "the software interrupt");
    same!(get(field::EXIT_LENGTH), 2, "its length");
    same!(with(VALID | 2 << 8 | 2, 0, 0), Ok(0), "an NMI");
    same!(get(field::VECTORING) & !0x1000, VALID | 2 << 8 | 2, "the NMI");
    Outcome::Pass
}

fn interrupt_window() -> Outcome {
    let start = code!("sti", "nop", "nop");
    fresh(start);
    enable(field::PRIMARY_CONTROLS, primary::INTERRUPT_WINDOW);
    same!(run(&mut [0; 8], false), Ok(7), "after STI");
    same!(get(field::GUEST_RIP), start + 2, "the instruction after STI is done");
    fresh(start);
    enable(field::PRIMARY_CONTROLS, primary::INTERRUPT_WINDOW);
    set(field::GUEST_RFLAGS, 2 | IF);
    same!(run(&mut [0; 8], false), Ok(7), "at once");
    same!(get(field::GUEST_RIP), start, "no instruction is done");
    fresh(code!("nop"));
    enable(field::PRIMARY_CONTROLS, primary::INTERRUPT_WINDOW);
    same!(run(&mut [0; 8], false), VMCALL, "with interrupts disabled");
    Outcome::Pass
}

fn nmi_window() -> Outcome {
    const BLOCKED: u64 = 1 << 3;
    let start = code!("nop");
    fresh(start);
    if !enable(field::PIN_CONTROLS, VIRTUAL_NMIS) || !enable(field::PRIMARY_CONTROLS, primary::NMI_WINDOW) {
        return Outcome::Skip("there are no virtual NMIs");
    }
    same!(run(&mut [0; 8], false), Ok(8), "at once");
    same!(get(field::GUEST_RIP), start, "no instruction is done");
    set(field::GUEST_INTERRUPTIBILITY, BLOCKED);
    same!(run(&mut [0; 8], true), VMCALL, "while NMIs are blocked");
    same!(get(field::GUEST_INTERRUPTIBILITY), BLOCKED, "they stay blocked");
    check!(get(field::PIN_CONTROLS) & u64::from(pin::VIRTUAL_NMIS) != 0, "the control");
    Outcome::Pass
}

fn monitor_trap() -> Outcome {
    let start = code!("nop", "nop");
    fresh(start);
    if !enable(field::PRIMARY_CONTROLS, primary::MONITOR_TRAP) {
        return Outcome::Skip("there is no monitor trap flag");
    }
    same!(run(&mut [0; 8], false), Ok(37), "the first instruction");
    same!(get(field::GUEST_RIP), start + 1, "its end");
    same!(run(&mut [0; 8], true), Ok(37), "the second instruction");
    same!(get(field::GUEST_RIP), start + 2, "its end");
    fresh(start);
    set(field::ENTRY_INTERRUPTION, VALID | 7 << 8);
    same!(run(&mut [0; 8], false), Ok(37), "a pending trap");
    same!(get(field::GUEST_RIP), start, "no instruction is done");
    Outcome::Pass
}

/// Instructions that exit to the hypervisor, but not to L1.
fn completed() -> Outcome {
    const APIC_BASE: u64 = 0x1b;
    const APIC_TPR: u64 = 0xfee0_0080;
    /// The scratch register of the serial port.
    const PORT: u64 = 0x3ff;
    lapic::enable();
    let (memory, base) = (page(AREA), lapic::base());
    let (port, msr, device) = (code!("out 0x80, al", "nop"), code!("wrmsr", "nop"), code!("mov eax, [rsi]", "nop"));
    let (string, repeated) = (code!("outsb", "nop"), code!("rep outsb", "nop"));
    // The code, and addresses after the two steps; RAX, RCX, RDX and RSI.
    let rows = [
        (port, [port + 2, port + 3], [0, 0, 0, memory]),
        (msr, [msr + 2, msr + 3], [base, APIC_BASE, 0, memory]),
        (device, [device + 2, device + 3], [0, 0, 0, APIC_TPR]),
        (string, [string + 1, string + 2], [0, 0, PORT, memory]),
        (repeated, [repeated, repeated + 2], [0, 2, PORT, memory]),
    ];
    // Bochs performs several elements at once.
    let count = if is_guest() { rows.len() } else { rows.len() - 1 };
    for (start, steps, [rax, rcx, rdx, rsi]) in rows.into_iter().take(count) {
        fresh(start);
        if !enable(field::PRIMARY_CONTROLS, primary::MONITOR_TRAP | primary::MSR_BITMAPS) {
            return Outcome::Skip("there is no monitor trap flag, or no MSR bitmap");
        }
        clear(BITMAP);
        set(field::MSR_BITMAP, page(BITMAP));
        let mut registers = [rax, rcx, rdx, 0, 0, rsi, 0, 0];
        for (launched, step) in [false, true].into_iter().zip(steps) {
            same!((run(&mut registers, launched), get(field::GUEST_RIP)), (Ok(37), step), "the exit, and RIP");
        }
    }
    Outcome::Pass
}

/// INT1 of L2 is no debug exception with a cause: DR6 and DR7.GD stay.
fn int1() -> Outcome {
    const DEBUG: u8 = 1;
    const CAUSE: u64 = 0xffff_0ff1;
    const INITIAL: u64 = 0xffff_0ff0;
    const GD: u64 = 1 << 13 | 0x400;
    exception::handle(DEBUG, Some(|_| {}));
    let start = code!(".byte 0xf1", "nop");
    fresh(start);
    set(field::GUEST_DR7, GD);
    // SAFETY: no breakpoint is on; the tests use no debug register.
    unsafe { core::arch::asm!("mov dr6, {}", in(reg) CAUSE) };
    let exit = run(&mut [0; 8], false);
    let found: u64;
    // SAFETY: reads and writes DR6, which only reports debug exceptions that have happened.
    unsafe { core::arch::asm!("mov {0}, dr6", "mov dr6, {1}", out(reg) found, in(reg) INITIAL) };
    same!((exit, exception::take(DEBUG)), (VMCALL, 1), "the exit, and the number of exceptions");
    same!(PLACES[usize::from(DEBUG)].load(Ordering::SeqCst), start + 1, "where it returns");
    same!(found, CAUSE, "DR6");
    if get(field::EXIT_CONTROLS) & 1 << 2 != 0 {
        same!(get(field::GUEST_DR7), GD, "DR7");
    }
    Outcome::Pass
}

fn wakes() -> Outcome {
    const HLT: u64 = 1;
    if misc() & 1 << 6 == 0 {
        return Outcome::Skip("there is no activity state HLT");
    }
    take();
    fresh(code!("nop"));
    set(field::GUEST_ACTIVITY, HLT);
    set(field::GUEST_RFLAGS, 2 | IF);
    set(field::ENTRY_INTERRUPTION, VALID | VECTOR);
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(count(), 1, "the number of interrupts");
    same!(get(field::GUEST_ACTIVITY), 0, "the activity state");
    Outcome::Pass
}

/// Lets interrupts of L1 come until there is one of the tests' vector. Returns whether it came.
fn wait() -> bool {
    for _ in 0..1_000_000 {
        // SAFETY: handlers are in place, and the tests' interrupts are the only ones.
        unsafe { core::arch::asm!("sti", "nop", "nop", "cli") };
        if count() != 0 {
            return true;
        }
    }
    false
}

/// An interrupt of L1 that is pending at the entry exits before L2's first instruction. The VMCS is launched nevertheless.
fn interrupted_launch() -> Outcome {
    exception::handle(VECTOR as u8, None);
    lapic::enable();
    let start = code!("nop");
    fresh(start);
    let rights = get(field::GUEST_TR_RIGHTS);
    check!(enable(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPTS), "exits by external interrupts");
    lapic::send(0, VECTOR as u32 | lapic::command::SELF);
    same!(run(&mut [0; 8], false), Ok(1), "the exit");
    same!(get(field::GUEST_RIP), start, "no instruction is done");
    check!(wait(), "the interrupt");
    set(field::GUEST_TR_RIGHTS, 0);
    same!(run(&mut [0; 8], true), Ok(0x8000_0021), "an entry with an invalid state");
    set(field::GUEST_TR_RIGHTS, rights);
    same!(run(&mut [0; 8], true), VMCALL, "VMRESUME after it");
    Outcome::Pass
}

/// INIT is blocked in VMX root operation, and exits from L2.
fn init() -> Outcome {
    if !is_guest() {
        // Bochs 3.0 drops it.
        return Outcome::Skip("the processor drops a blocked INIT");
    }
    lapic::enable();
    let start = code!("nop");
    fresh(start);
    lapic::send(lapic::id(), lapic::command::INIT | lapic::command::ASSERT);
    same!(run(&mut [0; 8], false), Ok(3), "the exit");
    same!((get(field::GUEST_RIP), get(field::EXIT_QUALIFICATION)), (start, 0), "RIP, and the qualification");
    same!(run(&mut [0; 8], true), VMCALL, "the next exit");
    Outcome::Pass
}

/// An entry arms the timer of L1's APIC.
fn deadline() -> Outcome {
    const TSC_DEADLINE: u64 = 0x6e0;
    const DEADLINE_MODE: u32 = 2 << 17;
    if core::arch::x86_64::__cpuid(1).ecx & 1 << 24 == 0 {
        return Outcome::Skip("there is no TSC deadline");
    }
    exception::handle(VECTOR as u8, None);
    lapic::enable();
    lapic::write(lapic::register::TIMER, VECTOR as u32 | DEADLINE_MODE);
    fresh(code!("nop"));
    // SAFETY: the instruction has no effect on memory.
    let now = unsafe { core::arch::x86_64::_rdtsc() };
    area(0, TSC_DEADLINE, now + 20_000);
    set(field::ENTRY_MSR_LOADS, 1);
    set(field::ENTRY_MSR_LOAD_AREA, page(AREA));
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    check!(wait(), "the timer's interrupt");
    lapic::write(lapic::register::TIMER, 1 << 16);
    Outcome::Pass
}
