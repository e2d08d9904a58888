//! Exceptions of every kind, returns to illegal states, and unmapped stacks.

use payload::encode::{NOP, SMC, brk, hlt, svc};
use payload::mmu::{self, Memory};
use payload::prelude::*;
use payload::probe;
use payload::random::Random;

use crate::virt;

/// HLT with the immediates by which debuggers and emulators are called. On QEMU itself they may work, and end it.
const CALLS: [u32; 4] = [0xF000, 0xF001, 0xE000, 0x3C];

/// A load through an unmapped stack pointer at EL1t, so that the exception has a valid stack: `msr SPSel,
/// #0`, `mov sp, x1`, pushes, a call, `msr SPSel, #1`.
const STACK: [u32; 7] = [0xD500_40BF, 0x9100_003F, 0xA9BF_0FE2, 0xA9BF_0FE2, 0xF81F_0FE2, 0xA8C1_0FE2, 0xD500_41BF];

pub fn run() -> Outcome {
    smp::on_all(|| {
        let mut random = virt::random();
        for _ in virt::share(400) {
            once(&mut random);
        }
        for _ in virt::share(100) {
            stack_nowhere(&mut random);
        }
        Ok(())
    })
}

/// A system call, a debugger call, or an illegal return.
pub fn once(random: &mut Random) -> u64 {
    let immediate = random.odd() as u32;
    let words = [brk(immediate), svc(immediate), SMC, immediate & 0xFFFF, 0xD4A0_0001, 0xD6BF_03E0];
    probe::run(&[random.pick(&words)], &mut core::array::from_fn(|_| random.odd()));
    if machine::is_stile() {
        // SYS_EXIT and others in w0, an address in x1.
        let mut registers = core::array::from_fn(|_| random.odd());
        registers[0] = random.below(0x32);
        probe::run(&[hlt(random.pick(&CALLS))], &mut registers);
    }
    illegal_return(random);
    3
}

/// Exceptions with an unmapped stack pointer.
pub fn stack_nowhere(random: &mut Random) -> u64 {
    let mut registers = core::array::from_fn(|_| random.odd());
    registers[1] = mmu::window(0x0B00_0000 + random.below(0x10_0000), Memory::Normal, false) & !15;
    probe::run(&STACK, &mut registers);
    1
}

/// ERET with any SPSR_EL1 that is not a return to EL1 or EL0 with exceptions unmasked.
fn illegal_return(random: &mut Random) {
    let mode =
        random.pick(&[0x1, 0x2, 0x3, 0x6, 0x7, 0x8, 0x9, 0xA, 0xB, 0xC, 0xD, 0xE, 0xF, 0x11, 0x12, 0x13, 0x16, 0x17, 0x1A, 0x1B, 0x1F]);
    // adr x2, next; msr ELR_EL1, x2; msr SPSR_EL1, x1; eret; next: nop
    let words = [0x1000_0082, 0xD518_4022, 0xD518_4001, 0xD69F_03E0, NOP];
    let mut registers = [0; 31];
    // Without software step, and without bits of features that a guest may have and that take effect even in
    // an illegal return.
    registers[1] = random.bits() & 0xF010_0000 | 0x3C0 | mode;
    probe::run(&words, &mut registers);
}
