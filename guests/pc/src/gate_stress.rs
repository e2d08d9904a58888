//! Sends through the gate while its slots open and close, or without end.
//!
//! Command line: `init`: the first CPU resets the second by INIT and then notifies it: each time is an exit. `flood`: the
//! first and the third CPU notify the second one without end. Otherwise the first one notifies the second and the fourth,
//! which wait by HLT on a CPU that they share, and so come and go.
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
    pass(20_000_000);
    let line = machine::command_line(info);
    if cpuid(FEATURES).eax & gate::FEATURE == 0 || UP.load(Ordering::SeqCst) < if line.contains("init") { 1 } else { 2 } {
        println!("FAIL gate_stress: there is no gate, or too few CPUs\nEXIT: STATUS=1");
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
    let result = if line.contains("init") { notify_after_init() } else { toggle() };
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

/// Posts the interrupt for a CPU, and notifies it even if a notification is under way.
fn send(to: u32) {
    // SAFETY: the MSR is there, as the VM has a gate. Stile has the descriptors where it says, once a CPU sends.
    let (request, control) = unsafe {
        let at = (rdmsr(CONTROL) & !0xfff) + u64::from(to) * 4096;
        (&*((at + u64::from(VECTOR / 32) * 4) as *const AtomicU32), &*((at + 32) as *const AtomicU64))
    };
    request.fetch_or(1 << (VECTOR % 32), Ordering::SeqCst);
    control.fetch_or(ON, Ordering::SeqCst);
    gate::notify(to);
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

fn toggle() -> Result<(), &'static str> {
    exception::handle(VECTOR as u8, None);
    others::give(|| {
        enable();
        while !ENDED.load(Ordering::SeqCst) {
            // SAFETY: an interrupt ends the wait.
            unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
        }
    });
    let stray = || COUNTS[INT3].load(Ordering::SeqCst) != 0;
    for round in 0..ROUNDS {
        send(1 + 2 * (round % 2));
        if stray() {
            return Err("an instruction of the guest's own page is executed");
        }
    }
    ENDED.store(true, Ordering::SeqCst);
    let ended = wait(|| {
        (1..=UP.load(Ordering::SeqCst)).for_each(send);
        pass(50_000);
        DONE.load(Ordering::SeqCst) == UP.load(Ordering::SeqCst)
    });
    if stray() {
        return Err("an instruction of the guest's own page is executed");
    }
    if ended { Ok(()) } else { Err("a CPU does not wake") }
}
