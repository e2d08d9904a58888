//! Comparison of an instruction on RAM and on a device.

use super::code::put;
use super::flags::DF;
use super::memory::{DEVICE, fill, ram, same};
use super::run::Block;

/// Executes an instruction with the operand at RDI in RAM and in the device, with RSI at another offset of
/// the same memory. Returns whether all registers and memory are equal afterwards.
pub fn agrees(instruction: &[u8], flags: u64, before: &Block, wide: bool) -> bool {
    const PART: u64 = 256;
    let code = put(instruction);
    let mut blocks = [*before; 2];
    for (block, base) in blocks.iter_mut().zip([ram(), DEVICE]) {
        fill(base, 2 * PART);
        (block.rdi, block.rsi) = (base + 64, base + PART);
        block.run(code, wide);
        block.rdi -= base;
        block.rsi -= base;
        block.flags &= flags | DF;
    }
    blocks[0] == blocks[1] && same(ram(), DEVICE, 2 * PART)
}
