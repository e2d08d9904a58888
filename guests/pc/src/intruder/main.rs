//! Enters the gate at each of its byte offsets with random registers and flags, in every mode of the CPU, while another CPU sends
//! interrupts and NMIs.
//!
//! Command line: `attacks=N`, `seed=N`. With `user`, user code executes VMFUNC without end instead, outside of the last GiB and in it,
//! while another CPU sends interrupts, none of which may be lost.
#![no_std]
#![no_main]

use core::arch::asm;
use core::arch::x86_64::__cpuid as cpuid;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use common::random::Random;
use pc::console::println;
use pc::gate::{self, COMMAND, CONTROL, FEATURES, SENDS, VMFUNC};
use pc::lapic::{self as apic, command};
use pc::machine::{cli, wrmsr};
use pc::others::{self, UP, pass};
use pc::{console, exception, machine};

use layout::{CODE_16, CODE_32, DATA, LOW, NMIS, Pointer, TABLES, USER_16, USER_32, USER_DATA, middle};

/// The page of the APIC's registers in the gate.
const APIC_LINEAR: u64 = 0xffff_ffff_cccc_f000;
const INT3: u8 = 0xcc;
const VECTOR: u32 = 0x71;

mod layout;
mod legacy;

pc::program!();
pc::assembly!("intruder/attack.s");

#[unsafe(no_mangle)]
static ATTACK_STACK: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static CAUGHT: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static ATTACKING: AtomicU8 = AtomicU8::new(0);

#[unsafe(no_mangle)]
static TAKEN: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static WANTED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    fn attack(registers: &[u64; 20]);
    fn caught();
    fn caught_nmi();
    fn counted();
    static mut level_4: [u64; 512];
}

/// Places of registers after the general ones.
const FLAGS: usize = 16;
const CS: usize = 17;
const RIP: usize = 18;
const SS: usize = 19;

static mut IDT: [[u64; 2]; 256] = [[0; 2]; 256];
static mut TSS: [u32; 26] = [0; 26];
/// Outside of long mode.
static mut TSS_32: [u32; 26] = [0; 26];
static mut STACKS: [[u64; 512]; 2] = [[0; 512]; 2];
/// Code and data as everywhere, 32-bit code, the same for user mode, the TSS and that of 32 bits, 16-bit code from [`LOW`] on, the same
/// for user mode, and 16-bit code in the page of [`legacy`]'s real mode.
#[unsafe(no_mangle)]
static mut GDT: [u64; 13] = [
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x00cf_9b00_0000_ffff,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
    0x00cf_fb00_0000_ffff,
    0,
    0,
    0,
    0x0000_9b00_0000_ffff | LOW << 16,
    0x0000_fb00_0000_ffff | LOW << 16,
    0x0000_9b01_2000_ffff,
];
#[unsafe(no_mangle)]
static mut GDT_POINTER: Pointer = Pointer { limit: 0, base: 0 };
#[unsafe(no_mangle)]
static mut IDT_POINTER: Pointer = Pointer { limit: 0, base: 0 };
const CODE_64: u64 = 0x08;
const USER_64: u64 = 0x2b;
const TASK: u16 = 0x38;

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite intruder");
    apic::enable();
    others::start();
    pass(20_000_000);
    if cpuid(FEATURES).eax & gate::FEATURE == 0 || UP.load(Ordering::SeqCst) == 0 {
        println!("FAIL intruder: there is no gate, or one CPU\nEXIT: STATUS=1");
        machine::off();
    }
    let line = machine::command_line(info);
    let number = |name| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok());
    let (attacks, seed) = (number("attacks=").unwrap_or(10_000), number("seed=").unwrap_or(1));
    cli();
    enable();
    setup();
    if line.contains("user") {
        user();
    }
    others::give(disturb);
    let mut random = Random::new(seed);
    for number in 0..attacks {
        strike(number, &mut random);
        if number % (1 << 16) == 0 {
            println!("{number} attacks");
        }
    }
    let (caught, nmis) = (CAUGHT.load(Ordering::SeqCst), NMIS.load(Ordering::SeqCst));
    println!("{attacks} attacks, {caught} caught, NMIs: {}", nmis != 0);
    println!("{}\nEXIT: STATUS={}", if caught >= attacks { "PASS intruder" } else { "FAIL intruder" }, u32::from(caught < attacks));
    machine::off()
}

fn enable() {
    apic::set_base(apic::base() | apic::X2);
    apic::enable();
    // SAFETY: the MSR is there, as the VM has a gate.
    unsafe { wrmsr(CONTROL, SENDS) };
}

/// Interrupts and NMIs for the first CPU.
fn disturb() {
    enable();
    let mut random = Random::new(2);
    loop {
        // SAFETY: the MSR is there, as the VM has a gate. The first CPU's handlers take both.
        let send = |low: u32| unsafe { wrmsr(COMMAND, u64::from(low)) };
        match random.below(4) {
            0 => legacy::send_nmi(|| send(command::NMI | command::ASSERT)),
            _ => send(command::ASSERT | VECTOR),
        }
        pass(random.below(10_000));
    }
}

/// Maps one page of code everywhere in the last GiB, for user mode too, and sets up segments, and handlers on stacks of their own.
fn setup() {
    const ALL: u64 = 7;
    // SAFETY: only this CPU runs code that is concerned, and each table is complete before its use.
    unsafe {
        let tables = (&raw mut TABLES).cast::<[u64; 512]>();
        let first = tables as u64 | ALL;
        (*tables)[511] = first + 4096;
        (*tables.add(1)).fill(first + 2 * 4096);
        (*tables.add(2)).fill(middle() | ALL);
        (LOW as *mut [u8; 3 * 4096]).write([INT3; 3 * 4096]);
        level_4[511] = first;
        level_4[1] = first;
        let stack = |index: usize| &raw const STACKS as u64 + 4096 * (index as u64 + 1);
        let tss = (&raw mut TSS).cast::<u32>();
        // RSP0, and the first two stacks of interrupts.
        for (place, top) in [(1, stack(0)), (9, stack(0)), (11, stack(1))] {
            tss.add(place).write(top as u32);
            tss.add(place + 1).write((top >> 32) as u32);
        }
        let base = tss as u64;
        GDT[7] = 103 | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        GDT[8] = base >> 32;
        let tss_32 = (&raw mut TSS_32).cast::<u32>();
        tss_32.add(1).write(legacy::stack());
        tss_32.add(2).write(DATA as u32);
        // Beyond the limit: no port is allowed.
        tss_32.add(25).write(104 << 16);
        let base = tss_32 as u64;
        GDT[9] = 103 | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        let gates = (&raw mut IDT).cast::<[u64; 2]>();
        for vector in 0..256 {
            let (handler, stack) = if vector == 2 { (caught_nmi as *const () as u64, 2) } else { (caught as *const () as u64, 1) };
            gates.add(vector).write(interrupt_gate(handler, stack));
        }
        GDT_POINTER = Pointer { limit: 13 * 8 - 1, base: &raw const GDT as u64 };
        IDT_POINTER = Pointer { limit: 256 * 16 - 1, base: &raw const IDT as u64 };
        let (gdt, idt) = (&raw const GDT_POINTER, &raw const IDT_POINTER);
        asm!("lgdt [{}]", "lidt [{}]", "ltr {:x}", in(reg) gdt, in(reg) idt, in(reg) TASK, options(nostack));
    }
    legacy::setup();
}

fn interrupt_gate(handler: u64, stack: u64) -> [u64; 2] {
    [handler & 0xffff | CODE_64 << 16 | stack << 32 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48, handler >> 32]
}

/// Interrupts that [`user`] sends to each of two addresses.
const SENT: u64 = 600;

/// Executes VMFUNC in user mode, by addresses outside of the last GiB and in it, and counts interrupts.
fn user() -> ! {
    const AT: usize = 0x100;
    /// CLI; MOV ECX, 64; DEC ECX; JNZ to DEC; XOR EAX, EAX; MOV ECX, 1; STI; VMFUNC; JMP to CLI. What arrives before STI is taken behind
    /// VMFUNC, in the gate.
    const LOOP: [u8; 23] =
        [0xfa, 0xb9, 64, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0x31, 0xc0, 0xb9, 1, 0, 0, 0, 0xfb, 0x0f, 0x01, 0xd4, 0xeb, 0xe9];
    /// RFLAGS.IF, and IOPL 3, with which user code may execute CLI and STI.
    const USER_FLAGS: u64 = 0x3202;
    const OUTSIDE: u64 = (1 << 39) + (511 << 30);
    let code = middle() as *mut u8;
    // SAFETY: the page is larger, and is executed below; the table is in use, and this vector does not come yet.
    unsafe {
        (0..LOOP.len()).for_each(|byte| code.add(AT + byte).write_volatile(LOOP[byte]));
        IDT[VECTOR as usize] = interrupt_gate(counted as *const () as u64, 1);
    }
    others::give(send_counted);
    for (number, page) in [OUTSIDE, gate::LAST].into_iter().enumerate() {
        WANTED.store(SENT * (number as u64 + 1), Ordering::SeqCst);
        let mut registers = [0u64; 20];
        (registers[RIP], registers[CS], registers[SS], registers[FLAGS]) = (page + AT as u64, USER_64, USER_DATA, USER_FLAGS);
        // SAFETY: interrupts come back here, and exceptions.
        unsafe { attack(&registers) };
        let (taken, wanted) = (TAKEN.load(Ordering::SeqCst), WANTED.load(Ordering::SeqCst));
        if taken != wanted {
            println!("FAIL intruder: an exception after {taken} interrupts\nEXIT: STATUS=1");
            machine::off();
        }
    }
    println!("PASS intruder: {} taken\nEXIT: STATUS=0", TAKEN.load(Ordering::SeqCst));
    machine::off()
}

/// Sends an interrupt whenever the one before was taken.
fn send_counted() {
    enable();
    let mut random = Random::new(3);
    for sent in 1..=2 * SENT {
        // SAFETY: the MSR is there, as the VM has a gate. The first CPU has a handler.
        unsafe { wrmsr(COMMAND, u64::from(command::ASSERT | VECTOR)) };
        if !others::wait(|| TAKEN.load(Ordering::SeqCst) >= sent) {
            println!("FAIL intruder: interrupt {sent} is lost\nEXIT: STATUS=1");
            machine::off();
        }
        pass(random.below(300));
    }
}

/// One attack: enters at an offset, which all attacks have in turn.
fn strike(number: u64, random: &mut Random) {
    let offset = number % 4096;
    // Before the offset, also where the page before this one is the same page.
    let before = middle() + offset - VMFUNC.len() as u64;
    let write = |bytes: [u8; 3]| {
        for (byte, value) in (before..).zip(bytes) {
            // SAFETY: both are in the pages of code, which only attacks execute.
            unsafe {
                (byte as *mut u8).write_volatile(value);
                ((middle() | byte & 4095) as *mut u8).write_volatile(value);
            }
        }
    };
    write(VMFUNC);
    let mut registers = [0u64; 20];
    for register in &mut registers {
        *register = match random.below(4) {
            0 => APIC_LINEAR + random.below(64) * 16,
            1 => APIC_LINEAR + random.below(4096),
            2 => gate::LAST + random.below(1 << 30),
            _ => random.bits(),
        };
    }
    // VMFUNC's own operands are 32 bits wide.
    registers[0] &= !0xffff_ffff;
    registers[1] = registers[1] & !0xffff_ffff | 1;
    // All flags but the reserved ones and those of virtual-8086 mode; single steps and interrupts seldom.
    let rare = if random.below(8) == 0 { 0x100 } else { 0 } | if random.below(2) == 0 { 0x200 } else { 0 };
    registers[FLAGS] = random.bits() & 0x24_fcd5 & !0x300 | 2 | rare;
    registers[4] = if random.below(2) == 0 { APIC_LINEAR + random.below(4096) } else { gate::LAST + random.below(1 << 30) };
    let page = match random.below(4) {
        0 => APIC_LINEAR + 4096 * random.below(2),
        _ => gate::LAST + random.below(1 << 18) * 4096,
    };
    let high = page.wrapping_add(offset).wrapping_sub(VMFUNC.len() as u64).max(gate::LAST);
    let short = before - LOW;
    (registers[RIP], registers[CS], registers[SS]) = match random.below(16) {
        0 => (before, CODE_32, DATA),
        1 => (short, CODE_16, DATA),
        2 => (before, USER_32, USER_DATA),
        3 => (short, USER_16, USER_DATA),
        4 | 5 => (high, USER_64, USER_DATA),
        6 => (0, 0, 0),
        _ => (high, CODE_64, DATA),
    };
    if registers[RIP] == 0 {
        legacy::strike(offset, registers[FLAGS] as u32, random);
    } else {
        // SAFETY: what it does to this guest is caught, and the handlers come back here.
        unsafe { attack(&registers) };
    }
    write([INT3; 3]);
}
