//! State of a CPU on which Stile failed.

use core::fmt::{self, Write};

use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::read_sysreg;
use crate::backtrace::Backtrace;

/// Address of this CPU's block; arbitrary before it is installed.
pub fn block() -> *const Cpu {
    read_sysreg!(TPIDR_EL2) as *const Cpu
}

/// Exception at EL2: `exit.S` enters here with the registers in the emergency area.
#[unsafe(no_mangle)]
extern "C" fn fatal(kind: u64, registers: &[u64; 32]) -> ! {
    const KINDS: [&str; 4] = ["synchronous exception", "IRQ", "FIQ", "SError"];
    let esr = read_sysreg!(ESR_EL2);
    crate::panic::stop(
        format_args!("{} at EL2: {}", KINDS[kind as usize & 3], class(esr)),
        Backtrace { pc: Some(read_sysreg!(ELR_EL2)), pointer: registers[29] },
        |out| {
            writeln!(
                out,
                "  esr {esr:#x}  far {:#018x}  elr {:#018x}  spsr {:#x}",
                read_sysreg!(FAR_EL2),
                read_sysreg!(ELR_EL2),
                read_sysreg!(SPSR_EL2)
            )?;
            write_registers(out, registers)
        },
    )
}

fn class(esr: u64) -> &'static str {
    match esr >> 26 & 0x3f {
        0x00 => "unknown reason: an undefined instruction",
        0x21 => "instruction abort",
        0x22 => "PC alignment fault",
        0x25 => "data abort",
        0x26 => "SP alignment fault",
        0x2f => "SError",
        0x3c => "BRK instruction",
        _ => "see esr",
    }
}

fn write_registers(out: &mut dyn Write, registers: &[u64; 32]) -> fmt::Result {
    for (n, value) in registers.iter().enumerate() {
        let name = if n < 31 { "x" } else { "sp" };
        let end = if n % 4 == 3 { "\n" } else { "" };
        if n < 31 {
            write!(out, "  {name}{n:<2} {value:#018x}{end}")?;
        } else {
            write!(out, "  {name}  {value:#018x}{end}")?;
        }
    }
    Ok(())
}

/// Writes the guest's state at the exit being handled.
pub fn write_guest(out: &mut dyn Write, cpu: &Cpu) -> fmt::Result {
    writeln!(
        out,
        "  guest pc {:#018x}  pstate {:#x}  esr {:#x}  far {:#x}  hpfar {:#x}",
        read_sysreg!(ELR_EL2),
        read_sysreg!(SPSR_EL2),
        read_sysreg!(ESR_EL2),
        read_sysreg!(FAR_EL2),
        read_sysreg!(HPFAR_EL2),
    )?;
    // After WFI they are in the vCPU's context (`exit_wfx`); at other exits the frame has what the exit path saved.
    let is_wfx = read_sysreg!(ESR_EL2) >> 26 & 0x3f == 0x01;
    let stores_to_context = is_wfx && cpu.vcpu.is_some_and(|vcpu| !vcpu.arch.has_el2);
    let stored = cpu.registers_at();
    let registers = if stores_to_context && !stored.is_null() {
        // SAFETY: not null, and so the frame, or the context of a vCPU, which exists for as long as it is loaded.
        unsafe { &*stored }
    } else {
        &cpu.frame.x
    };
    for (n, value) in registers.iter().enumerate() {
        write!(out, "  x{n:<2} {value:#018x}{}", if n % 4 == 3 || n == 30 { "\n" } else { "" })?;
    }
    Ok(())
}

/// Frame pointer of the caller.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let value: u64;
    // SAFETY: the instruction only reads the frame pointer, and changes no memory.
    unsafe { core::arch::asm!("mov {}, x29", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}
