//! Code of the tests, and the local APIC's registers that it accesses.

use core::arch::asm;

use super::tables::{frame, write};

/// Offset of the version register.
pub const VERSION: u64 = 0x30;
/// Offset of the task-priority register.
pub const TASK_PRIORITY: u64 = 0x80;
/// Value of the version register.
pub const VERSION_IS: u64 = 0x0106_0014;

/// MOV EAX, [RDI].
pub const LOAD: [u8; 2] = [0x8b, 0x07];
/// MOV AL, [RDI].
pub const LOAD_BYTE: [u8; 2] = [0x8a, 0x07];
/// JMP R11, the return.
pub const BACK: [u8; 3] = [0x41, 0xff, 0xe3];

/// Calls the code at an address with RDI and RAX; returns RAX.
pub fn run(code: u64, rdi: u64, rax: u64) -> u64 {
    let out;
    // SAFETY: the code is one of the tests', which accesses the local APIC, RAX and RSI, and returns by R11.
    // The port in DX is unused.
    unsafe {
        asm!("lea r11, [rip + 2f]", "jmp rsi", "2:", inout("rsi") code => _, in("rdi") rdi, inout("rax") rax => out, in("edx") 0x80, out("r11") _, options(nostack))
    };
    out
}

/// Writes an instruction at the start of a frame, and the way back.
pub fn put(index: usize, offset: u64, instruction: &[u8]) {
    write(frame(index) + offset, instruction);
    write(frame(index) + offset + instruction.len() as u64, &BACK);
}
