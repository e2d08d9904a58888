//! A hostile driver: any stores to its function, and queues that make no sense.

use common::fail::Outcome;
use common::random::Random;

use crate::disk::{SIZE, kind};
use crate::driver::{queue, request, start};
use crate::function::{self, kick, store_anywhere};
use crate::memory::{describe, place, write16, write32};

/// Attacks, `rounds` times in each way, and then uses the disk and ends.
pub fn attack(rounds: u64) -> Outcome {
    let mut random = Random::new(1);
    for round in 0..rounds {
        start(SIZE)?;
        if round % 3 == 0 {
            (0..50).for_each(|_| store_anywhere(&mut random));
        } else if round % 3 == 1 {
            // Rings at any address, and indexes that jump.
            function::set_status(0);
            function::set_status(0xb);
            for offset in (function::DESCRIPTORS..function::USED + 8).step_by(4) {
                write32(function::at(offset), random.odd() as u32);
            }
            write16(function::at(function::QUEUE_ENABLE), 1);
            function::set_status(0xf);
            write16(queue() + place::AVAILABLE + 2, random.odd() as u16);
            kick();
        } else {
            (0..u64::from(SIZE)).for_each(|index| {
                let (length, flags, next) = (random.odd() as u32, random.below(8) as u16, random.odd() as u16);
                describe(queue(), index, random.odd(), length, flags, next);
            });
            (0..u64::from(SIZE)).for_each(|entry| write16(queue() + place::AVAILABLE + 4 + 2 * entry, random.odd() as u16));
            write16(queue() + place::AVAILABLE + 2, random.odd() as u16);
            kick();
        }
    }
    start(SIZE)?;
    request(kind::READ, 0)?;
    function::mask(false);
    request(kind::END, 0)
}
