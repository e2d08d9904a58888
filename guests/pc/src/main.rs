//! A test guest for x86-64, started by Multiboot. It prints `PASS name`, `FAIL name: why` or `SKIP name: why` for each test and
//! `EXIT: STATUS=n`, and powers the machine off.
#![no_std]
#![no_main]

mod apic;
mod device;
mod emulator;
mod tests;

use console::println;
use machine::out8;
use pc::{console, exception, lapic, machine, others};
use tests::test::{On, is_guest};

/// Multiboot's word to a kernel, in EAX.
const MULTIBOOT: u32 = 0x2bad_b002;

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(magic: u32, info: u32) -> ! {
    exception::setup();
    pc::hypercall::setup();
    console::setup();
    // SAFETY: interrupts that a BIOS left enabled at the 8259s would arrive as exceptions.
    unsafe {
        out8(0x21, 0xff);
        out8(0xa1, 0xff);
    }
    println!("suite pc, started with {magic:#x} and {info:#x}");
    if let Some(status) = status_asked_for(info) {
        // SAFETY: QEMU's exit device ends the machine; elsewhere nothing is at this port.
        unsafe { machine::out32(0xf4, status) };
    }
    if machine::command_line(info).ends_with("deadlock") {
        tests::deadlock();
    }
    if machine::command_line(info).ends_with("sleep") {
        sleep();
    }
    if machine::command_line(info).ends_with("off-by-a-byte") {
        // SAFETY: ends the machine: SLP_TYP of S5 and SLP_EN, in the second byte of PM1a control.
        unsafe {
            out8(0x605, 5 << 2 | 1 << 5);
            machine::out32(0xf4, 1);
        }
    }
    if machine::command_line(info).ends_with("deadlines") {
        println!("EXIT: STATUS={}", tests::many_deadlines());
        machine::off();
    }
    if machine::command_line(info).ends_with("come-and-go") {
        tests::migrate_repeatedly();
        machine::off();
    }
    if machine::command_line(info).ends_with("bios") {
        call_bios();
    }
    if machine::command_line(info).ends_with("reset-by-a-line") {
        tests::reset_by_a_line();
    }
    if machine::command_line(info).ends_with("speculation") {
        let result = tests::speculation_control();
        println!("{}", result.err().unwrap_or("PASS speculation_control"));
        println!("EXIT: STATUS={}", u32::from(result.is_err()));
        machine::off();
    }
    let mut failed = u32::from(magic != MULTIBOOT);
    emulator::setup();
    let only = machine::command_line(info).rsplit_once("only=").map(|(_, only)| only);
    let all = emulator::ALL.iter().chain(tests::ALL).chain(tests::tasks::ALL).chain(device::ALL);
    for (name, on, test) in all.filter(|(name, ..)| only.is_none_or(|only| name.starts_with(only))) {
        if *on == On::Stile && !is_guest() {
            println!("SKIP {name}: there is no hypervisor");
            continue;
        }
        if let Some(what) = tests::qemu::differs(name).filter(|_| pc::hypercall::is_amds()) {
            println!("SKIP {name}: QEMU: {what}");
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
    if is_guest() && only.is_none_or(|only| only == "apic") {
        failed += apic::run();
    }
    println!("EXIT: STATUS={}", u32::from(failed != 0));
    machine::off()
}

core::arch::global_asm!(include_str!("bios.s"));

/// Calls a BIOS's services in real mode, in which the machine wakes from S3. Ends the machine with 0, or with
/// the number of the failed check.
fn call_bios() {
    const PAGE: u32 = 2;
    unsafe extern "C" {
        static bios_test: u8;
        static bios_test_end: u8;
    }
    let code = &raw const bios_test;
    let length = &raw const bios_test_end as usize - code as usize;
    // SAFETY: the page is otherwise unused, and the machine ends.
    unsafe { ((PAGE << 12) as *mut u8).copy_from_nonoverlapping(code, length) };
    tests::wake(PAGE);
}

/// Sleeps, and ends the machine after wake-up with 0, if memory is unchanged and the pending interrupt is
/// delivered. If it does not sleep, the machine ends with 1.
fn sleep() {
    const PAGE: u32 = 2;
    const KEPT: *mut u32 = 0x3000 as *mut u32;
    const VECTOR: u8 = 0x25;
    /// In real mode: `xor ax, ax; mov ds, ax; mov sp, 0x4000; sti; nop; nop; mov eax, [0x3000]; mov dx, 0xf4; out dx, eax`.
    const CODE: [u8; 19] =
        [0x31, 0xc0, 0x8e, 0xd8, 0xbc, 0x00, 0x40, 0xfb, 0x90, 0x90, 0x66, 0xa1, 0x00, 0x30, 0xba, 0xf4, 0x00, 0x66, 0xef];
    /// The interrupt's: `sub word ptr [0x3000], 2; iret`.
    const HANDLER: [u8; 6] = [0x83, 0x2e, 0x00, 0x30, 0x02, 0xcf];
    const HANDLER_AT: u32 = 0x100;
    // SAFETY: the address is otherwise unused, and the machine ends.
    unsafe {
        ((PAGE << 12) as *mut [u8; CODE.len()]).write_volatile(CODE);
        ((PAGE << 12 | HANDLER_AT) as *mut [u8; HANDLER.len()]).write_volatile(HANDLER);
        ((u32::from(VECTOR) * 4) as *mut u32).write_volatile(PAGE << 24 | HANDLER_AT);
        KEPT.write_volatile(2);
    }
    tests::sleep(PAGE, VECTOR);
    // SAFETY: the address is otherwise unused, and the machine ends.
    unsafe {
        KEPT.write_volatile(3);
        machine::out32(0xf4, 1);
    }
}

/// The digit after `exit=` at the end of the command line: the status with which to end the machine before
/// any test.
fn status_asked_for(info: u32) -> Option<u32> {
    match machine::command_line(info).as_bytes() {
        [.., b'e', b'x', b'i', b't', b'=', digit] => Some(u32::from(digit - b'0')),
        _ => None,
    }
}
