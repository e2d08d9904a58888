//! Backtraces of Stile's own calls, by frame pointers.

use core::fmt::{self, Write};

use crate::arch::Arch;
use crate::arch::contract::Failure;
use crate::image;

/// Maximum number of calls shown.
const DEPTH: usize = 32;

/// Start of a backtrace.
pub struct Backtrace {
    /// The interrupted instruction.
    pub pc: Option<u64>,
    /// The frame pointer.
    pub pointer: u64,
}

impl Backtrace {
    /// Writes a line for each call, the innermost first.
    pub fn write(&self, out: &mut dyn Write) -> fmt::Result {
        if let Some(pc) = self.pc {
            write_call(out, pc)?;
        }
        let mut pointer = self.pointer;
        for _ in 0..DEPTH {
            let Some((caller, address)) = record(pointer) else { break };
            // The call precedes the instruction at the return address.
            write_call(out, address.wrapping_sub(4))?;
            if caller <= pointer {
                break;
            }
            pointer = caller;
        }
        Ok(())
    }
}

/// Reads a frame record (AAPCS64, "The Frame Pointer"; System V ABI for AMD64, "The Stack Frame"): the caller's frame
/// pointer, and the return address.
fn record(pointer: u64) -> Option<(u64, u64)> {
    let stack = Arch::stack_of(pointer)?;
    if pointer & 7 != 0 || pointer + 16 > stack.end {
        return None;
    }
    // SAFETY: the caller checked that both words lie in a mapped stack.
    Some(unsafe { (*(pointer as *const u64), *(pointer as *const u64).add(1)) })
}

fn write_call(out: &mut dyn Write, address: u64) -> fmt::Result {
    let code = Arch::code();
    if !code.contains(&address) {
        return writeln!(out, "    {address:#018x}");
    }
    let offset = (address - code.start) as u32;
    match image::symbol(Arch::symbol_offset(offset)) {
        Some((name, within)) => writeln!(out, "    {address:#018x} {name} + {within:#x}"),
        None => writeln!(out, "    {address:#018x} image + {offset:#x}"),
    }
}
