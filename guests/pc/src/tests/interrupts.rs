//! Interrupts of the APICs, NMIs, and single steps.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use super::test::{check, is_guest};
use crate::exception::{self, COUNTS, PLACES, take};
use crate::lapic::{self as apic, command, register};
use crate::machine::{cli, out8, pace, rdmsr, sti, ticks, wrmsr};
use crate::others::wait;

const VECTOR: u8 = 0x60;

fn count(vector: u8) -> u64 {
    COUNTS[usize::from(vector)].load(Ordering::SeqCst)
}

pub fn to_oneself(_: u64) -> Result<(), &'static str> {
    apic::enable();
    for vector in [VECTOR, 0x71, 0x82] {
        exception::handle(vector, None);
    }
    apic::send(0, command::SELF | u32::from(VECTOR));
    check!(take(VECTOR) == 0, "it comes while interrupts are off");
    sti();
    cli();
    check!(wait(|| count(VECTOR) == 1), "it does not come");
    // Highest priority first; an interrupt whose class is not above the task priority waits.
    static ORDER: AtomicU64 = AtomicU64::new(0);
    ORDER.store(0, Ordering::SeqCst);
    exception::handle(
        0x71,
        Some(|_| {
            ORDER.store(ORDER.load(Ordering::SeqCst) << 8 | 0x71, Ordering::SeqCst);
            apic::end();
        }),
    );
    exception::handle(
        0x82,
        Some(|_| {
            ORDER.store(ORDER.load(Ordering::SeqCst) << 8 | 0x82, Ordering::SeqCst);
            apic::end();
        }),
    );
    apic::write(register::TPR, 0x70);
    apic::send(0, command::SELF | 0x71);
    apic::send(0, command::SELF | 0x82);
    sti();
    let first = wait(|| ORDER.load(Ordering::SeqCst) != 0) && ORDER.load(Ordering::SeqCst) == 0x82;
    apic::write(register::TPR, 0);
    let second = wait(|| ORDER.load(Ordering::SeqCst) == 0x8271);
    cli();
    check!(first, "the priority of the task is not heeded");
    check!(second, "what waited does not come");
    Ok(())
}

/// The timer's three modes, by turns.
pub fn timer(_: u64) -> Result<(), &'static str> {
    const PERIODIC: u32 = 1 << 17;
    const DEADLINE: u32 = 2 << 17;
    const MASKED: u32 = 1 << 16;
    const DEADLINE_REGISTER: u32 = 0x6e0;
    apic::enable();
    exception::handle(VECTOR, None);
    apic::write(register::DIVIDE, 0xb);
    apic::write(register::TIMER, u32::from(VECTOR));
    let start = ticks();
    apic::write(register::INITIAL, 0x1_0000 * pace() as u32);
    check!(apic::read(register::CURRENT) != 0, "it does not count");
    sti();
    let once = wait(|| count(VECTOR) != 0) && (!is_guest() || ticks() - start >= 0x1_0000);
    let zero = apic::read(register::CURRENT) == 0;
    apic::write(register::TIMER, PERIODIC | u32::from(VECTOR));
    apic::write(register::INITIAL, 0x8000 * pace() as u32);
    let often = wait(|| count(VECTOR) >= 6);
    apic::write(register::TIMER, MASKED | u32::from(VECTOR));
    apic::write(register::INITIAL, 0);
    // An expiry while the vector is masked is dropped.
    take(VECTOR);
    apic::write(register::TIMER, MASKED | u32::from(VECTOR));
    apic::write(register::INITIAL, 0x1000);
    let silent = wait(|| apic::read(register::CURRENT) == 0);
    apic::write(register::TIMER, u32::from(VECTOR));
    let silent = silent && (0..100).all(|_| count(VECTOR) == 0);
    apic::write(register::TIMER, MASKED | u32::from(VECTOR));
    check!(silent, "one-shot: it comes when it is unmasked");
    check!(once && zero, "one-shot: it does not come, or too early");
    check!(often, "periodic: it does not come again");
    take(VECTOR);
    if !is_guest() {
        // Bochs compares the deadline with another count than the counter's.
        return Ok(());
    }
    apic::write(register::TIMER, DEADLINE | u32::from(VECTOR));
    // SAFETY: every supported CPU has TSC-deadline mode.
    let (soon, cleared) = unsafe {
        wrmsr(DEADLINE_REGISTER, ticks() + 100_000 * pace());
        let armed = rdmsr(DEADLINE_REGISTER) != 0;
        let soon = wait(|| count(VECTOR) == 1);
        (soon && armed, rdmsr(DEADLINE_REGISTER) == 0)
    };
    // SAFETY: every supported CPU has TSC-deadline mode; a past deadline fires at once: within an instruction.
    unsafe {
        wrmsr(DEADLINE_REGISTER, ticks());
        asm!("nop", options(nostack));
    }
    // Where time does not count instructions, soon.
    let past = count(VECTOR) == 2 || pace() > 1 && wait(|| count(VECTOR) == 2);
    // SAFETY: every supported CPU has TSC-deadline mode, and the interrupt wakes HLT.
    let woken = unsafe {
        wrmsr(DEADLINE_REGISTER, ticks() + 1_000_000 * pace());
        asm!("hlt", options(nostack));
        wait(|| count(VECTOR) == 3)
    };
    cli();
    apic::write(register::TIMER, MASKED | u32::from(VECTOR));
    check!(soon && cleared, "deadline: it does not come, or stays armed");
    check!(past && woken, "deadline: one that is past, or in HLT");
    Ok(())
}

fn set_test_line(line: u16, high: bool) {
    // SAFETY: the port sets an interrupt line of the test device, to which nothing else is connected.
    unsafe { out8(0x2000 + line, u8::from(high)) };
}

pub fn lines_of_the_io_apic(_: u64) -> Result<(), &'static str> {
    const LOW: u8 = 0x66;
    const HIGH: u8 = 0x78;
    apic::enable();
    exception::handle(LOW, None);
    exception::handle(HIGH, None);
    let pulse = |line: u16| {
        set_test_line(line, true);
        set_test_line(line, false);
    };
    check!(apic::io_read(1) & 0xff >= 0x11 && apic::io_read(1) >> 16 & 0xff == 23, "another version, or number of inputs");
    apic::io_route(14, apic::id(), u32::from(HIGH));
    apic::io_route(15, apic::id(), u32::from(LOW));
    sti();
    pulse(14);
    check!(wait(|| count(HIGH) == 1), "an edge does not come");
    cli();
    pulse(15);
    pulse(14);
    pulse(14);
    sti();
    check!(wait(|| count(LOW) == 1) && count(HIGH) == 2, "two at once, or two edges as one");
    let place = |vector: u8| PLACES[usize::from(vector)].load(Ordering::SeqCst);
    check!(place(LOW) == place(HIGH), "an instruction runs between two interrupts");
    apic::io_route(14, apic::id(), u32::from(HIGH) | apic::IO_MASKED);
    pulse(14);
    apic::io_route(14, apic::id(), u32::from(HIGH));
    check!(count(HIGH) == 2, "an edge on a masked input is remembered");
    // A level-triggered interrupt repeats until it is deasserted.
    static TIMES: AtomicU64 = AtomicU64::new(0);
    exception::handle(
        LOW,
        Some(|_| {
            if TIMES.fetch_add(1, Ordering::SeqCst) == 2 {
                set_test_line(15, false);
            }
            let level = apic::read(register::TMR + 0x10 * (u32::from(LOW) >> 5)) >> (LOW & 31) & 1;
            let remote = apic::io_read(0x10 + 2 * 15) & apic::IO_REMOTE;
            if level == 0 || remote == 0 {
                TIMES.store(1000, Ordering::SeqCst);
            }
            apic::end();
        }),
    );
    apic::io_route(15, apic::id(), u32::from(LOW) | apic::IO_LEVEL);
    set_test_line(15, true);
    let thrice = wait(|| TIMES.load(Ordering::SeqCst) >= 3);
    cli();
    let remote = apic::io_read(0x10 + 2 * 15) & apic::IO_REMOTE;
    apic::io_route(14, 0, apic::IO_MASKED);
    apic::io_route(15, 0, apic::IO_MASKED);
    check!(thrice && TIMES.load(Ordering::SeqCst) == 3, "a level does not come until it falls, or is no level");
    check!(remote == 0, "the remote IRR stays");
    Ok(())
}

pub fn nmis(_: u64) -> Result<(), &'static str> {
    apic::enable();
    let me = apic::id();
    // An NMI is delivered while interrupts are disabled. During its handler, several NMIs are merged into
    // one.
    exception::handle(
        2,
        Some(|_| {
            if count(2) == 1 {
                for _ in 0..10 {
                    apic::send(apic::id(), command::NMI | command::ASSERT);
                }
                if count(2) != 1 {
                    COUNTS[2].store(100, Ordering::SeqCst);
                }
            }
        }),
    );
    apic::send(me, command::NMI | command::ASSERT);
    // The one that waits comes right behind IRET, though interrupts are off.
    let at_once = (0..100).any(|_| count(2) == 2);
    check!(wait(|| count(2) >= 2), "it does not come, or none after it");
    check!(at_once || !is_guest(), "the one that waits comes late");
    check!(count(2) == 2, "one comes within another, or too many");
    exception::handle(2, None);
    // With the self shorthand, only fixed interrupts are valid.
    if is_guest() {
        apic::send(0, command::SELF | command::NMI | command::ASSERT);
        apic::send(0, command::ALL | command::NMI | command::ASSERT);
        check!(count(2) == 0, "an NMI by a shorthand that has none");
    }
    // By a line.
    if is_guest() {
        apic::io_route(14, me, 4 << 8);
        set_test_line(14, true);
        set_test_line(14, false);
        apic::io_route(14, 0, apic::IO_MASKED);
        check!(wait(|| count(2) == 1), "it does not come by the I/O APIC");
    }
    Ok(())
}

/// An NMI that another one blocks does not end HLT; an interrupt does, and its IRET unblocks the NMI.
pub fn blocked_nmis(_: u64) -> Result<(), &'static str> {
    static CAME: AtomicU64 = AtomicU64::new(0);
    apic::enable();
    exception::handle(VECTOR, None);
    apic::write(register::DIVIDE, 0xb);
    apic::write(register::TIMER, u32::from(VECTOR));
    exception::handle(
        2,
        Some(|_| {
            if count(2) != 1 {
                return;
            }
            apic::send(apic::id(), command::NMI | command::ASSERT);
            apic::write(register::INITIAL, 0x40_0000);
            // SAFETY: the timer armed before interrupts this wait, and its handler returns to here.
            unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
            CAME.store(count(VECTOR), Ordering::SeqCst);
        }),
    );
    CAME.store(0, Ordering::SeqCst);
    apic::send(apic::id(), command::NMI | command::ASSERT);
    let both = wait(|| count(2) == 2);
    sti();
    let timer = wait(|| count(VECTOR) == 1);
    cli();
    exception::handle(2, None);
    apic::write(register::TIMER, apic::IO_MASKED);
    check!(both && timer, "one does not come");
    check!(CAME.load(Ordering::SeqCst) == 1, "HLT ends by an NMI that is blocked");
    Ok(())
}

/// With an interrupt pending, the instruction after STI is executed first, even if it exits. The next one is
/// not; but if the one after STI exits, it may be, with virtual-interrupt delivery.
pub fn shadows(_: u64) -> Result<(), &'static str> {
    apic::enable();
    exception::handle(VECTOR, None);
    macro_rules! after {
        ($code:literal) => {{
            take(VECTOR);
            apic::send(0, command::SELF | u32::from(VECTOR));
            let place: u64;
            // SAFETY: the instruction's clobbers are named, or saved by the handler.
            unsafe {
                asm!(
                    "push rbx", "lea r10, [rip + 2f]", "sti", $code, "2:", "nop", "cli", "pop rbx",
                    out("r10") place, inout("rax") 0u64 => _, inout("rcx") 0x1bu64 => _, inout("rdx") 0x80u64 => _, in("rdi") 0xfee0_0020u64,
                );
            }
            let came = PLACES[usize::from(VECTOR)].load(Ordering::SeqCst);
            take(VECTOR) == 1 && (came == place || is_guest() && $code != "nop" && came == place + 1)
        }};
    }
    check!(after!("nop"), "NOP");
    check!(after!("in al, dx"), "IN");
    check!(after!("rdmsr"), "RDMSR");
    check!(after!("cpuid"), "CPUID");
    check!(after!("mov eax, [rdi]"), "a read of the APIC");
    Ok(())
}

/// Each instruction is one step, even if it exits.
pub fn steps(_: u64) -> Result<(), &'static str> {
    static STEPS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
    apic::enable();
    exception::handle(
        1,
        Some(|place| {
            if let Some(step) = STEPS.get(count(1) as usize - 1) {
                step.store(place, Ordering::SeqCst);
            }
        }),
    );
    let start: u64;
    // SAFETY: each instruction's effects are named; the trap flag is clear at the end.
    unsafe {
        asm!(
            "push rbx",
            "pushfq", "or qword ptr [rsp], 0x100", "popfq",
            "2: nop",                   // 1 byte
            "in al, dx",                // 1
            "mov eax, [rdi]",           // 2
            "mov ecx, 0x1b",            // 5
            "rdmsr",                    // 2
            "xor eax, eax",             // 2
            "cpuid",                    // 2
            "nop",
            "pushfq", "and qword ptr [rsp], ~0x100", "popfq",
            "lea r10, [rip + 2b]",
            "pop rbx",
            out("r10") start, out("rax") _, out("rcx") _, inout("rdx") 0x80u64 => _, in("rdi") 0xfee0_0020u64,
        );
    }
    exception::handle(1, None);
    let mut at = start;
    for (n, length) in [1, 1, 2, 5, 2, 2, 2, 1].into_iter().enumerate() {
        at += length;
        check!(STEPS[n].load(Ordering::SeqCst) == at, "a step is missing");
    }
    Ok(())
}
