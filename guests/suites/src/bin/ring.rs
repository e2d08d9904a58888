//! Two CPUs send each other an interrupt in turn, for ever, with a pause in between.
//!
//! Boot argument `storm`: instead, this CPU makes hypercalls without a pause.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::gic::Bits;
use payload::prelude::*;
use payload::timer::Timer;
use payload::{instruction, irq};

payload::program!(main);

const SGI: u32 = 3;
/// Between two interrupts, in microseconds.
const PAUSE: u64 = 2_000;

fn main(_: &Entry) -> ! {
    if machine::has("storm") {
        println!("ring: storm");
        loop {
            // SAFETY: an unimplemented hypercall, which changes x0 alone (SMC Calling Convention).
            unsafe { core::arch::asm!("hvc #0", inout("x0") 0x8600_ffff_u64 => _) };
        }
    }
    gic::reset();
    if smp::start(1, 0).is_err() {
        println!("FAIL ring: CPU 1 does not come up");
    }
    println!("ring: started");
    smp::give(1, || turns(false));
    let _ = turns(true);
    loop {
        instruction!("wfi");
    }
}

/// Sends, if it is this CPU's turn, and waits for the other one.
fn turns(mut mine: bool) -> Outcome {
    static READY: smp::Barrier = smp::Barrier::new();
    gic::reset_cpu();
    gic::set(Bits::Enable, SGI);
    READY.wait()?;
    let this = smp::this();
    let mut taken = 0;
    loop {
        if mine {
            let end = Timer::Virtual.count() + wait::ticks(PAUSE);
            while Timer::Virtual.count() < end {}
            icc::sgi(SGI, 1 << (1 - this));
        }
        while irq::count(this) == taken {
            irq::take();
        }
        taken = irq::count(this);
        mine = true;
    }
}
