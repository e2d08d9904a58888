//! The flash of a VM with UEFI firmware, with any accesses of its guest.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use stile_device::flash::{BLOCK_SIZE, Flash};

use crate::input::Input;
use crate::marks::reach;
use crate::target::Target;

/// Commands and data at any place of a chip whose size is no multiple of a block.
pub const FLASH: Target = Target {
    name: "flash",
    run: accesses,
    seeds: sequences,
    mutations: 300,
    marks: &["programmed", "erased", "array", "busy", "error", "beyond the end"],
};

const BLOCK_WORDS: usize = (BLOCK_SIZE / 4) as usize;
const WORDS: usize = BLOCK_WORDS + 16;
/// Maximum number of bytes that one access may change.
const MOST: u64 = 16 << 10;
/// Commands: two of three stores are one of them.
const COMMANDS: [u8; 12] = [0xff, 0x90, 0x10, 0x40, 0x20, 0xe8, 0x60, 0x50, 0x70, 0xd0, 0x01, 0x2f];
/// Bits of the status register.
const READY: u64 = 1 << 7;
const ERRORS: u64 = 3 << 4;

/// Programs a word, erases a block, fills the buffer, and does each wrongly or beyond the end.
fn sequences() -> Vec<Vec<u8>> {
    let command = |command: u8| vec![1, COMMANDS.iter().position(|&is| is == command).unwrap_or(0) as u8, 0, 0];
    let data = |value: u8| vec![0, value, 0, 0, 0, 4, 0];
    let load = vec![3, 2, 0, 0];
    let all: [&[Vec<u8>]; 5] = [
        &[command(0x40), data(1), load.clone(), command(0xff), load.clone()],
        &[command(0x20), command(0xd0), load.clone(), load.clone()],
        &[command(0xe8), data(1), data(7), data(7), command(0xd0), command(0xff), load.clone()],
        &[command(0x20), command(0xff), load.clone(), command(0x50), command(0x60), command(0x01)],
        &[command(0x40), vec![0, 7, 0, 0, 0, 0xff, 0x83], command(0xff), load.clone()],
    ];
    all.map(|steps| steps.concat()).into()
}

/// The chip's contents, and what they should be: changes are reported by the model under test, and are programmed or erased.
struct Contents {
    real: Vec<AtomicU32>,
    known: Vec<u32>,
}

impl Contents {
    /// Takes over the changes of an access.
    fn changed(&mut self, range: Range<u64>, stored: Option<(u64, u32)>) {
        assert!(
            range.start <= range.end && range.end - range.start <= MOST && range.start.is_multiple_of(4) && range.end.is_multiple_of(4)
        );
        for index in range.start / 4..range.end / 4 {
            let Some(known) = self.known.get_mut(index as usize) else {
                reach("beyond the end");
                continue;
            };
            let real = self.real[index as usize].load(Ordering::Relaxed);
            match stored {
                Some((offset, value)) if offset == index * 4 && real == *known & value => reach("programmed"),
                _ => {
                    assert_eq!(real, u32::MAX, "word {index} is neither programmed nor erased");
                    reach("erased");
                }
            }
            *known = real;
        }
    }
}

fn accesses(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let real = (0..WORDS as u32).map(AtomicU32::new).collect();
    let mut contents = Contents { real, known: (0..WORDS as u32).collect() };
    let mut flash = Flash::new();
    while !input.is_empty() {
        let kind = input.byte() % 4;
        match kind {
            3 => {
                let size = 1 << input.below(4);
                let offset = input.below(0x1_0000) as u64 * 4 / size * size;
                load(&mut flash, &mut contents, offset, size);
            }
            _ => {
                let value = if kind == 0 { input.word() } else { u32::from(input.pick(&COMMANDS)) * 0x1_0001 };
                // Both blocks, and a little beyond.
                let offset = input.half();
                let offset = u64::from(offset & 0x3ff) * 4 + if offset & 0x8000 != 0 { BLOCK_SIZE - 2048 } else { 0 };
                let changed = flash.write(&contents.real, offset, value);
                contents.changed(changed, Some((offset, value)));
            }
        }
    }
    // An erase ends, and so does a sequence: the guest gets its array back.
    for _ in 0..BLOCK_SIZE / MOST {
        load(&mut flash, &mut contents, 0, 4);
    }
    for _ in 0..300 {
        let changed = flash.write(&contents.real, 0, 0x00ff_00ff);
        contents.changed(changed, Some((0, 0x00ff_00ff)));
    }
    assert!(flash.is_array(), "the array does not come back");
    assert!(contents.real.iter().zip(&contents.known).all(|(real, known)| real.load(Ordering::Relaxed) == *known), "an unreported change");
}

fn load(flash: &mut Flash, contents: &mut Contents, offset: u64, size: u64) {
    let is_array = flash.is_array();
    let (value, changed) = flash.read(&contents.real, offset, size);
    assert!(size == 8 || value >> (size * 8) == 0);
    if is_array {
        reach("array");
        let word = |at: u64| u64::from(contents.known.get((at / 4) as usize).copied().unwrap_or(u32::MAX));
        let both = word(offset & !3) | word((offset & !3) + 4) << 32;
        let mask = if size == 8 { u64::MAX } else { (1 << (size * 8)) - 1 };
        assert_eq!(value, both >> (offset % 4 * 8) & mask);
        assert!(changed.is_empty());
    } else if value & READY == 0 {
        reach("busy");
    } else if value & ERRORS != 0 {
        reach("error");
    }
    contents.changed(changed, None);
}
