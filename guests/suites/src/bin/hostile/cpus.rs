//! CPUs turned on and off by all others concurrently, with random arguments.
//!
//! The entry point is always the guest's own: a CPU sent elsewhere would have no exception vectors.

use core::sync::atomic::{AtomicI64, Ordering::*};

use payload::entry;
use payload::prelude::*;
use payload::psci::{self, id};

/// Number of remaining operations.
static LEFT: AtomicI64 = AtomicI64::new(0);

/// Turns a CPU on or off, or queries its state.
pub fn once(random: &mut payload::random::Random) -> u64 {
    let cpu = random.below(machine::cpus() as u64);
    match random.below(8) {
        // A CPU that is turned on again resumes its work.
        0 | 1 if smp::this() != 0 => {
            psci::cpu_off();
        }
        2 => {
            // An invalid target, or one that is on.
            psci::call(id::CPU_ON, [random.odd() | 1 << 8, entry::start_address(), random.odd()]);
        }
        3 => {
            psci::call(id::AFFINITY_INFO, [random.odd(), random.odd(), random.odd()]);
        }
        _ => {
            psci::cpu_on(cpu as usize, random.odd());
        }
    }
    1
}

fn work() -> Outcome {
    let mut random = payload::random::Random::new(wait::now());
    while LEFT.fetch_sub(1, AcqRel) > 0 {
        once(&mut random);
    }
    Ok(())
}

pub fn run() -> Outcome {
    smp::start_all()?;
    LEFT.store(400 * machine::cpus().min(4) as i64, Release);
    for cpu in 1..machine::cpus() {
        smp::give(cpu, work);
    }
    work()?;
    // All return: CPUs that are off are turned on, and find no work left.
    for cpu in 1..machine::cpus() {
        let mut result = 0;
        let back = wait::until(|| {
            result = psci::affinity_info(cpu);
            if result == psci::OFF {
                psci::cpu_on(cpu, 0);
            }
            smp::is_idle(cpu)
        });
        check!(back, "CPU {cpu} does not come back: AFFINITY_INFO {result}");
    }
    Ok(())
}
