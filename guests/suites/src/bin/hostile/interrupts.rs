//! Floods of interrupts.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use payload::board::MAX_CPUS;
use payload::gic::Bits;
use payload::prelude::*;
use payload::random::Random;
use payload::timer::{ENABLE, Timer};
use payload::{instruction, psci};

use crate::virt;

static ROUNDS_LEFT: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];

/// Operations of each CPU in [`storm`], and interrupts that its handler passes on: on more than four CPUs a part of those of four, because
/// each costs as much as there are CPUs.
fn rounds() -> usize {
    300 * 4 / machine::cpus().max(4)
}

/// SGIs to everybody and SPIs that move about, of all priorities, with interrupts unmasked and handlers that make more of them.
pub fn storm() -> Outcome {
    static READY: smp::Barrier = smp::Barrier::new();
    smp::on_all(|| {
        let mut random = virt::random();
        for intid in 0..16 {
            gic::set(Bits::Enable, intid);
        }
        let this = smp::this();
        ROUNDS_LEFT[this].store(rounds(), Release);
        irq::set_hook(|intid| {
            let left = &ROUNDS_LEFT[smp::this()];
            if left.load(Acquire) > 0 {
                left.fetch_sub(1, AcqRel);
                icc::sgi((intid + 1) % 16, 0xFFFF);
            }
        });
        READY.wait()?;
        irq::unmask();
        for _ in 0..rounds() {
            once(&mut random);
        }
        ROUNDS_LEFT[this].store(0, Release);
        wait::settle();
        irq::mask();
        READY.wait()
    })
}

/// Sends an SGI, or changes the configuration of an interrupt.
pub fn once(random: &mut Random) -> u64 {
    let cpus = machine::cpus() as u64;
    let spi = gic::spare_spis().start + random.below(u64::from(gic::SPARE_SPIS)) as u32;
    match random.below(12) {
        0 => icc::sgi(random.below(16) as u32, random.bits()),
        1 => icc::sgi_others(random.below(16) as u32),
        2 => icc::sgi1r(random.bits()),
        3 => gic::set(Bits::Enable, spi),
        4 => gic::clear(Bits::Enable, spi),
        5 => gic::set(Bits::Pending, spi),
        6 => gic::clear(Bits::Pending, spi),
        7 => gic::set(Bits::Active, spi),
        8 => gic::clear(Bits::Active, spi),
        9 => gic::route(spi, random.below(cpus) as usize),
        10 => gic::set_priority(random.below(32) as u32, random.bits() as u8),
        // Ends of interrupts that are not active, or are another's.
        _ => {
            irq::mask();
            icc::eoir1(random.bits() as u32);
            icc::dir(random.bits() as u32);
            irq::unmask();
        }
    }
    1
}

/// Timers that are always due, not stopped by their handlers; deadlines moved at random.
pub fn timers() -> Outcome {
    smp::on_all(|| {
        let mut random = virt::random();
        let this = smp::this();
        for timer in Timer::ALL {
            gic::set(Bits::Enable, timer.intid());
        }
        ROUNDS_LEFT[this].store(1_000, Release);
        irq::set_hook(|intid| {
            let left = &ROUNDS_LEFT[smp::this()];
            match left.load(Acquire) {
                0 => Timer::of(intid).into_iter().for_each(Timer::stop),
                rest => left.store(rest - 1, Release),
            }
        });
        for timer in Timer::ALL {
            timer.set_deadline(0);
            timer.set_control(ENABLE);
        }
        irq::unmask();
        wait::until(|| ROUNDS_LEFT[smp::this()].load(Acquire) == 0);
        for _ in 0..500 {
            timer(&mut random);
        }
        // Queries the hypervisor's version with an interrupt always pending.
        irq::mask();
        Timer::Virtual.set_deadline(0);
        Timer::Virtual.set_control(ENABLE);
        for _ in 0..200 {
            psci::call(psci::id::VERSION, [0; 3]);
            instruction!("wfi");
        }
        for timer in Timer::ALL {
            timer.stop();
        }
        Ok(())
    })
}

/// Reserved binary points, with an interrupt active and one of higher priority pending.
pub fn binary_points() -> Outcome {
    if !machine::is_stile() || machine::is_gicv2() || machine::has("trusted") {
        // QEMU's own interface, which a trusted VM reaches, ends the emulator.
        return Ok(());
    }
    smp::on_all(|| {
        let mut random = virt::random();
        let this = 1 << smp::this();
        for (intid, priority) in [(1, 0x80), (2, 0x40)] {
            gic::set(Bits::Enable, intid);
            gic::set_priority(intid, priority);
        }
        for round in 0..32 {
            icc::set_ctlr(random.below(4));
            icc::sgi(1, this);
            icc::iar1();
            let point = [8, 0x10, !7, random.bits()][round % 4];
            // ICC_BPR1_EL1, ICC_BPR0_EL1.
            msr!("S3_0_C12_C12_3", point);
            msr!("S3_0_C12_C8_3", point);
            icc::sgi(2, this);
            icc::iar1();
            for intid in [2, 1] {
                icc::eoir1(intid);
                icc::dir(intid);
            }
        }
        Ok(())
    })
}

/// Any control and deadline of a timer.
pub fn timer(random: &mut Random) -> u64 {
    let timer = random.pick(&Timer::ALL);
    timer.set_control(random.below(8));
    match random.below(4) {
        0 => timer.set_deadline(random.odd()),
        1 => timer.set_left(random.odd() as i32),
        2 => timer.set_deadline(timer.count() + random.below(100)),
        _ => timer.set_control(ENABLE),
    }
    2
}
