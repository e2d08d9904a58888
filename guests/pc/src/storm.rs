//! Endless attacks on a CPU that other VMs share: one kind of exit on all vCPUs at once, as often as possible.
//!
//! Command line: `attack=NAME`, of [`ATTACKS`].
#![no_std]
#![no_main]

use core::arch::asm;

use pc::console::println;
use pc::lapic::{self, command, register};
use pc::{console, exception, machine, others};

pc::program!();

core::arch::global_asm!(include_str!("x2apic.s"), include_str!("storm.s"), PAGE = const PAGE);

unsafe extern "C" {
    static storm_start: u8;
    static storm_return: u8;
    static storm_end: u8;
}

/// By name.
const ATTACKS: [(&str, fn()); 8] = [
    ("starts", starts),
    ("code", code),
    ("strings", strings),
    ("registers", registers),
    ("ticks", ticks),
    ("calls", calls),
    ("print", print),
    ("mixed", mixed),
];
/// Page of `storm.s`.
const PAGE: u32 = 0x11;
/// The local APIC's page, and the I/O APIC's.
const LOCAL: u64 = 0xfee0_0000;
const IO: u64 = 0xfec0_0000;
const COM1: u16 = 0x3f8;

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    pc::hypercall::setup();
    console::setup();
    let line = machine::command_line(info);
    let name = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("attack=")).unwrap_or("code");
    let Some((_, attack)) = ATTACKS.into_iter().find(|(known, _)| *known == name) else { panic!("no attack {name}") };
    println!("storm: {name}");
    lapic::enable();
    if name != "starts" {
        others::give(attack);
        others::start();
    }
    attack();
    unreachable!("an attack ended")
}

/// INIT, SIPI, NMI and interrupts from all vCPUs to all but the first, whose messages restart those that have stopped each other.
fn starts() {
    let start = &raw const storm_start;
    let length = |end: *const u8| end as usize - start as usize;
    let page = (PAGE << 12) as usize;
    let back = (PAGE << 8) << 16 | length(&raw const storm_return) as u32;
    // SAFETY: RAM below 1 MiB, which this program does not use otherwise: code, and the vectors of NMI and 0x40 in real mode.
    unsafe {
        (page as *mut u8).copy_from_nonoverlapping(start, length(&raw const storm_end));
        for vector in [2, 0x40] {
            core::ptr::without_provenance_mut::<u32>(4 * vector).write_volatile(back);
        }
    }
    loop {
        for low in [command::INIT, command::STARTUP | PAGE, command::NMI, 0x40, command::STARTUP | PAGE] {
            lapic::send(0, command::OTHERS | command::ASSERT | low);
        }
    }
}

#[repr(C, align(4096))]
struct Page([u8; 4096]);

static mut CODE: Page = Page([0x90; 4096]);

/// All vCPUs execute accesses to the APICs whose bytes each changes at the same time.
fn code() {
    /// Of `mov`, `xchg` and `test` between EAX and the address in RSI, without a prefix and with that for 16 bits.
    const FIRST: [u8; 5] = [0x8b, 0x89, 0x87, 0x85, 0x03];
    const PREFIX: [u8; 3] = [0x90, 0x66, 0xf2];
    let code = (&raw mut CODE).cast::<u8>();
    let mut turn = lapic::id() as usize;
    loop {
        turn = turn.wrapping_add(1);
        // SAFETY: the page has this code only: a prefix, an access, a return. Any bytes in between are one of those accesses. The
        // task-priority register and the I/O APIC's index take any value.
        unsafe {
            code.add(2).write_volatile(0x06);
            code.add(3).write_volatile(0xc3);
            code.add(1).write_volatile(FIRST[turn % FIRST.len()]);
            code.write_volatile(PREFIX[turn / 5 % PREFIX.len()]);
            let place = if turn & 64 == 0 { LOCAL + u64::from(register::TPR) } else { IO };
            asm!("call {}", in(reg) code, in("rsi") place, inout("eax") 0 => _, options(nostack));
        }
    }
}

/// Repeated string instructions on ports and on the APICs' pages, of all sizes.
fn strings() {
    static DATA: [u8; 0x4000] = [0; 0x4000];
    loop {
        for port in [0x20u16, 0x40, 0x61, 0x70, 0x80, 0x2f8, 0xcf8, 0x2000, 0xffff] {
            // SAFETY: zeros, and reads: the devices are not used otherwise.
            unsafe {
                asm!("rep outsb", inout("rsi") DATA.as_ptr() => _, inout("rcx") 0x1000 => _, in("dx") port, options(nostack, readonly));
                asm!("rep outsd", inout("rsi") DATA.as_ptr() => _, inout("rcx") 0x400 => _, in("dx") port, options(nostack, readonly));
                asm!("in eax, dx", "in ax, dx", "in al, dx", in("dx") port, out("eax") _, options(nostack));
            }
        }
        let mut into = [0u8; 0x100];
        // SAFETY: reads of registers, across the ends of the pages; and of RAM.
        unsafe {
            for from in [LOCAL, LOCAL + 0xf80, IO, IO + 0xf80] {
                asm!("rep movsb", inout("rsi") from => _, inout("rdi") into.as_mut_ptr() => _, inout("rcx") 0x100 => _, options(nostack));
                asm!("rep movsq", inout("rsi") from => _, inout("rdi") into.as_mut_ptr() => _, inout("rcx") 0x20 => _, options(nostack));
            }
        }
    }
}

/// Control and debug registers and MSRs, which change at each step, with single steps.
fn registers() {
    const CACHE_DISABLE: u64 = 1 << 30;
    exception::handle(1, Some(|_| ()));
    loop {
        // SAFETY: caching, global pages and debug registers without effect on this program, whose debug exceptions have a handler; both modes
        // of the APIC.
        unsafe {
            asm!(
                "mov {old}, cr0", "mov {new}, {old}", "xor {new}, {bit}", "mov cr0, {new}", "mov cr0, {old}",
                "mov {old}, cr4", "mov {new}, {old}", "xor {new}, 0x80", "mov cr4, {new}", "mov cr4, {old}",
                "mov {old}, cr3", "mov cr3, {old}",
                "mov {old}, cr8", "mov cr8, {old}",
                old = out(reg) _, new = out(reg) _, bit = in(reg) CACHE_DISABLE, options(nostack),
            );
            asm!(
                "mov dr0, {place}", "mov dr7, {all}", "mov {place}, dr6", "mov dr7, {none}", "wbinvd",
                place = inout(reg) &raw const CODE as u64 => _, all = in(reg) 0x000f_0402u64, none = in(reg) 0x400u64, options(nostack),
            );
            core::arch::x86_64::__cpuid(0x4000_0000);
            asm!("pushfq", "or dword ptr [rsp], 0x100", "popfq", "in al, 0x80", "rdtsc", "pushfq", "and dword ptr [rsp], ~0x100", "popfq", out("eax") _, out("edx") _);
            machine::wrmsr(0x10, machine::rdmsr(0x10));
            machine::wrmsr(0xc000_0080, machine::rdmsr(0xc000_0080) ^ 1);
            machine::wrmsr(0x277, machine::rdmsr(0x277));
            machine::wrmsr(0x1d9, 0);
        }
        let base = lapic::base();
        lapic::set_base(base | lapic::X2);
        lapic::set_base(base & !(lapic::X2 | lapic::ENABLED));
        lapic::set_base(base | lapic::ENABLED);
        lapic::enable();
    }
}

/// The timer always expires at the next tick, by each of its modes, and is taken.
fn ticks() {
    const PERIODIC: u32 = 1 << 17;
    const DEADLINE: u32 = 1 << 18;
    const VECTOR: u32 = 0x41;
    exception::handle(VECTOR as u8, Some(|_| lapic::end()));
    machine::sti();
    lapic::write(register::DIVIDE, 0xb);
    loop {
        lapic::write(register::TIMER, PERIODIC | VECTOR);
        lapic::write(register::INITIAL, 1);
        others::pass(2_000);
        lapic::write(register::TIMER, VECTOR);
        for _ in 0..100 {
            lapic::write(register::INITIAL, 1);
        }
        lapic::write(register::TIMER, DEADLINE | VECTOR);
        for ahead in 0..100 {
            // SAFETY: CPUID reported the TSC deadline before, so that IA32_TSC_DEADLINE exists; its interrupt has a handler.
            unsafe { machine::wrmsr(0x6e0, machine::ticks() + ahead) };
        }
        // The 8254, as fast as it goes.
        for byte in [0x34, 1, 0] {
            // SAFETY: programs channel 0 of the 8254, whose interrupt is masked at both controllers.
            unsafe { machine::out8(if byte == 0x34 { 0x43 } else { 0x40 }, byte) };
        }
    }
}

/// Hypercalls of all numbers, with extreme arguments.
fn calls() {
    const EXTREMES: [u64; 11] =
        [0, 1, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 32, 1 << 63, u64::MAX, u64::MAX - 1, 0xffff_ffff_f000];
    let mut turn = lapic::id() as usize;
    loop {
        turn = turn.wrapping_add(1);
        let argument = |n: usize| EXTREMES[turn.wrapping_mul(n) % EXTREMES.len()];
        let number = if turn.is_multiple_of(4) { argument(5) } else { turn as u64 / 4 % 16 };
        // SAFETY: hypercalls change RAX only; RBX is restored.
        unsafe {
            asm!(
                "xchg rbx, {first}", pc::hypercall!(), "mov rbx, {first}",
                first = inout(reg) argument(1) => _, inout("rax") number => _,
                in("rcx") argument(2), in("rdx") argument(3), in("rsi") argument(7), options(nostack),
            );
        }
    }
}

/// Output without pause.
fn print() {
    let mut byte = 0u8;
    loop {
        byte = byte.wrapping_add(1);
        // SAFETY: the UART belongs to the guest.
        unsafe { machine::out8(COM1, if byte.is_multiple_of(4) { 0x10 } else { byte }) };
    }
}

/// A different one on each vCPU.
fn mixed() {
    [code, registers, strings, calls][lapic::id() as usize % 4]();
}
