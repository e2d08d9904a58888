//! Never yields: interrupts masked, an endless loop without a single instruction that could exit.
//!
//! Boot arguments: `interface`: its CPU interface masks all interrupts, too, once the vCPU has had its CPU for itself
//! for a while. `unreachable`: a second CPU does that and waits, and the first one reads without end which interrupts
//! are pending there.
#![no_std]
#![no_main]

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use payload::entry::Entry;
use payload::gic::Bits;
use payload::irq;
use payload::prelude::*;
use payload::timer::Timer;

payload::program!(main);

fn main(_: &Entry) -> ! {
    irq::mask();
    if machine::has("interface") {
        mask_interface();
    }
    if machine::has("unreachable") {
        make_unreachable();
    }
    println!("spin: interrupts masked, spinning for ever");
    loop {
        // SAFETY: an empty instruction, which prevents the loop from being optimized away.
        unsafe { core::arch::asm!("nop") };
    }
}

/// Masks all interrupts at the CPU interface, after a while.
fn mask_interface() {
    icc::set_group1(true);
    let end = Timer::Virtual.count() + wait::ticks(100_000);
    while Timer::Virtual.count() < end {}
    icc::set_pmr(0);
    // ICC_AP1R0_EL1: an active interrupt of the highest priority.
    msr!("S3_0_C12_C9_0", 1);
}

/// Has CPU 1 wait for ever, and reads its pending interrupts.
fn make_unreachable() -> ! {
    static MASKED: AtomicBool = AtomicBool::new(false);
    if smp::start(1, 0).is_err() {
        println!("FAIL spin: CPU 1 does not come up");
    }
    smp::give(1, || {
        irq::mask();
        mask_interface();
        MASKED.store(true, Relaxed);
        loop {
            payload::instruction!("wfi");
        }
    });
    while !MASKED.load(Relaxed) {
        core::hint::spin_loop();
    }
    println!("spin: CPU 1 waits for ever");
    loop {
        gic::get_on(1, Bits::Pending, 1);
    }
}
