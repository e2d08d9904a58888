//! The function's accesses to memory.

use payload::harness::Test;
use payload::prelude::*;
use payload::uart::Reg32;

use crate::edu;

pub const TESTS: &[Test] = payload::tests![memory_is_copied, nothing_else_is_reached, mastering_ends, many_faults_cut_it_off];
pub const AFTER_RESET: &[Test] = payload::tests![nothing_was_under_way, memory_is_reached_again];

const MARK: u32 = 0x9C1_B007;
const BYTES: u64 = 4096;
/// Longer than the function's copies take: it starts them after 100 ms.
const COPY_MICROSECONDS: u64 = 500_000;

/// Buffers outside of what is loaded.
pub fn place(number: u64) -> u64 {
    (machine::free_ram().end & !(BYTES - 1)) - (number + 2) * BYTES
}

fn fill(address: u64, value: u32) {
    (0..BYTES / 4).for_each(|word| Reg32(address + 4 * word).write(value.wrapping_add(word as u32)));
}

fn holds(address: u64, value: u32) -> Outcome {
    for word in 0..BYTES / 4 {
        check_eq!(Reg32(address + 4 * word).read(), value.wrapping_add(word as u32), "at {:#x}", address + 4 * word);
    }
    Ok(())
}

/// Gives the function's buffer known contents.
fn load_buffer(value: u32) -> Outcome {
    fill(place(0), value);
    edu::read(place(0), BYTES as u32)
}

/// Whether its buffer has these contents.
fn buffer_holds(value: u32) -> Outcome {
    fill(place(1), 0);
    edu::write(place(1), BYTES as u32)?;
    holds(place(1), value)
}

fn memory_is_copied() -> Outcome {
    for value in [1 << 16, 0x5555_0000, 3] {
        load_buffer(value)?;
        buffer_holds(value)?;
    }
    // The first byte of RAM and the last.
    edu::read(machine::ram().start, BYTES as u32)?;
    edu::read(machine::ram().end - BYTES, BYTES as u32)
}

/// Outside of RAM: behind it, where Stile and other VMs are on the board; the interrupt controller; the BAR of the function itself.
fn nothing_else_is_reached() -> Outcome {
    load_buffer(7)?;
    for address in [machine::ram().end, edu::BAR, 0x0800_0000] {
        edu::read(address, 64)?;
        edu::write(address, 64)?;
    }
    check_eq!(edu::register(0).read() & 0xFF00_FFFF, edu::IDENTIFICATION, "identification");
    load_buffer(9)?;
    buffer_holds(9)
}

fn mastering_ends() -> Outcome {
    load_buffer(11)?;
    fill(place(1), 0x100);
    edu::own_config(4).write(edu::MEMORY);
    edu::write(place(1), BYTES as u32)?;
    holds(place(1), 0x100)
}

/// With those before, these are more faults than a function may have: it reaches not even this machine's memory any more.
fn many_faults_cut_it_off() -> Outcome {
    load_buffer(13)?;
    fill(place(1), 0x200);
    for page in 0..8 {
        edu::write(machine::ram().end + page * BYTES, 16)?;
    }
    edu::write(place(1), BYTES as u32)?;
    holds(place(1), 0x200)
}

fn mark() -> Reg32 {
    Reg32(place(3))
}

/// Whether the machine was reset by this program. (Stile keeps what RAM has outside of loaded files.)
pub fn second_boot() -> bool {
    let marked = mark().read() == MARK;
    mark().write(0);
    marked
}

/// Starts a copy to memory that ends after the machine's reset.
pub fn leave_under_way() {
    mark().write(MARK);
    fill(place(1), 0x300);
    edu::start_write(place(1), BYTES as u32);
}

fn nothing_was_under_way() -> Outcome {
    check_eq!(edu::own_config(4).read() & 0xFFFF, 0, "command");
    check_eq!(edu::own_config(0x10).read(), 0, "BAR");
    wait::spin(COPY_MICROSECONDS);
    holds(place(1), 0x300)
}

fn memory_is_reached_again() -> Outcome {
    edu::connect();
    load_buffer(17)?;
    buffer_holds(17)
}
