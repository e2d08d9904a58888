//! Every system register and system instruction encoding, read and written with odd values.

use payload::encode::{NOP, Sysreg};
use payload::mmu::{self, Memory};
use payload::prelude::*;
use payload::probe::{self, MAX_WORDS};
use payload::random::Random;

use crate::{restore, virt};

/// Registers that are not written, because the guest could not continue.
fn ruins(register: Sysreg) -> bool {
    match (register.op0, register.op1, register.crn, register.crm, register.op2) {
        // SCTLR_EL1, SCTLR2_EL1: MMU off, or another byte order.
        (3, 0, 1, 0, 0 | 3) => true,
        // TTBR0_EL1, TTBR1_EL1, TCR_EL1, TCR2_EL1: other translations.
        (3, 0, 2, 0, _) => true,
        // GCSCR_EL1: guests have no shadow stack.
        (3, 0, 2, 5, _) => true,
        // MAIR_EL1, PIR_EL1, POR_EL1 and their like: the memory that the guest runs from becomes something else.
        (3, 0, 10, 2, _) => true,
        // VBAR_EL1: no way to recover from an exception.
        (3, 0, 12, 0, 0) => true,
        // SPSel: another stack. DAIF: unexpected exceptions.
        (3, 0, 4, 2, 0) | (3, 3, 4, 2, 1) => true,
        // Statistical profiling and trace buffers: they write to memory by themselves.
        (3, 0, 9, 9..=11, _) => true,
        // CNTFRQ_EL0: writable where EL1 is the highest level, and used for the guest's time-outs.
        (3, 3, 14, 0, 0) => !machine::is_stile(),
        _ => false,
    }
}

/// Runs the words of encodings, many at a time, with an odd value in x1.
fn run_all(encodings: impl Iterator<Item = Sysreg>, words: fn(Sysreg) -> [u32; 2], mut value: impl FnMut() -> u64) {
    let mut batch = [NOP; MAX_WORDS];
    let mut length = 0;
    let mut flush = |batch: &[u32]| {
        let mut registers = [0; 31];
        registers[1] = value();
        probe::run(batch, &mut registers);
    };
    for register in encodings {
        batch[length..length + 2].copy_from_slice(&words(register));
        length += 2;
        if length == MAX_WORDS {
            flush(&batch);
            length = 0;
        }
    }
    flush(&batch[..length]);
}

/// This CPU's part of the encodings of an op0.
fn encodings(op0: u32) -> impl Iterator<Item = Sysreg> {
    let (this, cpus) = (smp::this() as u32, machine::cpus() as u32);
    (0..1 << 14).filter(move |n| n % cpus == this).map(move |n| Sysreg::new(op0, n >> 11, n >> 7 & 15, n >> 3 & 15, n & 7))
}

/// All registers.
pub fn registers() -> Outcome {
    smp::on_all(|| {
        let mut random = virt::random();
        for op0 in [2, 3] {
            let words = |register: Sysreg| [register.read(0), if ruins(register) { NOP } else { register.write(1) }];
            run_all(encodings(op0), words, || random.odd());
            restore::restore_cpu();
        }
        Ok(())
    })
}

/// Some registers, of those that the architecture names or of all encodings.
pub fn registers_once(random: &mut Random) -> u64 {
    let words: [u32; 32] = some(random);
    let mut registers = [0; 31];
    registers[1] = random.odd();
    probe::run(&words, &mut registers);
    words.len() as u64
}

/// Reads and writes of some registers, from x1. A register that the guest needs is not written: a NOP is in its place.
pub fn some<const WORDS: usize>(random: &mut Random) -> [u32; WORDS] {
    let mut words = [NOP; WORDS];
    for pair in words.chunks_exact_mut(2) {
        let op1 = if random.below(4) == 0 { random.below(8) } else { random.pick(&[0, 0, 3]) };
        let op0 = if random.below(6) == 0 { 2 } else { 3 };
        let register = Sysreg::new(op0, op1 as u32, random.below(16) as u32, random.below(16) as u32, random.below(8) as u32);
        pair[0] = register.read(0);
        if !ruins(register) {
            pair[1] = register.write(1);
        }
    }
    words
}

/// Some system instructions.
pub fn instructions_once(random: &mut Random) -> u64 {
    const COUNT: u64 = 8;
    let nowhere = mmu::window(0x0B00_0000, Memory::Normal, false);
    let words: [u32; COUNT as usize] = core::array::from_fn(|_| {
        // Cache maintenance, address translation and TLB maintenance more often than reserved encodings.
        let crn = if random.below(8) == 0 { random.below(16) } else { 7 + random.below(3) } as u32;
        let register = Sysreg::new(1, random.below(8) as u32, crn, random.below(16) as u32, random.below(8) as u32);
        if forgets(register) { NOP } else { register.write(random.pick(&[1, 1, 31])) }
    });
    let mut registers = [0; 31];
    registers[1] = operand(random, nowhere);
    probe::run(&words, &mut registers);
    COUNT
}

/// Invalidation by set and way discards cached data, unless a hypervisor upgrades it to cleaning.
fn forgets(register: Sysreg) -> bool {
    let Sysreg { op1, crn, crm, op2, .. } = register;
    op1 == 0 && crn == 7 && crm == 6 && op2 != 1 && !machine::is_stile()
}

/// Returns an address operand: unmapped, or non-canonical. (With zero: a device, which raises an exception
/// when zeroed or invalidated.)
fn operand(random: &mut Random, nowhere: u64) -> u64 {
    match random.below(3) {
        0 => nowhere + random.below(1 << 20),
        1 => random.bits() | 0xFFF << 52,
        _ => random.bits() & !(0xFF << 44) | 0xABC << 44,
    }
}

/// All system instructions (cache, TLB, address translation and others), with unmapped or non-canonical
/// addresses.
pub fn instructions() -> Outcome {
    smp::on_all(|| {
        let mut random = virt::random();
        let nowhere = mmu::window(0x0B00_0000, Memory::Normal, false);
        let encodings = encodings(1).filter(|register| !forgets(*register));
        let words = |register: Sysreg| [register.write(1), register.write(31)];
        run_all(encodings, words, || operand(&mut random, nowhere));
        restore::restore_cpu();
        Ok(())
    })
}
