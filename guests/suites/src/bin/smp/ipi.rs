//! Interrupts between CPUs.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::board::MAX_CPUS;
use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::timer::Timer;
use payload::{instruction, tests};

pub const TESTS: &[Test] = tests![ipi_ring_in_wfi, ipi_ring_spinning, ipi_all_to_all];

const SGI: u32 = 1;
/// Time-out for a lost interrupt.
const PATIENCE: u64 = 30_000_000;

fn listen() {
    gic::reset_cpu();
    gic::set(Bits::Enable, SGI);
    gic::set(Bits::Enable, Timer::Virtual.intid());
    irq::set_hook(|intid| {
        if intid != SGI {
            Timer::Virtual.stop();
        }
    });
}

/// A token is passed around all CPUs; each waits for it by polling or WFI, and passes it on.
fn ring(rounds: u64, wait_for_interrupt: bool) -> Outcome {
    static BARRIER: smp::Barrier = smp::Barrier::new();
    let this = smp::this();
    let next = (this + 1) % machine::cpus();
    listen();
    BARRIER.wait()?;
    for round in 0..rounds as usize {
        if this == 0 {
            icc::sgi(SGI, 1 << next);
        }
        if wait_for_interrupt {
            Timer::Virtual.start(PATIENCE);
            while irq::count(this) <= round {
                instruction!("wfi");
                irq::take();
            }
            Timer::Virtual.stop();
        } else {
            wait::until(|| {
                irq::take();
                irq::count(this) > round
            });
        }
        check!(irq::count(this) == round + 1 && irq::nth(this, round) == SGI, "CPU {this} got no interrupt in round {round}");
        if this != 0 {
            icc::sgi(SGI, 1 << next);
        }
    }
    BARRIER.wait()
}

fn ipi_ring_in_wfi() -> Outcome {
    smp::need(2)?;
    smp::on_all(|| ring(100, true))
}

fn ipi_ring_spinning() -> Outcome {
    smp::need(2)?;
    smp::on_all(|| ring(10, false))
}

/// Every CPU interrupts all others and waits until each has counted the interrupt.
fn ipi_all_to_all() -> Outcome {
    static BARRIER: smp::Barrier = smp::Barrier::new();
    static ANSWERS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
    smp::need(2)?;
    smp::on_all(|| {
        let this = smp::this();
        let others = machine::cpus() as u64 - 1;
        gic::reset_cpu();
        // SGI n is sent by CPU n.
        for intid in 0..MAX_CPUS as u32 {
            gic::set(Bits::Enable, intid);
        }
        irq::set_hook(|intid| {
            if let Some(answers) = ANSWERS.get(intid as usize) {
                answers.fetch_add(1, AcqRel);
            }
        });
        BARRIER.wait()?;
        irq::unmask();
        let mut outcome = Ok(());
        for round in 1..=15 {
            icc::sgi_others(this as u32);
            if !wait::until(|| ANSWERS[this].load(Acquire) >= round * others) {
                outcome = Err(Fail::new(format_args!("CPU {this}: {} answers in round {round}", ANSWERS[this].load(Acquire))));
                break;
            }
        }
        let met = BARRIER.wait();
        irq::mask();
        outcome?;
        check_eq!(ANSWERS[this].load(Acquire), 15 * others, "CPU {this}: answers");
        met
    })
}
