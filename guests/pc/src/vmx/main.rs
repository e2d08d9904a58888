//! A VMX conformance suite: as L1 under a hypervisor that offers VMX, or on a processor. It prints `PASS name`, `FAIL name: why` or
//! `SKIP name: why` for each test, and `EXIT: STATUS=n`.
#![no_std]
#![no_main]

mod areas;
mod checks;
mod cost;
mod cr4;
mod devices;
mod ept_flags;
mod events;
mod exits;
mod field;
mod habits;
mod hostile;
mod instructions;
mod intercepts;
mod memory;
mod nmis;
mod pae;
mod protected;
mod replaced;
mod reset;
mod second;
mod segments;
mod steps;
mod strings;
mod sweeps;
mod test;
mod timer;
mod untouched;
mod virtual_apic;
mod virtual_interrupts;
mod vmcs;

use pc::console::{self, println};
use pc::exception;
use pc::machine::{self, out8, rdmsr, wrmsr};
use test::Outcome;

pc::program!();
pc::assembly!("vmx/run.s");
pc::assembly!("vmx/protected.s");

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    // SAFETY: interrupts that a BIOS left enabled at the 8259s would arrive as exceptions.
    unsafe {
        out8(0x21, 0xff);
        out8(0xa1, 0xff);
    }
    println!("suite vmx");
    let only = machine::command_line(info).split_once("only=").map(|(_, only)| only);
    if core::arch::x86_64::__cpuid_count(1, 0).ecx & 1 << 5 == 0 {
        println!("FAIL vmx: CPUID does not report it\nEXIT: STATUS=1");
        machine::off();
    }
    allow();
    let mut failed = 0;
    if only == Some("reset")
        && let Outcome::Fail(why) = reset::twice(instructions::enter)
    {
        failed += 1;
        println!("FAIL reset: {why}");
    }
    let only = if only == Some("reset") { Some("launch") } else { only };
    let all = [
        cr4::ALL,
        instructions::BEFORE,
        instructions::ALL,
        exits::ALL,
        intercepts::ALL,
        strings::ALL,
        segments::ALL,
        events::ALL,
        nmis::ALL,
        replaced::ALL,
        habits::ALL,
        steps::ALL,
        timer::ALL,
        memory::ALL,
        untouched::ALL,
        ept_flags::ALL,
        protected::ALL,
        pae::ALL,
        sweeps::ALL,
        virtual_apic::ALL,
        virtual_interrupts::ALL,
        // After the last of these, Bochs 3.0 has no local APIC.
        devices::ALL,
        // They set the counter.
        areas::ALL,
        if only == Some("hostile") { hostile::ALL } else { &[] },
        if only == Some("abort") { &[("abort", protected::abort)] } else { &[] },
        if only == Some("cost") { &[("cost", cost::violations)] } else { &[] },
    ];
    for (name, test) in all.into_iter().flatten() {
        let is_setup = name.starts_with("operation");
        if only.is_some_and(|only| !is_setup && !name.contains(only)) {
            continue;
        }
        match test() {
            Outcome::Pass => println!("PASS {name}"),
            Outcome::Skip(why) => println!("SKIP {name}: {why}"),
            Outcome::Fail(why) => {
                failed += 1;
                println!("FAIL {name}: {why}");
            }
        }
    }
    if only.is_none_or(|only| "checks".contains(only)) {
        failed += checks::run_all();
    }
    let (name, test) = instructions::LAST;
    match test() {
        Outcome::Fail(why) => {
            failed += 1;
            println!("FAIL {name}: {why}");
        }
        _ => println!("PASS {name}"),
    }
    println!("EXIT: STATUS={}", u32::from(failed != 0));
    console::drain();
    machine::off()
}

/// Allows VMXON in IA32_FEATURE_CONTROL, if the firmware has not.
fn allow() {
    const FEATURE_CONTROL: u32 = 0x3a;
    const LOCKED: u64 = 1 << 0;
    const OUTSIDE_SMX: u64 = 1 << 2;
    // SAFETY: processors with VMX have the register, which can be written while it is not locked.
    unsafe {
        let control = rdmsr(FEATURE_CONTROL);
        if control & LOCKED == 0 {
            wrmsr(FEATURE_CONTROL, control | LOCKED | OUTSIDE_SMX);
        }
    }
}
