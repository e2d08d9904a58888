//! Failing event delivery: through stacks in devices or unmapped memory. (With descriptor tables there, no exception
//! would return.)

use common::check;
use common::fail::Outcome;

use crate::cpu;
use crate::window;

const INVALID_OPCODE: usize = 6;
const DOUBLE_FAULT: u64 = 8;
const UD2: &[u8] = &[0x0f, 0x0b];

/// The phase.
pub fn run() -> Outcome {
    // The stack of #UD is unmapped, or a device: a double fault, whose stack is valid. On one CPU, because all share
    // the IDT.
    for place in [0xc000_0000u64, 0xfec0_0000, 0xfee0_0000, 1 << 36] {
        let stack = window::wild(place, false) + 0x800;
        cpu::set_stack(3, stack);
        cpu::set_gate_stack(INVALID_OPCODE, 3);
        let end = cpu::run(UD2, [0; 16]);
        cpu::set_gate_stack(INVALID_OPCODE, 1);
        check!(end.vector == DOUBLE_FAULT, "with a stack at {place:#x}: vector {}", end.vector);
    }
    Ok(())
}
