//! SYSTEM_RESET while another CPU runs L2: after it that CPU starts at EL2, as any other.
//!
//! The second boot is recognized by a mark in RAM after the image, which a reset of Stile's VMs preserves.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use payload::harness::Harness;
use payload::prelude::*;
use payload::psci;
use payload::uart::Reg32;

use crate::guest::{Guest, code};
use crate::stage2::Stage2;

const MARK: u32 = 0x5711_E002;

/// A word of RAM outside the loaded files.
fn mark() -> Reg32 {
    Reg32(machine::free_ram().end - 4096)
}

/// Resets the machine in the first boot, and tests what the second one finds.
pub fn run(harness: &mut Harness) {
    if mark().read() != MARK {
        println!("boot 1");
        harness.record("reset", first());
        return;
    }
    println!("boot 2");
    mark().write(0);
    harness.record("cpu_begins_at_el2", begins_at_el2());
}

fn first() -> Outcome {
    static RUNS: AtomicBool = AtomicBool::new(false);
    mark().write(MARK);
    smp::need(2)?;
    smp::start_all()?;
    smp::give(1, || {
        let mut guest = Guest::new(Stage2::new(1));
        guest.write(code!("1: b 1b"));
        loop {
            RUNS.store(true, Relaxed);
            guest.resume();
        }
    });
    check!(wait::until(|| RUNS.load(Relaxed)), "CPU 1 does not run L2");
    // The two share a CPU: by now that one is preempted in L2.
    wait::spin(100_000);
    psci::system_reset()
}

fn begins_at_el2() -> Outcome {
    smp::need(2)?;
    smp::start_all()?;
    smp::on(1, || {
        check!(machine::at_el2(), "CPU 1 began at EL1");
        let mut guest = Guest::new(Stage2::new(1));
        crate::enter::check_end(guest.run(code!("mov x0, #5")))?;
        check_eq!(guest.x[0], 5, "L2's x0");
        Ok(())
    })
}
