//! Floods a physical CPU with interrupts that it causes, and never yields. Interrupts for Stile and a
//! neighbour must take precedence.
//!
//! Boot arguments: `groups`: each CPU has more interrupts of a disabled group pending than there are list
//! registers. `sgi`: all other CPUs send SGIs to CPU 0 continuously.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::gic::Bits;
use payload::harness::{self, Harness};
use payload::prelude::*;

payload::program!(main);

/// More SGIs than any virtual CPU interface has list registers.
const SGIS: u32 = 16;

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("flood", entry);
    gic::reset_distributor();
    harness.record("flood", smp::on_all(if machine::has("sgi") { send } else { wait_in_disabled_group }));
    // Not reached unless a CPU could not be started.
    harness::exit(harness.sum())
}

/// Only group 0 is enabled at the CPU interface, and all SGIs of group 1 are pending.
fn wait_in_disabled_group() -> Outcome {
    gic::reset_cpu();
    icc::set_group1(false);
    icc::set_group0(true);
    for intid in 0..SGIS {
        gic::set(Bits::Enable, intid);
        icc::sgi(intid, 1 << smp::this());
    }
    spin()
}

fn send() -> Outcome {
    gic::reset_cpu();
    while smp::this() != 0 {
        for intid in 0..SGIS {
            icc::sgi(intid, 1);
        }
    }
    spin()
}

fn spin() -> ! {
    loop {
        // SAFETY: an empty instruction, which prevents the loop from being optimized away.
        unsafe { core::arch::asm!("nop") };
    }
}
