//! A test guest for x86-64, started by Multiboot. It prints `PASS name`, `FAIL name: why` or `SKIP name: why` for each test and
//! `EXIT: STATUS=n`, and powers the machine off.
#![no_std]
#![no_main]

mod apic;
mod console;
mod exception;
mod lapic;
mod machine;
mod others;
mod tests;

use console::println;
use machine::{in8, out8, out16};

core::arch::global_asm!(include_str!("boot.s"));
core::arch::global_asm!(include_str!("exception.s"));
core::arch::global_asm!(include_str!("others.s"));

/// Multiboot's word to a kernel, in EAX.
const MULTIBOOT: u32 = 0x2bad_b002;

#[unsafe(no_mangle)]
extern "C" fn main(magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    // SAFETY: what a BIOS has left on at the 8259s would come as exceptions.
    unsafe {
        out8(0x21, 0xff);
        out8(0xa1, 0xff);
    }
    println!("suite pc, started with {magic:#x} and {info:#x}");
    let mut failed = u32::from(magic != MULTIBOOT);
    for (name, on, test) in tests::ALL {
        if *on == tests::On::Stile && !tests::is_guest() {
            println!("SKIP {name}: there is no hypervisor");
            continue;
        }
        match test(u64::from(info)) {
            Ok(()) => println!("PASS {name}"),
            Err(why) => {
                failed += 1;
                println!("FAIL {name}: {why}");
            }
        }
    }
    failed += apic::run();
    println!("EXIT: STATUS={}", u32::from(failed != 0));
    off()
}

/// Turns the machine off: ACPI's PM1a control register, as Stile and QEMU have it, or what Bochs has.
fn off() -> ! {
    // SAFETY: the machine is to end.
    unsafe {
        out16(0x604, 1 << 13);
        for byte in *b"Shutdown" {
            out8(0x8900, byte);
        }
    }
    loop {
        // SAFETY: port 0x80 is nobody's.
        unsafe { in8(0x80) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn unexpected(vector: u64, rip: u64) -> ! {
    println!("FAIL: exception {vector} at {rip:#x}\nEXIT: STATUS=2");
    off()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    println!("FAIL: {info}\nEXIT: STATUS=2");
    off()
}
