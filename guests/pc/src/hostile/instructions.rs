//! Instructions that exit, wait, or belong to features that guests lack: in the kernel, and in user mode in 64-bit and 32-bit code.

use common::fail::Outcome;
use common::random::Random;

use crate::cpu::{self, selector};
use crate::odd::odd;
use crate::{layout, phase_machine};

/// Single instructions; RSI holds an address of the guest's own.
const INSTRUCTIONS: [&[u8]; 45] = [
    &[0x0f, 0x01, 0xc1],             // vmcall
    &[0x0f, 0x01, 0xc2],             // vmlaunch
    &[0x0f, 0x01, 0xc3],             // vmresume
    &[0x0f, 0x01, 0xc4],             // vmxoff
    &[0x0f, 0x01, 0xd4],             // vmfunc
    &[0xf3, 0x0f, 0xc7, 0x36],       // vmxon [rsi]
    &[0x66, 0x0f, 0xc7, 0x36],       // vmclear [rsi]
    &[0x0f, 0xc7, 0x36],             // vmptrld [rsi]
    &[0x0f, 0xc7, 0x3e],             // vmptrst [rsi]
    &[0x0f, 0x78, 0xc8],             // vmread rax, rcx
    &[0x0f, 0x79, 0xc8],             // vmwrite rcx, rax
    &[0x66, 0x0f, 0x38, 0x80, 0x06], // invept rax, [rsi]
    &[0x66, 0x0f, 0x38, 0x81, 0x06], // invvpid rax, [rsi]
    &[0x66, 0x0f, 0x38, 0x82, 0x06], // invpcid rax, [rsi]
    &[0x0f, 0x37],                   // getsec
    &[0x0f, 0xaa],                   // rsm
    &[0x0f, 0x08],                   // invd
    &[0x0f, 0x09],                   // wbinvd
    &[0xf3, 0x0f, 0x09],             // wbnoinvd
    &[0x0f, 0x01, 0xc8],             // monitor
    &[0x0f, 0x01, 0xc9],             // mwait
    &[0xf3, 0x0f, 0xae, 0xf0],       // umonitor
    &[0xf2, 0x0f, 0xae, 0xf0],       // umwait
    &[0x66, 0x0f, 0xae, 0xf0],       // tpause
    &[0x0f, 0x33],                   // rdpmc
    &[0x0f, 0x01, 0xcf],             // encls
    &[0x0f, 0x01, 0xd7],             // enclu
    &[0x0f, 0x01, 0xc0],             // enclv
    &[0x0f, 0x01, 0xc5],             // pconfig
    &[0x0f, 0x01, 0xf9],             // rdtscp
    &[0x0f, 0x01, 0xd0],             // xgetbv
    &[0x0f, 0x01, 0xd1],             // xsetbv
    &[0x0f, 0x01, 0xef],             // wrpkru
    &[0x0f, 0xc7, 0x2e],             // xsaves [rsi]
    &[0x0f, 0xc7, 0x1e],             // xrstors [rsi]
    &[0x0f, 0xae, 0x2e],             // xrstor [rsi]
    &[0x0f, 0xc7, 0xf0],             // rdrand eax
    &[0xf3, 0x0f, 0xc7, 0xf8],       // rdpid rax
    &[0x0f, 0x01, 0xca],             // clac
    &[0x0f, 0x01, 0xf8],             // swapgs
    &[0xf1],                         // int1
    &[0xcd, 0x0e],                   // int 14
    &[0x0f, 0x0b],                   // ud2
    &[0x0f, 0x01, 0x3e],             // invlpg [rsi]
    &[0x0f, 0x04],                   // undefined
];

const PAUSES: [u8; 8] = [0xf3, 0x90, 0xf3, 0x90, 0xf3, 0x90, 0xf3, 0x90];

/// The phase.
pub fn run() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for _ in phase_machine::share(6) {
            for code in INSTRUCTIONS {
                try_one(&mut random, code);
            }
            for _ in 0..50 {
                cpu::run(&PAUSES, [0; 16]);
            }
            cpu::restore();
        }
        Ok(())
    })
}

/// Executes an instruction in the kernel, and in user mode in 64-bit and 32-bit code.
fn try_one(random: &mut Random, code: &[u8]) {
    let mut registers = odd(random);
    registers[1] = random.below(4);
    registers[6] = layout::user_data(cpu::this());
    // In the kernel it may follow MOV SS or STI, whose interrupt shadow covers it.
    let mut stream = [0x90u8; 16];
    let before: &[u8] = [&[][..], &[0x8e, 0xd0], &[0xfb]][random.below(3) as usize];
    stream[..before.len()].copy_from_slice(before);
    stream[before.len()..before.len() + code.len()].copy_from_slice(code);
    registers[0] = if before.len() == 2 { selector::DATA } else { registers[0] };
    let stream = &stream[..before.len() + code.len()];
    /// Position of RFLAGS.TF: a single step.
    const TF: u64 = 8;
    let step = random.below(2) << TF;
    let mut frame = cpu::kernel(stream, registers);
    frame.flags |= step;
    cpu::enter(&frame);
    frame = cpu::user(code, registers);
    frame.flags = 2 | step;
    cpu::enter(&frame);
    frame.cs = selector::USER_CODE_32;
    cpu::enter(&frame);
}

/// Executes a random instruction. Returns the number of entries to code that it makes.
pub fn once(random: &mut Random) -> u64 {
    let code = random.pick(&INSTRUCTIONS);
    try_one(random, code);
    3
}
