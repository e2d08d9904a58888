//! A hostile driver: any registers, any queue. Its server is honest, and must neither fail nor stop.

use payload::harness::Test;
use payload::prelude::*;
use payload::random::Random;

use crate::disk::{SIZE, kind};
use crate::driver;
use crate::function;
use crate::memory::{describe, place, write16, write32};

pub const TESTS: &[Test] = payload::tests![any_registers, any_descriptors, any_rings, the_end_is_announced];

/// Those for a server that is not this program's own: the disk is any.
pub const FOR_OTHERS: &[Test] = payload::tests![any_registers, any_descriptors, any_rings, a_sector_is_read];

/// Number of attacks of each kind.
fn rounds() -> u64 {
    machine::number("rounds", 60)
}

/// Any stores. (Loads may have to wait for the server, which is honest and there.)
fn any_registers() -> Outcome {
    let mut random = Random::new(machine::number("seed", 1));
    for _ in 0..rounds() {
        driver::start(SIZE)?;
        for _ in 0..100 {
            function::store_anywhere(&mut random);
        }
        function::set_status(0xF);
        function::kick();
    }
    Ok(())
}

fn any_descriptors() -> Outcome {
    let mut random = Random::new(machine::number("seed", 2));
    for _ in 0..rounds() {
        driver::start(SIZE)?;
        let queue = driver::queue();
        for index in 0..u64::from(SIZE) {
            let ram = machine::ram();
            let address = random.pick(&[queue + place::HEADER, queue, ram.end - 8, ram.end, 0x0A01_0000, 0, u64::MAX - 4]);
            let length = random.pick(&[16, 512, 1, 0, u32::MAX]);
            describe(queue, index, address, length, random.below(4) as u16, random.below(9) as u16);
        }
        for entry in 0..u64::from(SIZE) {
            write16(queue + place::AVAILABLE + 4 + 2 * entry, random.below(10) as u16);
        }
        write16(queue + place::AVAILABLE + 2, SIZE);
        function::kick();
    }
    Ok(())
}

/// Rings at any address, and indexes that jump.
fn any_rings() -> Outcome {
    let mut random = Random::new(machine::number("seed", 3));
    for _ in 0..rounds() {
        driver::start(SIZE)?;
        function::set_status(0);
        function::set_status(0xB);
        for offset in (function::DESCRIPTORS..function::USED + 8).step_by(4) {
            write32(function::at(offset), random.odd() as u32);
        }
        write16(function::at(function::QUEUE_ENABLE), 1);
        function::set_status(0xF);
        write16(driver::queue() + place::AVAILABLE + 2, random.bits() as u16);
        function::kick();
    }
    Ok(())
}

fn the_end_is_announced() -> Outcome {
    driver::start(SIZE)?;
    driver::the_end_is_announced()
}

fn a_sector_is_read() -> Outcome {
    driver::start(SIZE)?;
    driver::request(kind::READ, 0)
}
