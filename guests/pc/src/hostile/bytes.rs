//! Random bytes as code: in user mode, in code of 64 and of 32 bits; and by the kernel in an address space in which it reaches little.

use common::fail::Outcome;
use common::random::Random;
use pc::lapic::{self, command};
use pc::machine;

use crate::cpu::{self, Frame, selector};
use crate::{layout, phase_machine, window};

/// The phase.
pub fn run() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for round in phase_machine::share(1_500) {
            once(&mut random);
            if round % 64 == 0 {
                cpu::restore();
            }
        }
        Ok(())
    })?;
    let mut random = phase_machine::random();
    let sandbox = window::sandbox();
    for _ in 0..400 {
        let (code, registers) = any(&mut random);
        if breaks(&code) {
            continue;
        }
        let frame: Frame = cpu::kernel(&code, registers);
        // With interrupts disabled only an NMI ends an infinite loop.
        lapic::io_route(2, 0, command::NMI);
        one_shot(1_000);
        cpu::enter_in(sandbox, frame);
        lapic::io_route(2, 0, lapic::IO_MASKED);
        cpu::restore();
    }
    Ok(())
}

/// Sets the 8254's first counter, to ring once.
fn one_shot(count: u16) {
    let [low, high] = count.to_le_bytes();
    // SAFETY: the 8254 belongs to the guest.
    unsafe {
        machine::out8(0x43, 0x30);
        machine::out8(0x40, low);
        machine::out8(0x40, high);
    }
}

/// Code and registers, of which half point into the page of data that user mode has.
fn any(random: &mut Random) -> ([u8; 24], [u64; 16]) {
    let data = layout::user_data(cpu::this());
    let code = core::array::from_fn(|n| {
        // An operation size, a repetition, or the second table of opcodes before, more often than by chance.
        if n % 4 == 0 && random.below(3) == 0 { random.pick(&[0x0f, 0x66, 0xf3, 0x48, 0xf0, 0xc5, 0x0f]) } else { random.bits() as u8 }
    });
    let registers = core::array::from_fn(|_| if random.below(2) == 0 { data + random.below(4096) } else { random.odd() });
    (code, registers)
}

/// Whether kernel code with these bytes could have effects that no handler survives: loading tables (0F 00,
/// 0F 01), control registers (0F 22) or MSRs (0F 30), leaving its mode (far jumps, calls and returns, SYSCALL
/// and SYSENTER, IRET), accessing ports, or enabling interrupts.
fn breaks(code: &[u8]) -> bool {
    let second = |byte: u8| matches!(byte, 0x00 | 0x01 | 0x05 | 0x07 | 0x22 | 0x30 | 0x34 | 0x35 | 0x37 | 0xaa);
    let first = |byte: u8| matches!(byte, 0xfb | 0xe4..=0xe7 | 0xec..=0xef | 0x6c..=0x6f | 0xca | 0xcb | 0xcf | 0xff | 0x9a | 0xea);
    code.iter().any(|&byte| first(byte)) || code.windows(2).any(|pair| pair[0] == 0x0f && second(pair[1]))
}

/// Random bytes as code of user mode.
pub fn once(random: &mut Random) -> u64 {
    let (code, registers) = any(random);
    let mut frame = cpu::user(&code, registers);
    if random.below(3) == 0 {
        frame.cs = selector::USER_CODE_32;
    }
    frame.flags |= random.bits() & 0x4_0dd5;
    cpu::enter(&cpu::watched(frame));
    1
}
