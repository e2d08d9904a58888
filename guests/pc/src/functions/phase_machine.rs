//! The PC as the phases' machine: before and after each of them, the functions are connected and the other CPUs wait.

use common::check;
use common::fail::Outcome;
use common::phases::{self, Machine};
use common::random::Random;
use core::sync::atomic::Ordering;
use pc::console::println;
use pc::lapic::{self, register};
use pc::{exception, machine, others};

use crate::function::Function;
use crate::job;
use crate::virtio::{RNG, Virtio};

/// The PC of these phases.
pub struct Pc;

impl Machine for Pc {
    fn this() -> usize {
        lapic::id() as usize
    }

    fn cpus() -> usize {
        (core::arch::x86_64::__cpuid(1).ebx >> 16 & 0xff) as usize
    }

    fn canary() -> &'static mut [u64] {
        // SAFETY: RAM after the program, present on the smallest machine; used here only.
        unsafe { core::slice::from_raw_parts_mut((16 << 20) as *mut u64, 0x1_0000) }
    }

    fn restore() -> Outcome {
        machine::cli();
        job::stop();
        // Messages that attacks have left pending: the task priority keeps those of vectors below 30h pending.
        lapic::enable();
        lapic::write(register::TPR, 0x2f);
        exception::handle(2, Some(|_| ()));
        others::forget();
        // An INIT message of a function may arrive late, and stop a CPU that is being started.
        let up = Self::cpus() as u32 - 1;
        check!((0..ATTEMPTS).any(|_| start(up)), "other CPUs do not start");
        Function::all().for_each(Function::connect);
        if let Some(rng) = Virtio::find(RNG) {
            rng.reset()?;
        }
        Ok(())
    }

    fn say(line: core::fmt::Arguments<'_>) {
        println!("{line}");
    }
}

/// Attempts to start the other CPUs, and the time for each in ticks of real time.
const ATTEMPTS: u32 = 200;
const PATIENCE: u64 = 4_000_000_000;

/// Starts the other CPUs. Returns whether `up` of them run in time.
fn start(up: u32) -> bool {
    others::start();
    let begin = machine::ticks();
    while machine::ticks() - begin < PATIENCE {
        if others::UP.load(Ordering::SeqCst) == up {
            return true;
        }
        core::hint::spin_loop();
    }
    false
}

/// Random numbers of this CPU for this phase.
pub fn random() -> Random {
    phases::random::<Pc>()
}
