//! Never yields: interrupts masked, an endless loop without a single instruction that could exit.
//!
//! Boot argument: `interface`: its CPU interface masks all interrupts, too, once the vCPU has had its CPU for itself for a while.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::irq;
use payload::prelude::*;
use payload::timer::Timer;

payload::program!(main);

fn main(_: &Entry) -> ! {
    irq::mask();
    if machine::has("interface") {
        icc::set_group1(true);
        let end = Timer::Virtual.count() + wait::ticks(100_000);
        while Timer::Virtual.count() < end {}
        icc::set_pmr(0);
        // ICC_AP1R0_EL1: an active interrupt of the highest priority.
        msr!("S3_0_C12_C9_0", 1);
    }
    println!("spin: interrupts masked, spinning for ever");
    loop {
        // SAFETY: an empty instruction, which prevents the loop from being optimized away.
        unsafe { core::arch::asm!("nop") };
    }
}
