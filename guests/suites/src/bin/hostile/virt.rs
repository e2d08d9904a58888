//! The board `virt` as the phases' machine, and each CPU's part in a phase.

use common::phases::{self, Machine};
use payload::prelude::*;
use payload::random::Random;

use crate::restore;

/// The machine of these phases.
pub struct Virt;

impl Machine for Virt {
    fn this() -> usize {
        smp::this()
    }

    fn cpus() -> usize {
        machine::cpus()
    }

    fn canary() -> &'static mut [u64] {
        const WORDS: usize = 0x1_0000;
        let free = machine::free_ram();
        let count = WORDS.min((free.end.saturating_sub(free.start) / 8) as usize);
        // SAFETY: free RAM after the image; used here only, by one CPU at a time.
        unsafe { core::slice::from_raw_parts_mut(free.start as *mut u64, count) }
    }

    fn restore() -> Outcome {
        restore::restore()
    }

    fn say(line: core::fmt::Arguments<'_>) {
        println!("{line}");
    }
}

/// Random numbers of this CPU for this phase.
pub fn random() -> Random {
    phases::random::<Virt>()
}

/// This CPU's share of a number of attempts.
pub fn share(attempts: usize) -> core::ops::Range<usize> {
    phases::share::<Virt>(attempts)
}
