//! Ports: existing and others, with each width and any value; and string instructions from and to them.

use common::fail::Outcome;
use common::random::Random;
use pc::{console, machine};

use crate::cpu::{self, run};
use crate::odd::odd;
use crate::{layout, phase_machine, window};

/// Whether writes to a port are avoided: it ends the machine, or is used for output. (The keyboard
/// controller's, the reset register, PM1a, the sleep control, the test device's exit port.)
fn is_spared(port: u16) -> bool {
    matches!(port, 0x60..=0x64 | 0x92 | 0xf1..=0xf4 | 0x3f5..=0x3f8 | 0x5fd..=0x620 | 0xcf6..=0xcff | 0x8900)
}

/// A port, mostly an existing one.
fn port(random: &mut Random) -> u16 {
    const BLOCKS: [(u16, u16); 11] =
        [(0x20, 2), (0x40, 4), (0x61, 1), (0x70, 2), (0xa0, 2), (0xe0, 4), (0x3f8, 8), (0x4d0, 2), (0x510, 2), (0x600, 12), (0x2000, 24)];
    match random.below(4) {
        0 => random.bits() as u16,
        _ => {
            let (base, count) = random.pick(&BLOCKS);
            base + random.below(count.into()) as u16
        }
    }
}

/// IN and OUT by DX and by an immediate.
pub fn noise() -> Outcome {
    let outcome = cpu::on_all(|| {
        let mut random = phase_machine::random();
        for _ in phase_machine::share(2_500) {
            once(&mut random, false);
        }
        Ok(())
    });
    console::setup();
    outcome
}

/// INS and OUTS, repeated or not, at addresses that end, with any count and direction.
pub fn strings() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for _ in phase_machine::share(150) {
            string_once(&mut random);
        }
        Ok(())
    })
}

/// IN or OUT by DX. `spares_uart`: not to the UART.
pub fn once(random: &mut Random, spares_uart: bool) -> u64 {
    let mut registers = odd(random);
    let port = port(random);
    registers[2] = random.bits() << 16 | u64::from(port);
    let write = random.below(2) == 1;
    let is_uart = (0x3f8..0x400).contains(&port);
    let is_8259 = has_8259(port);
    if write && (is_spared(port) || spares_uart && is_uart || is_8259 && cpu::this() != 0) {
        return 0;
    }
    let form = random.below(3);
    let opcode = if write { 0xee } else { 0xec };
    match form {
        0 => run(&[opcode], registers),
        1 => run(&[0x66, opcode + 1], registers),
        _ => run(&[opcode + 1], registers),
    };
    if write && is_8259 {
        renumber_8259s();
    }
    1
}

/// Whether an access of up to four bytes reaches an 8259. The first CPU alone writes to them: see [`renumber_8259s`].
fn has_8259(port: u16) -> bool {
    (0x1d..0x22).contains(&(port & 0xff7f))
}

/// Programs the 8259s, whose first vector may have been overwritten, with vectors that are not exceptions': the handler
/// can't distinguish an exception from an interrupt with its vector. Two CPUs that do so concurrently could mix up
/// their sequences.
fn renumber_8259s() {
    for (port, first) in [(0x20, 0x30), (0xa0, 0x38)] {
        // SAFETY: the 8259s are the guest's own. ICW1 to ICW4, and a mask of nothing.
        unsafe {
            machine::out8(port, 0x11);
            for value in [first, if port == 0x20 { 1 << 2 } else { 2 }, 1, 0] {
                machine::out8(port + 1, value);
            }
        }
    }
}

/// INS or OUTS.
pub fn string_once(random: &mut Random) -> u64 {
    let port = random.pick(&[0x80u16, 0x40, 0x71, 0xe0, 0x21, 0x511, 0x2005, 0x5678]);
    let port = if has_8259(port) && cpu::this() != 0 { 0x80 } else { port };
    let mut registers = odd(random);
    registers[2] = port.into();
    registers[1] = match random.below(4) {
        0 => u64::MAX,
        _ => random.below(600),
    };
    let data = layout::user_data(cpu::this());
    // In the last present page, across its end or from its beginning down, non-canonical, at a device,
    // unmapped.
    let address = match random.below(6) {
        0 => 0x7fff_ffff_fffc,
        1 => window::wild(0xfec0_0000 + 8 * random.below(8), false),
        2 => window::wild(1 << 40, false),
        3 => data + 4096 - random.below(6),
        _ => data + random.below(4096),
    };
    (registers[6], registers[7]) = (address, address);
    let repeat = if random.below(4) == 0 { 0x90 } else { 0xf3 };
    let size = if random.below(2) == 0 { 0x66 } else { 0x90 };
    let direction = if random.below(4) == 0 { 0xfd } else { 0xfc };
    let opcode = random.pick(&[0x6c, 0x6d, 0x6e, 0x6f]);
    let code: &[u8] = if size == 0x90 { &[direction, repeat, opcode] } else { &[direction, size, repeat, opcode] };
    cpu::enter(&cpu::watched(cpu::kernel(code, registers)));
    if has_8259(port) {
        renumber_8259s();
    }
    cpu::restore();
    1
}
