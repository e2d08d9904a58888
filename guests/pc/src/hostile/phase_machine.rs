//! The PC as the phases' machine, and each CPU's part in a phase.

use common::fail::Outcome;
use common::phases::{self, Machine};
use common::random::Random;
use pc::console::println;

use crate::{board, cpu, window};

/// The PC of these phases.
pub struct Pc;

impl Machine for Pc {
    fn this() -> usize {
        cpu::this()
    }

    fn cpus() -> usize {
        cpu::count()
    }

    fn canary() -> &'static mut [u64] {
        // SAFETY: RAM after the program, present on the smallest machine; used here only.
        unsafe { core::slice::from_raw_parts_mut((16 << 20) as *mut u64, 0x1_0000) }
    }

    fn restore() -> Outcome {
        board::restore();
        cpu::on_all(|| {
            cpu::restore();
            window::mend();
            window::map_user_code();
            Ok(())
        })
    }

    fn say(line: core::fmt::Arguments<'_>) {
        println!("{line}");
    }
}

/// Random numbers of this CPU for this phase.
pub fn random() -> Random {
    phases::random::<Pc>()
}

/// This CPU's share of a number of attempts.
pub fn share(attempts: usize) -> core::ops::Range<usize> {
    phases::share::<Pc>(attempts)
}
