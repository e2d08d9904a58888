//! Code of the tests.

use crate::emulator::tables::{frame, write};

/// Writes an instruction and RET where code of the tests is.
pub fn put(instruction: &[u8]) -> u64 {
    let code = frame(0);
    write(code, instruction);
    write(code + instruction.len() as u64, &[0xc3]);
    code
}
