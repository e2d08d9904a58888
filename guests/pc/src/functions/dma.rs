//! Copies by `edu` to and from addresses outside of this VM's RAM.

use common::check;
use common::fail::Outcome;
use pc::others;

use crate::function::{ECAM, Function, ID_OF_EDU, RAM, read, write};
use crate::{phase_machine, poke};

/// Its buffer, by the addresses that its DMA has for it, and its size.
const BUFFER: u64 = 0x4_0000;
const BYTES: u64 = 4096;
/// Registers.
const SOURCE: u64 = 0x80;
const DESTINATION: u64 = 0x88;
const COUNT: u64 = 0x90;
const COMMAND: u64 = 0x98;
const START: u64 = 1;
/// From its buffer to memory.
const TO_MEMORY: u64 = 2;

/// Starts a copy of the function's buffer to memory, which takes place 100 ms later.
pub fn start(edu: Function, address: u64, bytes: u64, to_memory: bool) {
    let bar = edu.place(0);
    let (source, destination) = if to_memory { (BUFFER, address) } else { (address, BUFFER) };
    write(bar + SOURCE, 8, source);
    write(bar + DESTINATION, 8, destination);
    write(bar + COUNT, 8, bytes);
    write(bar + COMMAND, 8, START | if to_memory { TO_MEMORY } else { 0 });
}

/// The phase "dma".
pub fn run() -> Outcome {
    let mut random = phase_machine::random();
    let Some(edu) = Function::find(ID_OF_EDU) else { return Ok(()) };
    let own = edu.place(0);
    poke::start();
    for attempt in 0..24 {
        let address = match attempt % 8 {
            // Vectors of the remapping table, and others.
            0 => 0xfee0_0000 + 4 * random.below(1 << 18),
            1 => RAM + 4096 * random.below(1 << 18),
            2 => own,
            3 => ECAM + (edu.device << 15),
            4 => 0xfec0_0000,
            5 => random.bits() & 0xffff_ffff_f000,
            6 => RAM - 64,
            _ => 0xffff_ffff_f000,
        };
        let bytes = random.pick(&[4, 16, 128, BYTES]);
        start(edu, address, bytes, random.below(4) != 0);
        check!(others::wait(|| read(own + COMMAND, 4) & START == 0), "a copy to {address:#x} does not end");
    }
    Ok(())
}
