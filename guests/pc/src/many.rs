//! Broadcast IPIs in a VM with many vCPUs. One vCPU in 16, or in 64 if there are more than 64, sends them continuously.
//! After a reset it does the same again.
//!
//! Command line: `rounds=N` (default 1), `vcpus=N`: at the end all of them must have started.
#![no_std]
#![no_main]

use pc::console::println;
use pc::lapic::{self, command};
use pc::{console, exception, machine};

pc::program!();

core::arch::global_asm!(include_str!("x2apic.s"), include_str!("many.s"), STARTED = const STARTED, SENDERS = const SENDERS);

unsafe extern "C" {
    static many_start: u8;
    static many_interrupt: u8;
    static many_end: u8;
}

/// Page of `many.s`.
const PAGE: u32 = 0x10;
/// Vector of `many_interrupt`.
const VECTOR: u32 = 0x40;
/// Lowest-priority delivery.
const LOWEST: u32 = 1 << 8;
/// Number of vCPUs that `many.s` has started.
const STARTED: usize = 0x7000;
/// Mask: the vCPUs whose identifier is 1 under it send.
const SENDERS: usize = 0x7004;
/// The hypercall that sends an interrupt to up to 128 APICs.
const SEND_IPI: u64 = 10;
/// RAM that a reset preserves, and its value then.
const MARK: *mut u64 = (48 << 20) as *mut u64;
const MARKED: u64 = 0x6d61_6e79;
/// The keyboard controller's command that resets the machine.
const KEYBOARD: u16 = 0x64;
const RESET: u8 = 0xfe;
/// Stile's ports of interrupt lines, and the vector of those that are level-triggered together.
const LINES: u16 = 0x2000;
const LEVELS: u32 = 0x31;

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    pc::hypercall::setup();
    console::setup();
    println!("suite many");
    let number = |name: &str| {
        let words = machine::command_line(info).split_ascii_whitespace();
        words.filter_map(|word| word.strip_prefix(name)?.parse::<u32>().ok()).next()
    };
    let (rounds, vcpus) = (number("rounds=").unwrap_or(1), number("vcpus="));
    prepare(if vcpus.is_some_and(|vcpus| vcpus > 64) { 63 } else { 15 });
    exception::handle(2, None);
    lapic::set_base(lapic::base() | lapic::ENABLED | lapic::X2);
    lapic::enable();
    for _ in 0..rounds {
        round(vcpus.unwrap_or(64));
    }
    if let Some(vcpus) = vcpus {
        wait_for_all(vcpus);
    }
    // SAFETY: RAM, which nothing else uses, and an intended reset.
    unsafe {
        if MARK.read_volatile() != MARKED {
            MARK.write_volatile(MARKED);
            machine::out8(KEYBOARD, RESET);
            loop {
                core::hint::spin_loop();
            }
        }
    }
    println!("PASS many");
    println!("EXIT: STATUS=0");
    machine::off()
}

/// Waits until each of the others has started since the last SIPI.
fn wait_for_all(vcpus: u32) {
    // SAFETY: an aligned word of RAM in the page that `many.s` was copied to, which only it and this program access.
    while unsafe { core::ptr::without_provenance::<u32>(STARTED).read_volatile() } < vcpus - 1 {
        core::hint::spin_loop();
    }
}

/// Copies the others' code, and points the real-mode vectors of NMI, [`VECTOR`] and [`LEVELS`] to it.
fn prepare(senders: u8) {
    let start = &raw const many_start;
    let length = |end: *const u8| end as usize - start as usize;
    let (interrupt, end) = (length(&raw const many_interrupt), length(&raw const many_end));
    let page = (PAGE << 12) as usize;
    let pointer = |offset: usize| (PAGE << 8) << 16 | offset as u32;
    // SAFETY: RAM below 1 MiB, which this program does not use otherwise.
    unsafe {
        (page as *mut u8).copy_from_nonoverlapping(start, end);
        // IRET is the last byte.
        core::ptr::without_provenance_mut::<u32>(4 * 2).write_volatile(pointer(end - 1));
        core::ptr::without_provenance_mut::<u32>(4 * VECTOR as usize).write_volatile(pointer(interrupt));
        // Never ended: otherwise the interrupts would return for ever.
        core::ptr::without_provenance_mut::<u32>(4 * LEVELS as usize).write_volatile(pointer(end - 1));
        core::ptr::without_provenance_mut::<u8>(SENDERS).write_volatile(senders);
    }
}

fn round(vcpus: u32) {
    lapic::send(0, command::OTHERS | command::INIT | command::ASSERT);
    // SAFETY: an aligned word of RAM in the page that `many.s` was copied to, which only it and this program access.
    unsafe { core::ptr::without_provenance_mut::<u32>(STARTED).write_volatile(0) };
    lapic::send(0, command::OTHERS | command::STARTUP | command::ASSERT | PAGE);
    lapic::send(0, command::OTHERS | command::ASSERT | VECTOR);
    lapic::send(u32::MAX, command::ASSERT | VECTOR);
    lapic::send(u32::MAX, command::LOGICAL | command::ASSERT | VECTOR);
    lapic::send(u32::MAX, command::LOGICAL | command::ASSERT | LOWEST | VECTOR);
    lapic::send(0, command::OTHERS | command::NMI | command::ASSERT);
    // Each cluster of 16.
    for cluster in 0..vcpus.div_ceil(16) {
        lapic::send(cluster << 16 | 0xffff, command::LOGICAL | command::ASSERT | VECTOR);
    }
    for low in [command::ASSERT | VECTOR, command::NMI | command::ASSERT] {
        send_to_128(low);
    }
    // Inputs of the I/O APIC that lead to all.
    for input in 0..24 {
        lapic::io_route(input, 0xff, command::LOGICAL | VECTOR);
        lapic::io_route(input, 0xff, command::LOGICAL | lapic::IO_LEVEL | LOWEST | VECTOR);
    }
    levels(0, 0);
    levels(LOWEST, LOWEST);
    levels(LOWEST, 0);
    edges(VECTOR);
    edges(command::NMI);
}

/// Sends an interrupt to vCPUs 1 to 128 by a hypercall.
fn send_to_128(low: u32) {
    // SAFETY: the hypercall changes RAX only; RBX is restored.
    unsafe {
        core::arch::asm!(
            "xchg rbx, {set}", pc::hypercall!(), "mov rbx, {set}",
            set = inout(reg) u64::MAX => _,
            inout("rax") SEND_IPI => _,
            in("rcx") u64::MAX,
            in("rdx") 1_u64,
            in("rsi") u64::from(low),
            options(nostack),
        );
    }
}

/// Edges of a line that leads to all vCPUs, as many as one exit of a string instruction makes.
fn edges(low: u32) {
    static TOGGLES: [u8; 16] = [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0];
    lapic::io_route(14, 0xff, low);
    // SAFETY: the instruction reads the bytes of TOGGLES, and the port sets an interrupt line of the test device.
    unsafe {
        core::arch::asm!(
            "cld",
            "rep outsb",
            inout("rsi") TOGGLES.as_ptr() => _,
            inout("rcx") TOGGLES.len() => _,
            in("dx") LINES + 14,
            options(nostack, readonly),
        );
    }
    lapic::io_route(14, 0, lapic::IO_MASKED);
}

/// Asserts all lines, which lead to all vCPUs by one vector, and ends their interrupts at once: all are sent again.
/// Half of them, with the delivery mode `broadcast`, name all vCPUs, the others, with `logical`, logical identifiers.
fn levels(logical: u32, broadcast: u32) {
    // SAFETY: the port sets an interrupt line of the test device, to which nothing else is connected.
    let set_lines = |high: bool| (0..24).for_each(|line| unsafe { machine::out8(LINES + line, u8::from(high)) });
    for input in 0..24 {
        let (to, mode) = if input < 12 { (0xff, broadcast) } else { (input, logical | command::LOGICAL) };
        lapic::io_route(input, to, mode | lapic::IO_LEVEL | LEVELS);
    }
    set_lines(true);
    for _ in 0..4 {
        lapic::io_end(LEVELS as u8);
    }
    set_lines(false);
    for input in 0..24 {
        lapic::io_route(input, 0, lapic::IO_MASKED);
    }
}
