//! A stack in a device.

use super::code::put;
use super::memory::{DEVICE, fill, ram, same};
use super::run::run_on_stack;
use crate::tests::test::check;

/// PUSH, POP, PUSHF, POPF, CALL, RET, RETF, ENTER and LEAVE, with their results in RAX.
const CODE: &[u8] = &[
    0x49, 0x89, 0xe4, // MOV R12, RSP
    0xbd, 0x67, 0x45, 0x23, 0x01, // MOV EBP, 0x01234567
    0xc8, 0x20, 0x00, 0x00, // ENTER 32, 0
    0x6a, 0xf9, // PUSH -7
    0x68, 0x78, 0x56, 0x34, 0x12, // PUSH 0x12345678
    0x66, 0x68, 0x34, 0x12, // PUSH 0x1234, of 16 bits
    0x66, 0x59, // POP CX
    0xe8, 0, 0, 0, 0,    // CALL to what follows
    0x5a, // POP RDX
    0x48, 0x8d, 0x05, 2, 0, 0, 0, // LEA RAX, [RIP + 2]
    0x50, 0xc3, // PUSH RAX, RET
    0x48, 0x8d, 0x05, 4, 0, 0, 0, // LEA RAX, [RIP + 4]
    0x50, 0xc2, 0x08, 0x00, // PUSH RAX, RET 8
    0x0f, 0xa0, 0x0f, 0xa1, // PUSH FS, POP FS
    0x9c, 0x80, 0x34, 0x24, 0x41, // PUSHF; XOR byte [RSP], CF and ZF
    0x9d, 0x66, 0x9c, 0x66, 0x9d, // POPF; both of 16 bits
    0x0f, 0x92, 0xc0, 0x50, // SETB AL; PUSH RAX
    0x8c, 0xc8, 0x50, // MOV EAX, CS; PUSH RAX
    0x48, 0x8d, 0x05, 3, 0, 0, 0, // LEA RAX, [RIP + 3]
    0x50, 0x48, 0xcb, // PUSH RAX, RETF
    0xc9, // LEAVE
    0x48, 0x8d, 0x44, 0x15, 0x00, // LEA RAX, [RBP + RDX]
    0x49, 0x29, 0xe4, // SUB R12, RSP
    0x4c, 0x01, 0xe0, // ADD RAX, R12
    0x41, 0xff, 0xe6, // JMP R14
];

/// The results must equal those with a stack in RAM.
pub fn all(_: u64) -> Result<(), &'static str> {
    const SIZE: u64 = 2048;
    let code = put(CODE);
    let results = [ram(), DEVICE].map(|base| {
        fill(base, SIZE);
        // SAFETY: the code satisfies the requirements of `run.s`, and uses only this stack.
        unsafe { run_on_stack(code, base + SIZE) }
    });
    check!(results[0] == results[1], "RBP, RDX or RSP is another");
    check!(results[0] > 0x0123_4567, "RBP does not come back");
    check!(same(ram(), DEVICE, SIZE), "something else is on the stack");
    Ok(())
}

/// POPF from a device enables single steps: the first is after the following instruction, as with a stack in
/// RAM.
pub fn steps(_: u64) -> Result<(), &'static str> {
    const DEBUG: u8 = 1;
    const CODE: &[u8] = &[
        0x9c, // PUSHF
        0x80, 0x4c, 0x24, 0x01, 0x01, // OR byte [RSP + 1], TF
        0x9d, // POPF
        0x4c, 0x89, 0xfc, // MOV RSP, R15: where the exceptions find their stack
        0x90, // NOP
        0x9c, // PUSHF
        0x80, 0x64, 0x24, 0x01, 0xfe, // AND byte [RSP + 1], all but TF
        0x9d, // POPF
        0x41, 0xff, 0xe6, // JMP R14
    ];
    let code = put(CODE);
    let counts = [ram(), DEVICE].map(|base| {
        crate::exception::take(DEBUG);
        // SAFETY: the code ends with a return, and the stack below is the test's own.
        unsafe { run_on_stack(code, base + 512) };
        crate::exception::take(DEBUG)
    });
    // Of the MOV, the NOP, and up to the second POPF.
    check!(counts == [5; 2], "another number of steps");
    Ok(())
}
