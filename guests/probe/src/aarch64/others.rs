//! CPUs besides the first one: the second has roles, the others run and take interrupts.

use core::sync::atomic::{AtomicBool, Ordering::*};

use super::cpu::{self, CPUS};
use super::platform::Platform;
use super::sysreg::instruction;
use super::{gic, psci, second};

/// Whether a CPU from the third one on takes interrupts, by its number.
static TAKES: [AtomicBool; CPUS] = [const { AtomicBool::new(false) }; CPUS];

/// Turns all CPUs from the third one on on, and waits until they take interrupts.
pub fn start_rest(platform: &Platform) {
    for (number, takes) in TAKES.iter().enumerate().take(platform.cpus).skip(2) {
        if !takes.load(Acquire) && psci::start(platform, number as u64) {
            while !takes.load(Acquire) {
                instruction!("yield");
            }
        }
    }
}

/// Main program of a CPU with this number.
pub extern "C" fn main(number: u64) -> ! {
    gic::setup_cpu(number);
    let Some(takes) = TAKES.get(number as usize).filter(|_| number != 1) else { second::main() };
    cpu::unmask();
    takes.store(true, Release);
    loop {
        instruction!("yield");
    }
}
