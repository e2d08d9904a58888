//! Firmware tables, and legacy PC devices.

use core::arch::asm;

use super::test::{check, is_guest};
use super::vector::GENERAL_PROTECTION;
use crate::console::println;
use crate::exception::{self, catch};
use crate::lapic as apic;
use crate::machine::{in8, in32, out8, out32};
use crate::others::wait;

/// An item of fw_cfg, of `bytes` bytes.
fn item(key: u16, bytes: u32) -> u64 {
    // SAFETY: selects and reads an item of fw_cfg, which only this function accesses: it changes no memory.
    unsafe {
        asm!("out dx, ax", in("dx") 0x510u16, in("ax") key, options(nostack));
        (0..bytes).fold(0, |value, n| value | u64::from(in8(0x511)) << (8 * n))
    }
}

/// Number of CPUs according to the firmware, by either interface.
pub fn cpus() -> u32 {
    if is_guest() {
        return item(5, 2) as u32;
    }
    root().and_then(|root| table(number(root + 16, 4), 4, b"APIC")).map_or(1, enabled)
}

/// ACPI's root pointer: some programs search the upper half of a BIOS's memory only.
fn root() -> Option<u64> {
    (0xf_0000..0x10_0000u64).step_by(16).find(|at| (0..8).all(|n| byte(at + n) == b"RSD PTR "[n as usize]))
}

/// Sleeps in ACPI's S3, and wakes in real mode at `page`, below 1 MiB. An interrupt of the 8259s is pending meanwhile.
pub fn sleep(page: u32, vector: u8) {
    const LINE: u8 = 5;
    start_8259s(vector - LINE);
    mask_8259(!(1 << LINE));
    // SAFETY: the port sets an interrupt line of the test device, to which nothing else is connected.
    unsafe { out8(0x2000 + u16::from(LINE), 1) };
    wake(page);
}

/// Sleeps in ACPI's S3, and wakes in real mode at `page`, below 1 MiB.
pub fn wake(page: u32) {
    const S3: u16 = 1 << 10 | 1 << 13;
    let Some(fadt) = root().and_then(|root| table(number(root + 16, 4), 4, b"FACP")) else { return };
    let facs = number(fadt + 36, 4);
    // SAFETY: the structure is meant for this, and the register is the FADT's.
    unsafe {
        ((facs + 12) as *mut u32).write_volatile(page << 12);
        crate::machine::out16(number(fadt + 64, 4) as u16, S3);
    }
}

/// Waits for a byte on the serial line, whose interrupt is routed as INIT and so resets the machine.
pub fn reset_by_a_line() -> ! {
    const COM1: u16 = 0x3f8;
    const INIT: u32 = 5 << 8;
    apic::io_route(4, apic::id(), INIT);
    // SAFETY: received bytes interrupt, and the handler resets the UART.
    unsafe {
        out8(COM1 + 1, 1);
        out8(COM1 + 4, 1 << 3);
    }
    println!("send a line");
    loop {
        // SAFETY: HLT accesses no memory; with interrupts off, this CPU waits until the machine ends.
        unsafe { asm!("hlt", options(nostack)) };
    }
}

/// The local APICs that are enabled, in a MADT.
fn enabled(madt: u64) -> u32 {
    let (mut at, end, mut found) = (madt + 44, madt + number(madt + 4, 4), 0);
    while at < end {
        found += u32::from(byte(at) == 0 && byte(at + 4) & 1 != 0);
        at += u64::from(byte(at + 1).max(2));
    }
    found
}

/// Bytes of RAM, on Stile.
pub fn ram() -> u64 {
    item(3, 8)
}

pub fn configuration(_: u64) -> Result<(), &'static str> {
    check!(item(0, 4) == u64::from(u32::from_le_bytes(*b"QEMU")), "no signature");
    check!(item(5, 2) == item(15, 2) && (1..=8).contains(&item(5, 2)), "no number of CPUs");
    check!(ram() >= 8 << 20, "no amount of RAM");
    Ok(())
}

fn byte(at: u64) -> u8 {
    // SAFETY: callers pass addresses of firmware's tables, below 1 GiB, which is identity-mapped.
    unsafe { (at as *const u8).read_volatile() }
}

fn number(at: u64, bytes: u64) -> u64 {
    (0..bytes).fold(0, |value, n| value | u64::from(byte(at + n)) << (8 * n))
}

fn sums_up(at: u64, length: u64) -> bool {
    (0..length).fold(0u8, |sum, n| sum.wrapping_add(byte(at + n))) == 0
}

/// The table referenced by a root with `entry` bytes per address.
fn table(root: u64, entry: u64, signature: &[u8; 4]) -> Option<u64> {
    let entries = (number(root + 4, 4) - 36) / entry;
    let found =
        (0..entries).map(|n| number(root + 36 + n * entry, entry)).find(|at| number(*at, 4) == number(signature.as_ptr() as u64, 4))?;
    sums_up(found, number(found + 4, 4)).then_some(found)
}

pub fn acpi_tables(_: u64) -> Result<(), &'static str> {
    let Some(root) = root() else { return Err("no root pointer") };
    check!(sums_up(root, 20), "the root pointer's sum");
    let rsdt = number(root + 16, 4);
    check!(rsdt != 0 && number(rsdt, 4) == u64::from(u32::from_le_bytes(*b"RSDT")), "no RSDT");
    let (Some(madt), Some(fadt)) = (table(rsdt, 4, b"APIC"), table(rsdt, 4, b"FACP")) else { return Err("no MADT, or no FADT") };
    if byte(root + 15) >= 2 {
        let xsdt = number(root + 24, 8);
        check!(table(xsdt, 8, b"APIC") == Some(madt) && table(xsdt, 8, b"FACP") == Some(fadt), "the roots differ");
    }
    check!(enabled(madt) == cpus() && cpus() != 0, "another number of CPUs");
    let extended = number(0x40e, 2) << 4;
    check!((0x8_0000..0xa_0000).contains(&extended), "no extended BIOS data area");
    check!(number(0x400, 2) == 0x3f8 && number(0x410, 2) >> 9 & 7 != 0, "no serial port in the BIOS data area");
    Ok(())
}

/// Tables for kernels without ACPI: the pointer, and as many processors as exist.
pub fn processor_tables(_: u64) -> Result<(), &'static str> {
    let found = (0xf_0000..0x10_0000u64).step_by(16).find(|at| number(*at, 4) == u64::from(u32::from_le_bytes(*b"_MP_")));
    let Some(pointer) = found else { return Err("no pointer") };
    let table = number(pointer + 4, 4);
    check!(sums_up(pointer, 16) && sums_up(table, number(table + 4, 2)), "a sum");
    let (mut at, mut enabled, mut inputs) = (table + 44, 0, 0u32);
    while at < table + number(table + 4, 2) {
        enabled += u32::from(byte(at) == 0 && byte(at + 3) & 1 != 0);
        if byte(at) == 3 {
            inputs |= 1 << byte(at + 7);
        }
        at += if byte(at) == 0 { 20 } else { 8 };
    }
    check!(enabled == cpus() && inputs & 1 << 2 != 0, "another number of processors, or no timer");
    Ok(())
}

pub fn acpi_timer(_: u64) -> Result<(), &'static str> {
    // SAFETY: reads ACPI's PM timer, which has no side effect.
    let now = || unsafe { in32(0x608) };
    let start = now();
    check!(wait(|| now().wrapping_sub(start) > 1000), "it stands");
    Ok(())
}

/// A word that stores values, with each width.
pub fn test_word(_: u64) -> Result<(), &'static str> {
    // SAFETY: the word is a test device.
    unsafe {
        out32(0xe0, 0x1234_5678);
        check!(in32(0xe0) == 0x1234_5678 && in8(0xe1) == 0x56 && in8(0xe3) == 0x12, "it does not keep its value");
        out8(0xe1, 0xab);
        check!(in32(0xe0) == 0x1234_ab78, "a byte is not its own");
    }
    let memory = 0xff00_0000 as *mut u64;
    // SAFETY: the memory is a test device.
    unsafe {
        memory.add(0x1fff).write_volatile(0x0123_4567_89ab_cdef);
        check!(memory.add(0x1fff).read_volatile() == 0x0123_4567_89ab_cdef, "no memory for tests");
    }
    Ok(())
}

#[repr(C, align(8192))]
struct TwoPages([u8; 8192]);
static mut STRINGS: TwoPages = TwoPages([0; 8192]);

pub fn strings_of_ports(_: u64) -> Result<(), &'static str> {
    let base = &raw mut STRINGS as u64;
    let at = base + 4096 - 6;
    // SAFETY: the ports are a test device, and the memory belongs to this function.
    unsafe {
        for n in 0..12 {
            ((at + n) as *mut u8).write_volatile(0x10 + n as u8);
        }
        let (rsi, rcx): (u64, u64);
        asm!("cld", "rep outsd", inout("rsi") at => rsi, inout("rcx") 3u64 => rcx, in("dx") 0xe0u16, options(nostack));
        check!(rsi == at + 12 && rcx == 0 && in32(0xe0) == 0x1b1a_1918, "REP OUTSD");
        let mut rdi: u64;
        asm!("std", "rep insw", "cld", inout("rdi") at + 8 => rdi, inout("rcx") 4u64 => _, in("dx") 0xe2u16, options(nostack));
        check!(rdi == at && ((at + 2) as *const u64).read_unaligned() == 0x1b1a_1b1a_1b1a_1b1a, "REP INSW, backwards");
        check!((at as *const u16).read_unaligned() == 0x1110, "REP INSW goes too far");
        out32(0xe0, 0x4433_2211);
        asm!("insb", inout("rdi") at => rdi, in("dx") 0xe0u16, options(nostack));
        check!(rdi == at + 1 && byte(at) == 0x11, "INSB");
        // More elements than per exit.
        asm!("rep insb", inout("rdi") base => rdi, inout("rcx") 1000u64 => _, in("dx") 0xe1u16, options(nostack));
        check!(rdi == base + 1000 && (base..base + 1000).all(|at| byte(at) == 0x22), "REP INSB of many");
        asm!("rep insb", inout("rdi") base => rdi, inout("rcx") 0u64 => _, in("dx") 0xe1u16, options(nostack));
        check!(rdi == base, "REP INSB of none");
    }
    // Nothing is mapped from 4 GiB on.
    check!(catch!("insb", "rdi" = 0x1_0000_0000u64, "dx" = 0xe0u16) == Some((14, 2)), "INSB to nowhere");
    check!(catch!("outsb", "rsi" = 0x1_0000_0000u64, "dx" = 0xe0u16) == Some((14, 0)), "OUTSB from nowhere");
    check!(catch!("insb", "rdi" = 0x8000_0000_0000_0000u64, "dx" = 0xe0u16) == Some((GENERAL_PROTECTION, 0)), "INSB to no address");
    Ok(())
}

/// A string from a port to memory that nothing has touched before, across a page's end: the rest of that memory is zero, and it stays so
/// when the guest touches it.
pub fn strings_to_untouched_memory(_: u64) -> Result<(), &'static str> {
    // A block of 2 MiB that no other test uses.
    const BLOCK: u64 = 52 << 20;
    const END: u64 = BLOCK + (2 << 20);
    let at = BLOCK + 0x5_1000 - 2;
    // SAFETY: the port is a word for tests, and the memory is this function's.
    unsafe {
        out32(0xe0, 0x4433_2211);
        asm!("cld", "rep insb", inout("rdi") at => _, inout("rcx") 4u64 => _, in("dx") 0xe1u16, options(nostack));
        // Once more, into one of the pages.
        asm!("insb", inout("rdi") at + 4 => _, in("dx") 0xe0u16, options(nostack));
        let bytes: [u8; 5] = core::array::from_fn(|n| byte(at + n as u64));
        check!(bytes == [0x22, 0x22, 0x22, 0x22, 0x11], "it is not there");
        let mut rest = (BLOCK..at).chain(at + 5..END);
        check!(rest.all(|at| byte(at) == 0), "something else is there");
    }
    Ok(())
}

/// The 8254 a thousand times a second, as a rate generator.
fn start_timer() {
    const COUNT: u16 = 1193;
    // SAFETY: an interrupt of the timer's first counter is intended.
    unsafe {
        out8(0x43, 0b0011_0100);
        out8(0x40, COUNT as u8);
        out8(0x40, (COUNT >> 8) as u8);
    }
}

fn stop_timer() {
    // SAFETY: a mode without a count stops the counter.
    unsafe { out8(0x43, 0b0011_0000) };
}

/// Initializes both 8259s, with the first one's vectors from `vector` on. Nothing is masked.
pub fn start_8259s(vector: u8) {
    let second = vector + 8;
    for (port, word) in [(0x20, 0x11), (0xa0, 0x11), (0x21, vector), (0xa1, second), (0x21, 4), (0xa1, 2), (0x21, 1), (0xa1, 1)] {
        // SAFETY: the 8259s are the tests'; interrupts are off.
        unsafe { out8(port, word) };
    }
}

/// Masks inputs of the first 8259, and all of the second.
pub fn mask_8259(first: u8) {
    // SAFETY: the 8259s are set up by `start_8259s`, or masked.
    unsafe {
        out8(0x21, first);
        out8(0xa1, 0xff);
    }
}

/// Sets an interrupt line, which belongs to tests.
pub fn set_test_line(line: u8, high: bool) {
    // SAFETY: the port sets an interrupt line of the test device, to which nothing else is connected.
    unsafe { out8(0x2000 + u16::from(line), u8::from(high)) };
}

/// Raises and lowers a test's interrupt line by one instruction, which a hypervisor may complete before another CPU runs.
pub fn pulse_test_line(line: u8) {
    let levels = [1u8, 0];
    // SAFETY: the lines are for tests, and the levels are read only.
    unsafe {
        asm!("rep outsb", in("dx") 0x2000 + u16::from(line), inout("rcx") levels.len() => _, inout("rsi") levels.as_ptr() => _, options(nostack))
    };
}

pub fn timer_by_the_io_apic(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0x51;
    mask_8259(0xff);
    apic::enable();
    exception::handle(VECTOR, None);
    apic::io_route(2, apic::id(), u32::from(VECTOR));
    start_timer();
    crate::machine::sti();
    let count = || exception::COUNTS[usize::from(VECTOR)].load(core::sync::atomic::Ordering::SeqCst);
    let came = wait(|| count() >= 5);
    let before = count();
    let more = wait(|| count() >= before + 10);
    crate::machine::cli();
    stop_timer();
    apic::io_route(2, 0, apic::IO_MASKED);
    check!(came && more, "it does not come");
    Ok(())
}

/// The 8259s' output as a fixed interrupt, by the local APIC's pin LINT0: each time that it rises.
pub fn interrupts_by_a_pin(_: u64) -> Result<(), &'static str> {
    const VECTOR: u8 = 0x52;
    const LINE: u16 = 5;
    start_8259s(0x20);
    // SAFETY: the port sets an interrupt line of the test device, to which nothing else is connected.
    let set_line = |high: bool| unsafe { out8(0x2000 + LINE, u8::from(high)) };
    mask_8259(!(1 << LINE));
    apic::enable();
    exception::handle(VECTOR, None);
    apic::write(apic::register::LINT0, u32::from(VECTOR));
    crate::machine::sti();
    set_line(true);
    let once = exception::take(VECTOR) == 1;
    // Not acknowledged, it stays until it is masked, and recurs after.
    set_line(true);
    let stays = exception::take(VECTOR) == 0;
    mask_8259(0xff);
    mask_8259(!(1 << LINE));
    let again = exception::take(VECTOR) == 1;
    set_line(false);
    crate::machine::cli();
    mask_8259(0xff);
    apic::write(apic::register::LINT0, 1 << 16);
    check!(once && again, "it does not come");
    check!(stays, "it comes while it stays");
    Ok(())
}

/// An interrupt of the 8259s that is pending while interrupts are off, and then held back by STI, ends HLT.
pub fn interrupt_by_a_pin_before_hlt(_: u64) -> Result<(), &'static str> {
    const LINE: u16 = 5;
    const VECTOR: u8 = 0x20 + LINE as u8;
    /// The timer's, which ends HLT if the line's interrupt does not, long after it.
    const LATE: u8 = 0x60;
    const DEADLINE: u32 = 2 << 17;
    const DEADLINE_REGISTER: u32 = 0x6e0;
    start_8259s(0x20);
    // SAFETY: the port sets an interrupt line of the test device, to which nothing else is connected.
    let set_line = |high: bool| unsafe { out8(0x2000 + LINE, u8::from(high)) };
    mask_8259(!(1 << LINE));
    apic::enable();
    // SAFETY: an end of interrupt, to the first 8259.
    exception::handle(VECTOR, Some(|_| unsafe { out8(0x20, 0x20) }));
    exception::handle(LATE, None);
    apic::write(apic::register::LINT0, 7 << 8);
    apic::write(apic::register::TIMER, DEADLINE | u32::from(LATE));
    set_line(true);
    // SAFETY: every supported CPU has TSC-deadline mode, whose interrupt ends HLT. Handlers return to the next instruction.
    unsafe {
        crate::machine::wrmsr(DEADLINE_REGISTER, crate::machine::ticks() + 4_000_000_000);
        asm!("sti", "hlt", "cli", options(nostack));
        crate::machine::wrmsr(DEADLINE_REGISTER, 0);
    }
    let (came, late) = (exception::take(VECTOR), exception::take(LATE));
    set_line(false);
    mask_8259(0xff);
    apic::write(apic::register::TIMER, 1 << 16);
    apic::write(apic::register::LINT0, 1 << 16);
    check!(came == 1, "it does not come");
    check!(late == 0, "HLT does not end by it");
    Ok(())
}

/// Whether the 8254's interrupt arrives through the 8259s, also at a halted CPU.
fn timer_comes_by_the_8259s() -> bool {
    const VECTOR: u8 = 0x20;
    start_8259s(VECTOR);
    mask_8259(0xfe);
    // SAFETY: an end of interrupt, to the first 8259.
    exception::handle(VECTOR, Some(|_| unsafe { out8(0x20, 0x20) }));
    start_timer();
    crate::machine::sti();
    let count = || exception::COUNTS[usize::from(VECTOR)].load(core::sync::atomic::Ordering::SeqCst);
    let came = wait(|| count() >= 5);
    // While it waits: in HLT.
    if came {
        // SAFETY: the timer armed before interrupts this wait, and its handler returns to here.
        unsafe { asm!("hlt", options(nostack)) };
    }
    crate::machine::cli();
    stop_timer();
    mask_8259(0xff);
    came
}

/// Like kernels without APIC support: interrupts pass the local APIC as configured by firmware.
pub fn timer_without_an_apic(_: u64) -> Result<(), &'static str> {
    check!(timer_comes_by_the_8259s(), "it does not come");
    Ok(())
}

pub fn timer_by_the_8259s(_: u64) -> Result<(), &'static str> {
    const EXTERNAL: u32 = 7 << 8;
    apic::enable();
    apic::write(apic::register::LINT0, EXTERNAL);
    let came = timer_comes_by_the_8259s();
    apic::write(apic::register::LINT0, 1 << 16);
    check!(came, "it does not come");
    Ok(())
}

/// Waits for the keyboard controller succeed: for input space, for silence, for the result of its self-test.
pub fn keyboard_controller(_: u64) -> Result<(), &'static str> {
    const DATA: u16 = 0x60;
    const STATUS: u16 = 0x64;
    // SAFETY: the controller is unused; its self-test has no relevant effects.
    unsafe {
        check!(wait(|| in8(STATUS) & 2 == 0), "its input stays full");
        let is_silent = || {
            let silent = in8(STATUS) & 1 == 0;
            if !silent {
                in8(DATA);
            }
            silent
        };
        check!(wait(is_silent), "there is always something to read");
        out8(STATUS, 0xaa);
        check!(wait(|| in8(STATUS) & 1 != 0) && in8(DATA) == 0x55, "it does not pass its test");
        // Address line 20, by port 0x92: stores its value, and is open.
        let quick = in8(0x92);
        out8(0x92, quick | 2);
        check!(quick & 1 == 0 && in8(0x92) & 3 == 2, "port 0x92");
    }
    Ok(())
}

/// The cursor's position is stored, and the retrace bit toggles.
pub fn screen_controller(_: u64) -> Result<(), &'static str> {
    // SAFETY: writes the cursor's position into CRTC registers: this program shows nothing on the screen.
    unsafe {
        for (index, value) in [(14, 1), (15, 0x42)] {
            out8(0x3d4, index);
            out8(0x3d5, value);
        }
        let low = in8(0x3d5);
        out8(0x3d4, 14);
        check!((in8(0x3d5), low) == (1, 0x42), "the cursor does not stay");
        check!(wait(|| in8(0x3da) & 8 != 0) && wait(|| in8(0x3da) & 8 == 0), "the beam stands");
    }
    Ok(())
}
