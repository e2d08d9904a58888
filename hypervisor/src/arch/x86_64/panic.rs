//! State of a CPU on which Stile failed.

use core::fmt::{self, Write};

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::{msr, rdmsr, read_cr};
use crate::arch::x86_64::virt::state::{self, Field};
use crate::backtrace::Backtrace;

/// Names of the general registers, by number.
const NAMES: [&str; 16] = ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
const RBP: usize = 5;
const RSP: usize = 4;

/// Frame pushed by `idt.S`.
#[repr(C)]
struct Exception {
    registers: [u64; 16],
    vector: u64,
    code: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Address of this CPU's block; arbitrary before it is installed.
pub fn block() -> *const Cpu {
    // SAFETY: every CPU in 64-bit mode has the register.
    unsafe { rdmsr(msr::GS_BASE) as *const Cpu }
}

/// Exception at Stile's own privilege.
#[unsafe(no_mangle)]
extern "C" fn fatal(exception: &Exception) -> ! {
    crate::panic::stop(
        format_args!("exception {} in Stile: {}", exception.vector, name(exception.vector)),
        Backtrace { pc: Some(exception.rip), pointer: exception.registers[RBP] },
        |out| {
            let Exception { code, rip, rflags, .. } = exception;
            writeln!(out, "  error code {code:#x}  rip {rip:#018x}  rflags {rflags:#x}  cr2 {:#018x}", read_cr!("cr2"))?;
            let mut registers = exception.registers;
            registers[RSP] = exception.rsp;
            write_registers(out, &registers)
        },
    )
}

fn name(vector: u64) -> &'static str {
    match vector {
        0 => "divide error",
        1 => "debug",
        2 => "non-maskable interrupt",
        3 => "breakpoint",
        6 => "invalid opcode",
        8 => "double fault",
        10 => "invalid TSS",
        11 => "segment not present",
        12 => "stack fault",
        13 => "general protection",
        14 => "page fault",
        18 => "machine check",
        _ => "see the manual, Exception and Interrupt Reference",
    }
}

fn write_registers(out: &mut dyn Write, registers: &[u64; 16]) -> fmt::Result {
    for (n, (name, value)) in NAMES.iter().zip(registers).enumerate() {
        write!(out, "  {name:<3} {value:#018x}{}", if n % 4 == 3 { "\n" } else { "" })?;
    }
    Ok(())
}

/// Writes the guest's state at the exit being handled.
pub fn write_guest(out: &mut dyn Write, cpu: &Cpu) -> fmt::Result {
    let field = state::read;
    writeln!(
        out,
        "  guest rip {:#018x}  rflags {:#x}  exit reason {:#x}  qualification {:#x}  physical {:#x}",
        field(Field::GUEST_RIP),
        field(Field::GUEST_RFLAGS),
        field(Field::EXIT_REASON),
        field(Field::EXIT_QUALIFICATION),
        field(Field::GUEST_PHYSICAL),
    )?;
    writeln!(
        out,
        "  cs {:#06x}  cr0 {:#x}  cr3 {:#x}  cr4 {:#x}  efer {:#x}",
        field(Field::GUEST_CS),
        field(Field::GUEST_CR0),
        field(Field::GUEST_CR3),
        field(Field::GUEST_CR4),
        field(Field::GUEST_EFER),
    )?;
    let mut registers = cpu.frame.registers;
    registers[RSP] = field(Field::GUEST_RSP);
    write_registers(out, &registers)
}

/// Frame pointer of the caller.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let value: u64;
    // SAFETY: the instruction only reads the frame pointer, and changes no memory.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}
