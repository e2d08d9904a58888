//! Queues of a virtio function whose parts and buffers are anywhere but in this program.

use common::fail::Outcome;
use common::random::Random;

use crate::function::{ECAM, RAM, write};
use crate::virtio::{AVAILABLE, BUFFER, DESCRIPTORS, RNG, USED, Virtio};
use crate::{phase_machine, poke};

/// The phase "rings".
pub fn run() -> Outcome {
    let mut random = phase_machine::random();
    let Some(rng) = Virtio::find(RNG) else { return Ok(()) };
    poke::start();
    for _ in 0..200 {
        rng.reset()?;
        for descriptor in 0..16 {
            write(DESCRIPTORS + 16 * descriptor, 8, foreign(rng, &mut random));
            let next = random.below(1 << 16);
            write(
                DESCRIPTORS + 16 * descriptor + 8,
                8,
                random.pick(&[0, 1, 4, 64, 4096, 1 << 31, 0xffff_ffff]) | random.below(8) << 32 | next << 48,
            );
        }
        (0..64).for_each(|at| write(AVAILABLE + 2 * at, 2, random.odd() & 0xffff));
        let parts = [DESCRIPTORS, AVAILABLE, USED].map(|part| if random.below(6) == 0 { foreign(rng, &mut random) } else { part });
        let size = random.pick(&[1, 2, 3, 7, 8, 256, 0x8000, 0xffff]);
        // The device may refuse, or mark itself broken.
        let _ = rng.start(size, parts);
        write(AVAILABLE + 2, 2, random.pick(&[1, 2, 8, 0x7fff, 0xffff]));
        (0..4).for_each(|_| write(rng.notify, 2, random.below(3)));
    }
    rng.reset()
}

/// Returns an address outside of RAM, or one in the buffer.
fn foreign(rng: Virtio, random: &mut Random) -> u64 {
    match random.below(9) {
        0 => 0xfee0_0000 + random.below(1 << 20),
        1 => RAM + random.below(1 << 30),
        2 => rng.common,
        3 => rng.table,
        4 => ECAM + random.below(1 << 20),
        5 => 0xfec0_0000,
        6 => random.bits() | 1 << 40,
        7 => u64::MAX - random.below(32),
        _ => BUFFER + random.below(4096),
    }
}
