//! Operations for a soak, hundreds at a time: code that is written once and executed with new operands each time. The other
//! operations of a soak write their instructions for each attempt, which takes an emulator longer than all else.

use payload::board::{GICC, GICD, GICR, GICR_STRIDE, RTC};
use payload::encode::{NOP, SMC, hvc, load, store};
use payload::mmu::{self, Memory};
use payload::prelude::*;
use payload::probe;
use payload::random::Random;
use payload::timer::Timer;

use crate::{devices, hypercalls, interrupts, memory, pages, sysregs};

/// Number of times that the same code is executed.
const TIMES: u64 = 256;

/// Reads and writes of system registers.
pub fn registers(random: &mut Random) -> u64 {
    const COUNT: usize = 32;
    let words: [u32; 2 * COUNT] = sysregs::some(random);
    probe::repeat(&words, TIMES, || one_operand(1, random.odd()));
    TIMES * words.iter().filter(|word| **word != NOP).count() as u64
}

/// Hypercalls, by either conduit.
pub fn calls(random: &mut Random) -> u64 {
    const CALLS: usize = 8;
    // Functions are in registers that calls preserve: mov x0, x19 and following; the call.
    let mut words = [NOP; 2 * CALLS];
    for (pair, source) in words.chunks_exact_mut(2).zip(19..) {
        let immediate = random.odd() as u32 & 0xFFFF;
        pair[0] = 0xAA00_03E0 | source << 16;
        pair[1] = random.pick(&[hvc(0), hvc(0), hvc(0), hvc(immediate), SMC | immediate << 5]);
    }
    probe::repeat(&words, TIMES, || {
        let mut registers = core::array::from_fn(|_| random.odd());
        registers[19..19 + CALLS].fill_with(|| hypercalls::function(random));
        registers
    });
    TIMES * CALLS as u64
}

/// Accesses to devices, with one base register each.
pub fn accesses(random: &mut Random) -> u64 {
    const ACCESSES: usize = 12;
    let mut sizes = [0; ACCESSES];
    let mut stores = [false; ACCESSES];
    let words: [u32; ACCESSES] = core::array::from_fn(|n| {
        sizes[n] = random.below(4) as u32;
        stores[n] = random.below(2) == 0;
        // Bases are the odd registers, and operands the even ones.
        let (base, operand) = (2 * n as u32 + 1, 2 * n as u32);
        if stores[n] { store(sizes[n], operand, base) } else { load(sizes[n], operand, base) }
    });
    probe::repeat(&words, TIMES, || {
        let mut registers = core::array::from_fn(|_| random.odd());
        for n in 0..ACCESSES {
            registers[2 * n + 1] = place(random, sizes[n], stores[n]);
        }
        registers
    });
    TIMES * ACCESSES as u64
}

/// An aligned address of a device other than the UART, whose output others see.
fn place(random: &mut Random, size: u32, is_store: bool) -> u64 {
    loop {
        let of_gicv3 = [
            (GICD, 0x1000),
            (GICD + 0x6000, 0x2000),
            (GICR, GICR_STRIDE * machine::cpus() as u64),
            (GICR + GICR_STRIDE / 2, 0x1000),
            (RTC, 0x1000),
        ];
        let of_gicv2 = [(GICD, 0x1000), (GICD + 0xF00, 0x100), (GICC, 0x1000), (GICC + 0x1000, 0x1000), (RTC, 0x1000)];
        let (base, length) = random.pick(if machine::is_gicv2() { &of_gicv2 } else { &of_gicv3 });
        let address = (base + random.below(length)) & !((1 << size) - 1);
        if !is_store || !devices::spares(address, size) {
            return address;
        }
    }
}

/// Accesses to unmapped addresses.
pub fn nowhere(random: &mut Random) -> u64 {
    const ACCESSES: usize = 8;
    let words: [u32; ACCESSES] = core::array::from_fn(|_| memory::data_access(random));
    let attributes = random.pick(&[Memory::Device, Memory::Normal, Memory::Uncached]);
    let window = mmu::window(memory::nowhere(random), attributes, random.below(2) == 0) & !0xFFF | 0x100;
    probe::repeat(&words, TIMES / 4, || {
        let mut registers = core::array::from_fn(|_| random.odd());
        registers[0] = 0;
        registers[1] = (window + random.below(0xE00)) & !random.pick(&[0, 7, 63]);
        registers
    });
    TIMES / 4 * ACCESSES as u64
}

/// SGIs, and changes of interrupts' configuration.
pub fn interrupts(random: &mut Random) -> u64 {
    (0..TIMES).map(|_| interrupts::once(random)).sum()
}

/// Deadlines and controls of timers, which are due at any time.
pub fn timers(random: &mut Random) -> u64 {
    let count = (0..TIMES).map(|_| interrupts::timer(random)).sum();
    Timer::ALL.into_iter().for_each(Timer::stop);
    count
}

/// Pages that others use and change: new descriptors, TLB maintenance, and accesses through arbitrary descriptors.
pub fn pages(random: &mut Random) -> u64 {
    let size = random.below(4) as u32;
    let word = if random.below(2) == 0 { load(size, 2, 1) } else { store(size, 2, 1) };
    probe::repeat(&[word], TIMES, || {
        pages::change(random);
        let mut registers = core::array::from_fn(|_| random.odd());
        registers[1] = pages::address(random);
        registers
    });
    2 * TIMES
}

/// Registers of which only one is not 0.
fn one_operand(number: usize, value: u64) -> probe::Registers {
    let mut registers = [0; 31];
    registers[number] = value;
    registers
}
