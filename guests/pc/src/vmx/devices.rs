//! Accesses of L2 to devices of L1, with L1's EPT and without: instructions, their other operands, and what the devices do.

use core::sync::atomic::Ordering;

use pc::exception::{self, PLACES};
use pc::lapic;

use crate::exits::VMCALL;
use crate::field::{self, pin};
use crate::memory::{ADDRESS, INDEX, LARGE, LINEAR_VALID, QUALIFICATION, TRANSLATION, WRITE_BACK};
use crate::test::{Outcome, Test, check, same};
use crate::vmcs::{EPT, Registers, code, enable, enable_ept, fresh, get, invept, page, poke, run, set};

pub const ALL: &[Test] = &[
    ("devices_by_ept", by_ept),
    ("devices_and_memory", and_memory),
    ("devices_without_ept", without_ept),
    ("devices_that_interrupt", that_interrupt),
    ("interrupts_that_an_eoi_unblocks", unblocked),
    ("priority_that_falls", priority),
    ("priority_that_falls_in_x2apic_mode", x2apic_priority),
];

/// The local APIC's page, and its version.
const APIC: u64 = 0xfee0_0000;
const VERSION: u64 = 0x30;
const TPR: u64 = 0x80;
const EOI: u64 = 0xb0;
const COMMAND: u64 = 0x300;
const IO_APIC: u64 = 0xfec0_0000;
/// L2's addresses of a large page of devices, and of one of memory.
const DEVICES: u64 = ADDRESS;
const MEMORY: u64 = ADDRESS + (2 << 20);
const UNCACHEABLE: u64 = 0;
const READ_WRITE: u64 = 3;
const ABSENT: Outcome = Outcome::Skip("there is no EPT");

/// A fresh VMCS in whose EPT the local APIC and memory have these rights.
fn mapped(code: u64, apic: u64, memory: u64) -> bool {
    fresh(code);
    if !enable_ept() {
        return false;
    }
    poke(EPT + 2, INDEX, APIC | LARGE | UNCACHEABLE | apic);
    poke(EPT + 2, INDEX + 1, if memory == 0 { 0 } else { MEMORY | LARGE | WRITE_BACK | memory });
    invept(1, [page(EPT) | 6 | 3 << 3, 0]);
    true
}

/// General registers with RSI and RDI.
fn registers(rsi: u64, rdi: u64) -> Registers {
    [0, 1, 0, 0, 0, rsi, rdi, 0]
}

fn word(at: u64) -> u32 {
    // SAFETY: memory that is otherwise unused, or a device's register without effects of reads.
    unsafe { (at as *const u32).read_volatile() }
}

/// Writes a register of the local APIC by its page: L2's RDMSR, to learn the mode, would exit.
fn store(register: u64, value: u32) {
    // SAFETY: the page is mapped, and the tests' interrupts are the only ones.
    unsafe { ((APIC + register) as *mut u32).write_volatile(value) };
}

fn by_ept() -> Outcome {
    lapic::enable();
    let mut found = registers(DEVICES + VERSION, 0);
    if !mapped(code!("mov eax, [rsi]"), READ_WRITE, 0) {
        return ABSENT;
    }
    same!((run(&mut found, false), found[0] as u32), (VMCALL, word(APIC + VERSION)), "a read");
    let mut found = registers(DEVICES + TPR, 0);
    mapped(code!("mov dword ptr [rsi], 0x20", "or dword ptr [rsi], 0x10", "mov eax, [rsi]"), READ_WRITE, 0);
    same!((run(&mut found, false), found[0] as u32), (VMCALL, 0x30), "a write, and an instruction that reads and writes");
    same!(word(APIC + TPR), 0x30, "L1's register");
    lapic::write(lapic::register::TPR, 0);
    // Accesses denied by L1's EPT exit.
    let start = code!("mov [rsi], eax");
    mapped(start, 1, 0);
    same!(run(&mut registers(DEVICES + TPR, 0), false), Ok(48), "a write that is denied");
    same!(get(field::EXIT_QUALIFICATION) & QUALIFICATION, 2 | 1 << 3 | LINEAR_VALID | TRANSLATION, "the qualification");
    same!((get(field::GUEST_PHYSICAL), get(field::GUEST_RIP)), (DEVICES + TPR, start), "the address, and RIP");
    Outcome::Pass
}

/// Instructions with a second operand.
fn and_memory() -> Outcome {
    let start = code!("movsd");
    if !mapped(start, READ_WRITE, READ_WRITE) {
        return ABSENT;
    }
    let mut found = registers(DEVICES + VERSION, MEMORY + 8);
    same!((run(&mut found, false), found[5], found[6]), (VMCALL, DEVICES + VERSION + 4, MEMORY + 12), "MOVS");
    same!(word(MEMORY + 8), word(APIC + VERSION), "the memory");
    mapped(start, READ_WRITE, 1);
    let mut found = registers(DEVICES + VERSION, MEMORY + 8);
    same!((run(&mut found, false), found[5], found[6]), (Ok(48), DEVICES + VERSION, MEMORY + 8), "MOVS to memory that L1 protects");
    same!(get(field::EXIT_QUALIFICATION) & QUALIFICATION, 2 | 1 << 3 | LINEAR_VALID | TRANSLATION, "the qualification");
    same!((get(field::GUEST_PHYSICAL), get(field::GUEST_RIP)), (MEMORY + 8, start), "the address, and RIP");
    // L2's own tables deny it: an exception, which L1 intercepts.
    const NOWHERE: u64 = 0x1234_5678_9000;
    mapped(start, READ_WRITE, READ_WRITE);
    set(field::EXCEPTION_BITMAP, 1 << 14);
    same!(run(&mut registers(DEVICES + VERSION, NOWHERE), false), Ok(0), "MOVS to nowhere");
    same!((get(field::EXIT_INTERRUPTION), get(field::EXIT_INTERRUPTION_CODE)), (0x8000_0b0e, 2), "its information");
    same!((get(field::EXIT_QUALIFICATION), get(field::GUEST_RIP)), (NOWHERE, start), "its address, and RIP");
    Outcome::Pass
}

fn without_ept() -> Outcome {
    lapic::enable();
    let mut found = registers(IO_APIC, APIC + VERSION);
    fresh(code!("mov dword ptr [rsi], 1", "mov edx, [rsi + 0x10]", "mov eax, [rdi]"));
    same!(run(&mut found, false), VMCALL, "the exit");
    same!(found[2] as u32, lapic::io_read(1), "the I/O APIC");
    same!(found[0] as u32, word(APIC + VERSION), "the local APIC");
    let mut found = registers(APIC + TPR, 0);
    fresh(code!("mov dword ptr [rsi], 0x20", "mov eax, [rsi]"));
    same!((run(&mut found, false), found[0] as u32), (VMCALL, 0x20), "a write");
    same!(word(APIC + TPR), 0x20, "L1's register");
    lapic::write(lapic::register::TPR, 0);
    Outcome::Pass
}

/// L2 sends L1's processor an interrupt, which exits before the next instruction.
fn that_interrupt() -> Outcome {
    const VECTOR: u64 = 0x51;
    const TO_SELF: u64 = 1 << 18;
    lapic::enable();
    let start = code!("mov [rsi], eax", "nop");
    for at in [APIC, DEVICES] {
        match at {
            APIC => fresh(start),
            _ if mapped(start, READ_WRITE, 0) => {}
            _ => return ABSENT,
        }
        check!(enable(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPTS), "exits by external interrupts");
        check!(enable(field::EXIT_CONTROLS, field::exit::ACKNOWLEDGE_INTERRUPT), "acknowledgement at exits");
        let mut registers = registers(at + COMMAND, 0);
        registers[0] = VECTOR | TO_SELF;
        same!(run(&mut registers, false), Ok(1), "the exit");
        lapic::end();
        same!((get(field::EXIT_INTERRUPTION), get(field::GUEST_RIP)), (1 << 31 | VECTOR, start + 2), "the interrupt, and RIP");
    }
    Outcome::Pass
}

/// L2 lowers the TPR below an interrupt for L1, which exits before the next instruction. `command`: the register of commands in RSI, or none.
fn lower(start: u64, command: u64) -> Outcome {
    const VECTOR: u64 = 0x41;
    const TO_SELF: u64 = 1 << 18;
    fresh(start);
    check!(enable(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPTS), "exits by external interrupts");
    check!(enable(field::EXIT_CONTROLS, field::exit::ACKNOWLEDGE_INTERRUPT), "acknowledgement at exits");
    let mut registers = registers(command, 0);
    registers[0] = VECTOR | TO_SELF;
    same!(run(&mut registers, false), Ok(1), "the exit");
    lapic::end();
    same!(get(field::EXIT_INTERRUPTION), 1 << 31 | VECTOR, "the interrupt");
    // RBX has the address behind the last write of CR8.
    same!(get(field::GUEST_RIP), registers[3], "RIP");
    Outcome::Pass
}

/// By MOV to CR8.
fn priority() -> Outcome {
    lapic::enable();
    let start = code!(
        "mov ecx, 15",
        "mov cr8, rcx",
        "lea rbx, [rip + 3f]",
        "mov [rsi], eax",
        "sti",
        "xor ecx, ecx",
        "mov cr8, rcx",
        "3: nop",
        "nop",
    );
    lower(start, APIC + COMMAND)
}

/// The interrupt was pending before the entry: a processor without virtual-interrupt delivery has a TPR threshold for it.
fn x2apic_priority() -> Outcome {
    if core::arch::x86_64::__cpuid(1).ecx & 1 << 21 == 0 {
        return Outcome::Skip("there is no x2APIC mode");
    }
    let base = lapic::base();
    lapic::set_base(base | lapic::ENABLED | lapic::X2);
    lapic::enable();
    lapic::write(lapic::register::TPR, 0xf0);
    lapic::send(lapic::id(), 0x41);
    let outcome = lower(code!("lea rbx, [rip + 3f]", "sti", "xor ecx, ecx", "mov cr8, rcx", "3: nop", "nop"), 0);
    lapic::set_base(base & !lapic::ENABLED);
    lapic::set_base(base);
    lapic::enable();
    outcome
}

/// L2 takes L1's interrupts. In the handler of one, L1 runs, before the handler's EOI unblocks another.
fn unblocked() -> Outcome {
    const FIRST: u8 = 0x51;
    const SECOND: u8 = 0x41;
    const CPUID: u64 = 10;
    lapic::enable();
    exception::handle(SECOND, Some(|_| store(EOI, 0)));
    exception::handle(
        FIRST,
        Some(|_| {
            store(COMMAND, u32::from(SECOND) | lapic::command::SELF);
            // SAFETY: it only exits. L1 keeps the general registers that have anything.
            unsafe { core::arch::asm!("push rbx", "cpuid", "pop rbx", out("eax") _, out("ecx") _, out("edx") _, clobber_abi("C")) };
            store(EOI, 0);
        }),
    );
    let start = code!("nop", "nop", "nop");
    fresh(start);
    set(field::GUEST_RFLAGS, 2 | 1 << 9);
    lapic::send(0, u32::from(FIRST) | lapic::command::SELF);
    let mut registers = [0; 8];
    same!(run(&mut registers, false), Ok(CPUID), "the exit in the handler");
    set(field::GUEST_RIP, get(field::GUEST_RIP) + 2);
    same!(run(&mut registers, true), VMCALL, "the next exit");
    same!((exception::take(FIRST), exception::take(SECOND)), (1, 1), "the interrupts");
    same!(PLACES[usize::from(SECOND)].load(Ordering::SeqCst), start, "where the second one interrupted");
    Outcome::Pass
}
