//! Direct interprocessor interrupts: the guest posts interrupts in the descriptors of its vCPUs, and notifies them by the physical ICR, or
//! through the gate.
//!
//! Command line: `without`: they must be refused. `storm`: instead of the tests, sends everything everywhere and scribbles all descriptors.
//! `held`: waits for the power button after the first test of timers.
#![no_std]
#![no_main]

mod sending;
mod timer;

use core::arch::asm;
use core::arch::x86_64::__cpuid as cpuid;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use common::random::Random;
use pc::console::println;
use pc::exception::{self, catch};
use pc::gate::{self, COMMAND, CONTROL, FEATURES, SENDS};
use pc::lapic::{self as apic, command, register};
use pc::machine::{cli, sti, ticks, wrmsr};
use pc::others::{self, DONE, SEEN, UP, pass, wait};
use pc::{acpi, console, machine};
use sending::{BASE, ICR, ON, control, count, descriptor, enable, halt_until, has_gate, send, set_control};

const DIRECT_IPI: u32 = 1;
/// The vector of the tests' interrupts.
const VECTOR: u8 = 0x71;
const ROUNDS: u64 = 500;

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite direct");
    apic::enable();
    others::start();
    // All existing CPUs are up within this time.
    pass(20_000_000);
    let line = machine::command_line(info);
    BASE.store(if cpuid(FEATURES).eax & (DIRECT_IPI | gate::FEATURE) == 0 { 0 } else { control() & !0xfff }, Ordering::SeqCst);
    if has_gate() {
        gate::setup();
    }
    if line.contains("without") {
        without();
    }
    if line.contains("storm") {
        let kinds = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("kinds=")?.parse().ok());
        KINDS.store(kinds.unwrap_or(DEFAULT_KINDS), Ordering::SeqCst);
        storm();
    }
    let mut failed = 0;
    for (name, test) in TESTS {
        match test() {
            Ok(()) => println!("PASS {name}"),
            Err(why) => {
                failed += 1;
                println!("FAIL {name}: {why}");
            }
        }
        if name == "timer_fires" && line.contains("held") {
            acpi::wait_for_power_button(|| println!("waiting for the power button"));
        }
    }
    println!("EXIT: STATUS={}", u32::from(failed != 0));
    machine::off()
}

type Test = fn() -> Result<(), &'static str>;

const TESTS: [(&str, Test); 18] = [
    ("features", features),
    ("refusals", refusals),
    ("to_running", to_running),
    ("to_halted", to_halted),
    ("to_all_halted", to_all_halted),
    ("masked_halt", masked_halt),
    ("stepped", stepped),
    ("command_of_init", command_of_init),
    ("end_by_control", end_by_control),
    ("end_by_the_apic", end_by_the_apic),
    ("timer_fires", timer::fires),
    ("timer_changes_hands", timer::changes_hands),
    ("timer_ends_with_the_apic", timer::ends_with_the_apic),
    ("timer_fires_in_turn", timer::fires_in_turn),
    ("timer_moves_with_the_counter", timer::moves_with_the_counter),
    ("timer_changes_hands_at_expiry", timer::changes_hands_at_expiry),
    ("timer_is_held_back", timer::is_held_back),
    ("timer_ends_by_init", timer::ends_by_init),
];

macro_rules! check {
    ($condition:expr, $why:literal) => {
        if !$condition {
            return Err($why);
        }
    };
}

/// There are no direct interrupts; those by the trapped ICR arrive.
fn without() -> ! {
    apic::set_base(apic::base() | apic::X2);
    apic::enable();
    let result = if BASE.load(Ordering::SeqCst) == 0 && icr_is_virtual() { "PASS" } else { "FAIL" };
    println!("{result} without\nEXIT: STATUS={}", u32::from(result == "FAIL"));
    machine::off()
}

/// Number of other CPUs, whose identifiers follow this one's, 0.
fn others() -> u32 {
    UP.load(Ordering::SeqCst)
}

/// Sends a message by Stile's register.
fn send_by_register(to: u32, low: u32) {
    // SAFETY: the MSR is there, as the VM has direct interprocessor interrupts.
    unsafe { wrmsr(COMMAND, u64::from(to) << 32 | u64::from(low)) };
}

fn enable_all() -> Result<(), &'static str> {
    enable();
    others::give(enable);
    check!(wait(|| DONE.load(Ordering::SeqCst) == others()), "they do nothing");
    Ok(())
}

fn features() -> Result<(), &'static str> {
    check!((cpuid(FEATURES).eax & (DIRECT_IPI | gate::FEATURE)).is_power_of_two(), "CPUID does not tell of it");
    check!(control() & SENDS == 0, "it is on");
    check!(control() >> 4 & 0xff == u64::from(others()) + 1, "another number of CPUs");
    check!(SEEN.load(Ordering::SeqCst) == (2 << others()) - 2, "other identifiers");
    Ok(())
}

fn refusals() -> Result<(), &'static str> {
    const GENERAL_PROTECTION: u64 = 13;
    let refused = |register: u32, low: u32, high: u32| {
        catch!("wrmsr", "ecx" = register, "eax" = low, "edx" = high).is_some_and(|(vector, _)| vector == GENERAL_PROTECTION)
    };
    check!(refused(CONTROL, 1, 0), "on in xAPIC mode");
    apic::set_base(apic::base() | apic::X2);
    check!(refused(CONTROL, 2, 0) && refused(CONTROL, 0, 1), "reserved bits");
    check!(refused(COMMAND, 1 << 20, 0), "reserved bits of a command");
    apic::write(register::SPURIOUS, 0xff);
    check!(refused(CONTROL, 1, 0), "on while the APIC is off");
    apic::enable();
    check!(control() & SENDS == 0, "it is on");
    set_control(SENDS);
    check!(control() & SENDS != 0, "it is off");
    enable_all()
}

/// To a CPU that runs, and back.
fn to_running() -> Result<(), &'static str> {
    if others() == 0 {
        return Ok(());
    }
    exception::handle(VECTOR, Some(reply));
    exception::handle(REPLY, None);
    others::give(sti);
    check!(wait(|| DONE.load(Ordering::SeqCst) == others()), "they do nothing");
    sti();
    let whole = (1..=ROUNDS).all(|round| {
        send(1, VECTOR);
        wait(|| count(REPLY) == round)
    });
    cli();
    check!(whole && count(VECTOR) == ROUNDS, "one is lost");
    Ok(())
}

const REPLY: u8 = 0x72;

fn reply(_: u64) {
    send(0, REPLY);
    apic::end();
}

/// Between two CPUs that wait by HLT.
fn to_halted() -> Result<(), &'static str> {
    if others() == 0 {
        return Ok(());
    }
    exception::handle(VECTOR, Some(reply));
    exception::handle(REPLY, None);
    others::give(|| {
        if apic::id() == 1 {
            halt_until(|| count(VECTOR) == ROUNDS);
        }
    });
    for round in 1..=ROUNDS {
        send(1, VECTOR);
        halt_until(|| count(REPLY) == round);
    }
    check!(wait(|| DONE.load(Ordering::SeqCst) == others()), "they do not end");
    check!(count(VECTOR) == ROUNDS, "one is lost");
    Ok(())
}

/// To all others, which wait by HLT, in different words of the request bits.
fn to_all_halted() -> Result<(), &'static str> {
    const VECTORS: [u8; 3] = [0x35, 0x91, 0xe2];
    const BROADCASTS: u64 = 100;
    /// Has no answer.
    const NUDGE: u8 = 0x73;
    static GOT: AtomicU64 = AtomicU64::new(0);
    GOT.store(0, Ordering::SeqCst);
    exception::handle(NUDGE, None);
    for vector in VECTORS {
        exception::handle(
            vector,
            Some(|_| {
                GOT.fetch_add(1, Ordering::SeqCst);
                apic::end();
            }),
        );
    }
    let all = BROADCASTS * VECTORS.len() as u64 * u64::from(others());
    others::give(|| halt_until(|| GOT.load(Ordering::SeqCst) >= BROADCASTS * VECTORS.len() as u64 * u64::from(others())));
    for round in 1..=BROADCASTS {
        for to in 1..=others() {
            VECTORS.iter().for_each(|&vector| send(to, vector));
        }
        let expected = round * all / BROADCASTS;
        check!(wait(|| GOT.load(Ordering::SeqCst) == expected), "one is lost");
    }
    // Those whose last interrupt was not the last of all wait on.
    let done = wait(|| {
        (1..=others()).for_each(|to| send(to, NUDGE));
        // Without a pause they would do nothing but take these.
        pass(50_000);
        DONE.load(Ordering::SeqCst) == others()
    });
    check!(done, "they do not end");
    Ok(())
}

/// A CPU that waits with interrupts off is not woken by a posted interrupt, and is by an NMI.
fn masked_halt() -> Result<(), &'static str> {
    static WAITING: AtomicU32 = AtomicU32::new(0);
    static WOKEN: AtomicU32 = AtomicU32::new(0);
    if others() == 0 {
        return Ok(());
    }
    exception::handle(2, None);
    exception::handle(VECTOR, None);
    others::give(|| {
        if apic::id() == 1 {
            WAITING.fetch_add(1, Ordering::SeqCst);
            // SAFETY: the sender's NMI ends the wait, and its handler returns to here.
            unsafe { asm!("cli", "hlt", options(nostack)) };
            WOKEN.fetch_add(1, Ordering::SeqCst);
            sti();
        }
    });
    check!(wait(|| WAITING.load(Ordering::SeqCst) == 1), "it does not wait");
    pass(500_000);
    send(1, VECTOR);
    pass(3_000_000);
    check!(WOKEN.load(Ordering::SeqCst) == 0, "an interrupt wakes it that it can't take");
    send_by_register(1, command::NMI | command::ASSERT);
    check!(wait(|| DONE.load(Ordering::SeqCst) == others()), "an NMI does not wake it");
    check!(wait(|| count(VECTOR) == 1), "the interrupt is lost");
    Ok(())
}

/// A sender that steps through the gate gets to its end.
fn stepped() -> Result<(), &'static str> {
    const DEBUG: u8 = 1;
    if others() == 0 || !has_gate() {
        return Ok(());
    }
    exception::handle(
        DEBUG,
        Some(|_| {
            if count(DEBUG) > 10_000 {
                println!("FAIL stepped: it never ends\nEXIT: STATUS=1");
                machine::off();
            }
        }),
    );
    exception::handle(VECTOR, None);
    others::give(sti);
    check!(wait(|| DONE.load(Ordering::SeqCst) == others()), "they do nothing");
    let target = descriptor(1);
    target.requests[usize::from(VECTOR >> 5)].fetch_or(1 << (VECTOR & 31), Ordering::SeqCst);
    target.control.fetch_or(ON, Ordering::SeqCst);
    // SAFETY: the code at the entry changes ECX and flags, and returns; the handler of steps changes nothing.
    unsafe {
        asm!(
            "pushfq",
            "or dword ptr [rsp], {tf}",
            "popfq",
            "call {entry}",
            "pushfq",
            "and dword ptr [rsp], ~{tf}",
            "popfq",
            entry = in(reg) gate::entry(1),
            tf = const 0x100,
            inout("eax") 0 => _,
            inout("ecx") 1 => _,
        );
    }
    check!(wait(|| count(VECTOR) == 1), "the other is not notified");
    // CALL, VMFUNC, RET, and those that end it.
    check!(count(DEBUG) == 6, "another number of steps");
    Ok(())
}

/// INIT and startup messages go by the register. INIT ends what the CPU had enabled.
fn command_of_init() -> Result<(), &'static str> {
    static SAW: AtomicU64 = AtomicU64::new(0);
    let expected = others();
    if expected == 0 {
        return Ok(());
    }
    others::forget();
    send_by_register(0, command::OTHERS | command::INIT | command::ASSERT);
    pass(3_000_000);
    others::prepare();
    send_by_register(0, command::OTHERS | command::STARTUP | command::ASSERT | others::PAGE);
    check!(wait(|| others() == expected), "they do not come up again");
    SAW.store(0, Ordering::SeqCst);
    others::give(|| {
        SAW.fetch_or(control() & SENDS, Ordering::SeqCst);
    });
    check!(wait(|| DONE.load(Ordering::SeqCst) == expected), "they do nothing");
    check!(SAW.load(Ordering::SeqCst) == 0, "it is still on");
    enable_all()?;
    to_halted()
}

/// Whether the ICR is the virtual one again: a message to identifier 1 reaches CPU 1. (The physical CPUs' identifiers differ.)
fn icr_is_virtual() -> bool {
    if others() == 0 {
        return true;
    }
    exception::handle(VECTOR, None);
    others::give(sti);
    let ready = wait(|| DONE.load(Ordering::SeqCst) == others());
    apic::send(1, command::ASSERT | u32::from(VECTOR));
    ready && wait(|| count(VECTOR) == 1)
}

fn end_by_control() -> Result<(), &'static str> {
    set_control(0);
    check!(control() & SENDS == 0, "it is on");
    check!(icr_is_virtual(), "the ICR is not trapped again");
    enable();
    Ok(())
}

/// A kernel that gives way to another one disables its APIC, and knows nothing of descriptors any more.
fn end_by_the_apic() -> Result<(), &'static str> {
    apic::write(register::SPURIOUS, 0xff);
    apic::enable();
    check!(control() & SENDS == 0, "it is on after the APIC was off");
    check!(icr_is_virtual(), "the ICR is not trapped again");
    set_control(SENDS);
    apic::set_base(apic::base() & !(apic::X2 | apic::ENABLED));
    apic::set_base(apic::base() | apic::ENABLED);
    apic::enable();
    check!(control() & SENDS == 0, "it is on after the APIC was disabled");
    Ok(())
}

/// Sends random messages to random physical CPUs, of all kinds but SMI, and writes random values to all descriptors,
/// for a while. Interrupts stay masked here: the guest's own CPUs receive unexpected ones, too.
fn storm() -> ! {
    const TURNS: u64 = 60_000;
    cli();
    if cpuid(FEATURES).eax & DIRECT_IPI == 0 {
        println!("FAIL storm: there are no direct interrupts\nEXIT: STATUS=1");
        machine::off();
    }
    others::give(|| rage(TURNS));
    rage(TURNS);
    let ended = wait(|| DONE.load(Ordering::SeqCst) == others());
    println!("storm: {}\nEXIT: STATUS={}", if ended { "over" } else { "FAIL one of them is gone" }, u32::from(!ended));
    machine::off()
}

/// Delivery modes that are sent, a bit each; and descriptors are scribbled.
static KINDS: AtomicU64 = AtomicU64::new(0);
const SCRIBBLES: u64 = 1 << 8;
/// The vector that is usual for spurious interrupts is sent, too.
const SPURIOUS: u64 = 1 << 9;
/// All but SMI, which is the firmware's, the modes that are reserved for the ICR, and the vector that blocks a CPU of Bochs 3.0 for ever
/// (docs/upstream/bochs-spurious-eoi.md).
const DEFAULT_KINDS: u64 = SCRIBBLES | 1 << 6 | 1 << 5 | 1 << 4 | 1 << 1 | 1 << 0;

fn rage(turns: u64) {
    enable();
    let mut random = Random::new(ticks() ^ u64::from(apic::id()));
    let cpus = u64::from(others()) + 1;
    let kinds = KINDS.load(Ordering::SeqCst);
    for _ in 0..turns {
        let value = random.bits();
        if value & 1 == 0 && kinds & SCRIBBLES != 0 {
            let descriptor = descriptor((value >> 8) as u32 % cpus as u32);
            match value >> 1 & 3 {
                0 => descriptor.control.store(random.bits(), Ordering::SeqCst),
                1 => descriptor.requests[(value >> 16) as usize % 8].store(random.bits() as u32, Ordering::SeqCst),
                2 => descriptor.control.store(u64::MAX, Ordering::SeqCst),
                _ => descriptor.requests.iter().for_each(|word| word.store(u32::MAX, Ordering::SeqCst)),
            }
            continue;
        }
        // Vectors of Stile's are as frequent as all others.
        let vector = if value >> 1 & 1 == 0 { 0xf0 | value >> 2 & 0xf } else { value >> 2 & 0xff };
        let delivery = if value >> 16 & 3 == 0 { value >> 18 & 7 } else { 0 };
        let mode = value >> 24 & 1;
        let shorthand = if value >> 26 & 7 == 0 { value >> 29 & 3 } else { 0 };
        let to = match value >> 32 & 7 {
            0 => 0xffff_ffff,
            1 => random.bits() & 0xffff_ffff,
            to => to & 3,
        };
        if kinds >> delivery & 1 != 0 && (vector != 0xff || kinds & SPURIOUS != 0) {
            let icr = to << 32 | shorthand << 18 | 1 << 14 | mode << 11 | delivery << 8 | vector;
            // SAFETY: no reserved bit is set; what it does to others is the test.
            unsafe { wrmsr(ICR, icr) };
        }
    }
    set_control(0);
}
