//! SYSTEM_RESET: requests a reset, from another CPU if there is one, and checks the state after it.
//!
//! The second boot is recognized by a mark that a reset may preserve: in RAM after the image, and in the
//! clock, which is set to an unrealistic time. QEMU's `virt` preserves both. PSCI guarantees neither: on a
//! machine that preserves none the guest restarts forever, printing `boot 1` each time, and the test runner
//! must count.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::gic::{self, Bits};
use payload::harness::Harness;
use payload::prelude::*;
use payload::psci;
use payload::timer::Timer;
use payload::uart::{Reg32, pl031};

payload::program!(main);

const MARK: u32 = 0x5711_E000;
/// The clock, set to this, stays within a day of it.
const DAY: u32 = 86_400;

/// A word of RAM outside the loaded files.
fn mark_in_ram() -> Reg32 {
    Reg32(machine::free_ram().end - 4096)
}

fn is_marked() -> bool {
    mark_in_ram().read() == MARK || pl031::DR.read().wrapping_sub(MARK) < DAY
}

fn main(entry: &Entry) -> ! {
    if !is_marked() {
        println!("boot 1");
        first()
    }
    println!("boot 2");
    mark_in_ram().write(0);
    pl031::LR.write(0);
    let mut harness = Harness::new("reboot", entry);
    harness.run(|| {}, payload::tests![other_cpus_are_off, interrupts_are_off, timers_are_off, timers_interrupt]);
    harness.end()
}

/// Leaves as much state behind as possible, and resets.
fn first() -> ! {
    mark_in_ram().write(MARK);
    pl031::LR.write(MARK);
    gic::reset();
    for intid in gic::spare_spis() {
        gic::set(Bits::Enable, intid);
        gic::set(Bits::Pending, intid);
    }
    gic::set(Bits::Enable, Timer::Virtual.intid());
    Timer::Virtual.set_deadline(0);
    Timer::Virtual.set_control(1);
    let started = smp::start_all();
    if started.is_err() || machine::cpus() == 1 {
        psci::system_reset()
    }
    smp::give(1, || psci::system_reset());
    // Not in WFI: a reset must stop a running CPU, too.
    loop {
        core::hint::spin_loop();
    }
}

fn other_cpus_are_off() -> Outcome {
    for cpu in 1..machine::cpus() {
        check_eq!(psci::affinity_info(cpu), psci::OFF, "AFFINITY_INFO of CPU {cpu}");
    }
    smp::start_all()
}

fn interrupts_are_off() -> Outcome {
    check_eq!(gic::GICD_CTLR.read() & 3, 0, "GICD_CTLR group enables");
    for intid in gic::spare_spis() {
        check!(!gic::get(Bits::Enable, intid), "SPI {intid} is enabled");
        check!(!gic::get(Bits::Pending, intid), "SPI {intid} is pending");
        check!(!gic::get(Bits::Active, intid), "SPI {intid} is active");
    }
    check!(!gic::get(Bits::Enable, Timer::Virtual.intid()), "the virtual timer's interrupt is enabled");
    Ok(())
}

/// CTL is architecturally UNKNOWN after a reset; firmware disables the timers, so a machine without firmware
/// must do so.
fn timers_are_off() -> Outcome {
    for timer in Timer::ALL {
        check_eq!(timer.control() & 1, 0, "{timer:?} CTL.ENABLE");
    }
    Ok(())
}

/// The first boot ended by a reset while the virtual timer's interrupt was pending.
fn timers_interrupt() -> Outcome {
    // Nothing is cleared before: that could end what the first boot left.
    for timer in Timer::ALL {
        gic::set(Bits::Enable, timer.intid());
        timer.start(100);
        check!(wait::until(|| gic::get(Bits::Pending, timer.intid())), "{timer:?} does not interrupt its CPU");
        timer.stop();
    }
    Ok(())
}
