//! The VMX-preemption timer.

use core::arch::x86_64::_rdtsc;

use pc::exception::{self, COUNTS};
use pc::lapic;

use crate::exits::VMCALL;
use crate::field::{self, exit, pin};
use crate::test::{Outcome, Test, check, same};
use crate::vmcs::{code, enable, fresh, get, misc, page, run, set};

pub const ALL: &[Test] = &[
    ("timer_that_has_expired", expired),
    ("timer_counts", counts),
    ("timer_is_saved", saved),
    ("timer_amid_exits_to_others", amid_exits),
    ("timer_and_injection", injection),
    ("timer_ends_hlt", halted),
    ("timer_before_interrupts", before_interrupts),
    ("timer_beside_deadlines", beside_deadlines),
];

/// Exit reason.
const EXPIRED: Result<u64, crate::vmcs::Done> = Ok(52);
const ABSENT: Outcome = Outcome::Skip("there is no preemption timer");
/// More than each loop of these tests takes, in changes of the timer's bit at each rate.
const LONG: u64 = 0xffff_ffff;
/// Ticks that entries, exits and other work of a hypervisor take at most.
const SLACK: u64 = 2_000_000;
const VECTOR: u64 = 0x41;
const IF: u64 = 1 << 9;
const HALTED: u64 = 1;

fn now() -> u64 {
    // SAFETY: the instruction has no effect on memory.
    unsafe { _rdtsc() }
}

fn rate() -> u64 {
    misc() & 0x1f
}

/// A fresh VMCS with the timer at a value. Returns whether there is one.
fn armed(code: u64, value: u64) -> bool {
    fresh(code);
    set(field::PREEMPTION_TIMER, value);
    enable(field::PIN_CONTROLS, pin::PREEMPTION_TIMER)
}

/// A loop that does not end by itself.
fn forever() -> u64 {
    code!("2: inc rax", "jmp 2b")
}

fn expired() -> Outcome {
    let start = forever();
    if !armed(start, 0) {
        return ABSENT;
    }
    for launched in [false, true] {
        same!(run(&mut [0; 8], launched), EXPIRED, "the exit");
        same!(get(field::GUEST_RIP), start, "no instruction is done");
        same!(get(field::EXIT_QUALIFICATION), 0, "the qualification");
        same!(get(field::EXIT_INTERRUPTION) >> 31, 0, "an event");
        same!(get(field::VECTORING) >> 31, 0, "IDT-vectoring information");
        same!(get(field::PREEMPTION_TIMER), 0, "the field");
    }
    set(field::PREEMPTION_TIMER, LONG);
    set(field::GUEST_RIP, code!("nop"));
    same!(run(&mut [0; 8], true), VMCALL, "a timer that has not expired");
    // Without the control, the field has no effect.
    set(field::PREEMPTION_TIMER, 0);
    set(field::PIN_CONTROLS, get(field::PIN_CONTROLS) & !u64::from(pin::PREEMPTION_TIMER));
    set(field::GUEST_RIP, code!("nop"));
    same!(run(&mut [0; 8], true), VMCALL, "a timer that is not active");
    Outcome::Pass
}

fn counts() -> Outcome {
    let value = 100_000 >> rate();
    if !armed(forever(), value) {
        return ABSENT;
    }
    // It starts anew at each entry.
    let mut has_run = false;
    for launched in [false, true, true] {
        let mut registers = [0; 8];
        let start = now();
        same!(run(&mut registers, launched), EXPIRED, "the exit");
        let elapsed = now() - start;
        // The first change of the bit can come at once.
        check!(elapsed >= (value - 1) << rate(), "it expires early");
        check!(elapsed <= (value << rate()) + SLACK, "it expires late");
        // Unless another VM had the CPU.
        has_run |= registers[0] > 1000;
        same!(get(field::PREEMPTION_TIMER), value, "a field that is not saved");
    }
    check!(has_run, "L2 has not run meanwhile");
    Outcome::Pass
}

fn saved() -> Outcome {
    let start = code!("mov ecx, 20000", "2: dec ecx", "jnz 2b");
    if !armed(start, LONG) || !enable(field::EXIT_CONTROLS, exit::SAVE_PREEMPTION_TIMER) {
        return ABSENT;
    }
    let mut value = LONG;
    for launched in [false, true] {
        set(field::GUEST_RIP, start);
        let before = now();
        same!(run(&mut [0; 8], launched), VMCALL, "the exit");
        let elapsed = now() - before;
        let counted = value - get(field::PREEMPTION_TIMER);
        check!(counted <= (elapsed >> rate()) + 1, "it counts more than there is time");
        check!((counted + 1) << rate() >= 20_000, "it counts less than L2 takes");
        value -= counted;
    }
    set(field::PREEMPTION_TIMER, 10_000 >> rate());
    set(field::GUEST_RIP, forever());
    same!(run(&mut [0; 8], true), EXPIRED, "the exit of a timer that is saved");
    same!(get(field::PREEMPTION_TIMER), 0, "a timer that has expired");
    same!(run(&mut [0; 8], true), EXPIRED, "the next exit");
    Outcome::Pass
}

/// L2 does what L1 does not ask exits for: under a hypervisor, exits may come of it that L1 does not see.
fn amid_exits() -> Outcome {
    let start = code!("2: in al, 0x61", "inc rbx", "jmp 2b");
    let value = 200_000 >> rate();
    if !armed(start, value) {
        return ABSENT;
    }
    let mut registers = [0; 8];
    let before = now();
    same!(run(&mut registers, false), EXPIRED, "the exit");
    let elapsed = now() - before;
    check!(elapsed >= (value - 1) << rate(), "it expires early");
    check!(elapsed <= (value << rate()) + SLACK, "it expires late");
    check!(registers[3] > 10, "L2 has not run meanwhile");
    Outcome::Pass
}

/// An event is delivered before a timer that has expired exits.
fn injection() -> Outcome {
    exception::handle(VECTOR as u8, None);
    exception::take(VECTOR as u8);
    let start = forever();
    if !armed(start, 0) {
        return ABSENT;
    }
    let stack = page(crate::vmcs::STACK + 1);
    set(field::GUEST_RFLAGS, 2 | IF);
    set(field::ENTRY_INTERRUPTION, 1 << 31 | VECTOR);
    same!(run(&mut [0; 8], false), EXPIRED, "the exit");
    check!(get(field::GUEST_RIP) != start, "the interrupt is not delivered");
    same!(get(field::GUEST_RSP), stack - 40, "the stack of its handler");
    same!(get(field::VECTORING) >> 31, 0, "IDT-vectoring information");
    same!(COUNTS[VECTOR as usize].load(core::sync::atomic::Ordering::SeqCst), 0, "the handler's instructions");
    Outcome::Pass
}

fn halted() -> Outcome {
    let start = code!("hlt");
    if !armed(start, 50_000 >> rate()) || misc() & 1 << 6 == 0 {
        return ABSENT;
    }
    same!(run(&mut [0; 8], false), EXPIRED, "the exit after HLT");
    // The timer runs on while another VM has the CPU, and may expire before HLT.
    for _ in 0..8 {
        if get(field::GUEST_RIP) == start {
            armed(start, 50_000 >> rate());
            same!(run(&mut [0; 8], false), EXPIRED, "the exit after HLT, again");
        }
    }
    same!((get(field::GUEST_RIP), get(field::GUEST_ACTIVITY)), (start + 1, HALTED), "RIP and the activity state");
    // It is entered in that state, too.
    same!(run(&mut [0; 8], true), EXPIRED, "the exit of an entry to HLT");
    same!((get(field::GUEST_RIP), get(field::GUEST_ACTIVITY)), (start + 1, HALTED), "RIP and the activity state");
    Outcome::Pass
}

/// Lets interrupts of L1 come until there is one of the tests' vector.
fn wait() -> bool {
    for _ in 0..1_000_000 {
        // SAFETY: handlers are in place, and the tests' interrupts are the only ones.
        unsafe { core::arch::asm!("sti", "nop", "nop", "cli") };
        if exception::take(VECTOR as u8) != 0 {
            return true;
        }
    }
    false
}

fn before_interrupts() -> Outcome {
    exception::handle(VECTOR as u8, None);
    lapic::enable();
    let start = forever();
    if !armed(start, 0) {
        return ABSENT;
    }
    enable(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPTS);
    lapic::send(0, VECTOR as u32 | lapic::command::SELF);
    same!(run(&mut [0; 8], false), EXPIRED, "the exit");
    same!(get(field::GUEST_RIP), start, "no instruction is done");
    set(field::PREEMPTION_TIMER, LONG);
    same!(run(&mut [0; 8], true), Ok(1), "the interrupt's exit");
    check!(wait(), "the interrupt");
    Outcome::Pass
}

/// The timer and the deadline of L1's APIC, each of them first.
fn beside_deadlines() -> Outcome {
    const TSC_DEADLINE: u32 = 0x6e0;
    const DEADLINE_MODE: u32 = 2 << 17;
    if core::arch::x86_64::__cpuid(1).ecx & 1 << 24 == 0 {
        return Outcome::Skip("there is no TSC deadline");
    }
    exception::handle(VECTOR as u8, None);
    lapic::enable();
    lapic::write(lapic::register::TIMER, VECTOR as u32 | DEADLINE_MODE);
    if !armed(forever(), 20_000 >> rate()) {
        return ABSENT;
    }
    enable(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPTS);
    let arm = |ticks| {
        let deadline = now() + ticks;
        // SAFETY: the register exists, and its interrupt has a handler.
        unsafe { pc::machine::wrmsr(TSC_DEADLINE, deadline) };
        deadline
    };
    let deadline = arm(10_000_000);
    same!(run(&mut [0; 8], false), EXPIRED, "the timer before the deadline");
    check!(now() < deadline, "the timer has waited for the deadline");
    set(field::PREEMPTION_TIMER, LONG);
    same!(run(&mut [0; 8], true), Ok(1), "the deadline before the timer");
    check!(now() >= deadline, "the deadline has come early");
    check!(wait(), "the deadline's interrupt");
    let deadline = arm(100_000);
    same!(run(&mut [0; 8], true), Ok(1), "a deadline that is armed anew");
    check!(now() >= deadline, "it has come early");
    check!(wait(), "its interrupt");
    lapic::write(lapic::register::TIMER, 1 << 16);
    Outcome::Pass
}
