//! Sends through the gate while its slots open and close, or without end.
//!
//! Command line: `init`: the first CPU resets the second by INIT and then notifies it: each time is an exit. `flood`: the
//! first and the third CPU notify the second one without end. `reset`: the first one notifies the second one, and then resets the VM,
//! while the third one enters the gate. Otherwise the first one notifies the second and the fourth,
//! which wait by HLT on a CPU that they share, and so come and go. Each notification is sent once, and each interrupt must be taken.
#![no_std]
#![no_main]

use core::arch::asm;
use core::arch::x86_64::__cpuid as cpuid;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pc::console::println;
use pc::exception::{self, COUNTS};
use pc::gate::{COMMAND, CONTROL, FEATURES, SENDS};
use pc::lapic::command;
use pc::machine::{cli, rdmsr, wrmsr};
use pc::others::{self, DONE, UP, pass, wait};
use pc::{console, gate, lapic as apic, machine};

const ON: u64 = 1;
const VECTOR: u32 = 0x71;
const INT3: usize = 3;
const ROUNDS: u32 = 6000;

pc::program!();

static ENDED: AtomicBool = AtomicBool::new(false);

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite gate_stress");
    apic::enable();
    others::start();
    let line = machine::command_line(info);
    // All existing CPUs are up within this time.
    pass(if line.contains("reset") { 4_000_000 } else { 20_000_000 });
    let resets = line.contains("reset");
    let needed = if line.contains("init") {
        1
    } else if line.contains("flood") || resets {
        2
    } else {
        3
    };
    if cpuid(FEATURES).eax & gate::FEATURE == 0 || UP.load(Ordering::SeqCst) != needed {
        println!("FAIL gate_stress: there is no gate, or another number of CPUs\nEXIT: STATUS=1");
        machine::off();
    }
    cli();
    gate::setup();
    enable();
    if line.contains("flood") {
        others::give(|| {
            enable();
            flood(apic::id() != 1)
        });
        flood(true);
    }
    let result = match line {
        _ if resets => reset(),
        _ if line.contains("init") => notify_after_init(),
        _ => toggle(),
    };
    println!("{} gate_stress: {}", if result.is_ok() { "PASS" } else { "FAIL" }, result.err().unwrap_or("all taken"));
    println!("EXIT: STATUS={}", u32::from(result.is_err()));
    machine::off()
}

fn enable() {
    apic::set_base(apic::base() | apic::X2);
    apic::enable();
    // SAFETY: the MSR is there, as the VM has a gate.
    unsafe { wrmsr(CONTROL, SENDS) };
}

fn flood(sends: bool) -> ! {
    loop {
        if sends {
            gate::notify(1);
        }
    }
}

/// Vector of the interrupts of a CPU.
const fn vector_of(cpu: u32) -> u32 {
    VECTOR + cpu
}

/// Posts the interrupt of a CPU, and notifies it, unless a notification is under way.
fn send(to: u32) {
    let vector = vector_of(to);
    // SAFETY: the MSR is there, as the VM has a gate. Stile has the descriptors where it says, once a CPU sends.
    let (request, control) = unsafe {
        let at = (rdmsr(CONTROL) & !0xfff) + u64::from(to) * 4096;
        (&*((at + u64::from(vector / 32) * 4) as *const AtomicU32), &*((at + 32) as *const AtomicU64))
    };
    if request.fetch_or(1 << (vector % 32), Ordering::SeqCst) & 1 << (vector % 32) != 0 {
        return;
    }
    if control.fetch_or(ON, Ordering::SeqCst) & ON == 0 {
        gate::notify(to);
    }
}

fn notify_after_init() -> Result<(), &'static str> {
    const INIT: u64 = 1 << 32 | (command::INIT | command::ASSERT) as u64;
    others::give(enable);
    if !wait(|| DONE.load(Ordering::SeqCst) == UP.load(Ordering::SeqCst)) {
        return Err("it does nothing");
    }
    // SAFETY: the MSR is there, as the VM has a gate.
    unsafe { wrmsr(COMMAND, INIT) };
    pass(3_000_000);
    (0..2000).for_each(|_| gate::notify(1));
    Ok(())
}

/// Returns only if interrupts are lost.
fn reset() -> Result<(), &'static str> {
    const KEYBOARD: u16 = 0x64;
    const RESET: u8 = 0xfe;
    const SENT: u64 = 50;
    exception::handle(vector_of(1) as u8, None);
    others::give(|| {
        enable();
        loop {
            if apic::id() == 2 {
                gate::notify(0);
                gate::notify(1);
            } else {
                // SAFETY: interrupts have handlers, and another CPU sends this one its next: the wait ends.
                unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
            }
        }
    });
    for sent in 1..=SENT {
        send(1);
        if !wait(|| COUNTS[vector_of(1) as usize].load(Ordering::SeqCst) == sent) {
            return Err("an interrupt is lost");
        }
    }
    println!("gate_stress: resets");
    // SAFETY: the 8042 resets the machine, which this test expects: nothing after it is needed.
    unsafe { machine::out8(KEYBOARD, RESET) };
    pass(200_000_000);
    Err("it is not reset")
}

fn toggle() -> Result<(), &'static str> {
    let up = UP.load(Ordering::SeqCst);
    (1..=up).for_each(|cpu| exception::handle(vector_of(cpu) as u8, None));
    others::give(|| {
        enable();
        while !ENDED.load(Ordering::SeqCst) {
            // SAFETY: interrupts have handlers, and another CPU sends this one its next: the wait ends.
            unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
        }
    });
    let stray = || COUNTS[INT3].load(Ordering::SeqCst) != 0;
    let mut sent = [0; 4];
    // Sends once the interrupt before was taken: that one, or its notification, would be lost otherwise.
    let mut next = |to: u32| {
        let sent = &mut sent[to as usize];
        let taken = wait(|| COUNTS[vector_of(to) as usize].load(Ordering::SeqCst) == *sent);
        *sent += 1;
        send(to);
        taken
    };
    for round in 0..ROUNDS {
        if !next(1 + 2 * (round % 2)) {
            return Err("an interrupt is lost");
        }
        if stray() {
            return Err("an instruction of the guest's own page is executed");
        }
    }
    ENDED.store(true, Ordering::SeqCst);
    let ended = (1..=up).all(&mut next) && wait(|| DONE.load(Ordering::SeqCst) == up);
    if stray() {
        return Err("an instruction of the guest's own page is executed");
    }
    if ended { Ok(()) } else { Err("a CPU does not wake") }
}
