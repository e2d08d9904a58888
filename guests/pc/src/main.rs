//! A test guest for x86-64, started by Multiboot. It prints `PASS name`, `FAIL name: why` or `SKIP name: why` for each test and
//! `EXIT: STATUS=n`, and powers the machine off.
#![no_std]
#![no_main]

mod apic;
mod console;
mod device;
mod emulator;
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
    if let Some(status) = status_asked_for(info) {
        // SAFETY: the machine is to end.
        unsafe { machine::out32(0xf4, status) };
    }
    let mut failed = u32::from(magic != MULTIBOOT);
    emulator::setup();
    for (name, on, test) in emulator::ALL.iter().chain(tests::ALL).chain(device::ALL) {
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
    if tests::is_guest() {
        failed += apic::run();
    }
    println!("EXIT: STATUS={}", u32::from(failed != 0));
    off()
}

/// The digit after `exit=` at the end of the command line, with which the machine is to end before any test.
fn status_asked_for(info: u32) -> Option<u32> {
    // SAFETY: the loader put its information there, and the first GiB is mapped.
    let word = |at: u32| unsafe { ((info + at) as *const u32).read_volatile() };
    if word(0) & 1 << 2 == 0 {
        return None;
    }
    // SAFETY: as above; the line ends with a NUL.
    let line = unsafe { core::ffi::CStr::from_ptr(word(16) as *const core::ffi::c_char) }.to_bytes();
    match line {
        [.., b'e', b'x', b'i', b't', b'=', digit] => Some(u32::from(digit - b'0')),
        _ => None,
    }
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
    let address: u64;
    // SAFETY: reading changes nothing.
    unsafe { core::arch::asm!("mov {}, cr2", out(reg) address, options(nostack, preserves_flags)) };
    println!("FAIL: exception {vector} at {rip:#x}, CR2 {address:#x}\nEXIT: STATUS=2");
    off()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    println!("FAIL: {info}\nEXIT: STATUS=2");
    off()
}
