//! Instructions that wait, in every state of interrupts.

use payload::gic::Bits;
use payload::instruction;
use payload::prelude::*;
use payload::probe;
use payload::random::Random;
use payload::timer::Timer;

use crate::virt;

/// `wfet x1` and `wfit x1` (FEAT_WFxT).
const WITH_TIMEOUT: [u32; 2] = [0xD503_1001, 0xD503_1021];

pub fn run() -> Outcome {
    smp::on_all(|| {
        let mut random = virt::random();
        gic::set(Bits::Enable, Timer::Virtual.intid());
        irq::set_hook(|_| Timer::Virtual.stop());
        for _ in 0..400 {
            once(&mut random);
        }
        Ok(())
    })
}

/// One of them. The virtual timer, by which a wait ends, must be able to interrupt this CPU.
pub fn once(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => instruction!("yield"),
        1 => instruction!("sev"),
        2 => instruction!("sevl"),
        3 => {
            instruction!("sevl");
            instruction!("wfe");
        }
        // Due before, at about, or after the wait; taken, or only pending.
        4..=6 => {
            Timer::Virtual.start(random.below(60));
            instruction!("wfi");
            if random.below(2) == 0 {
                irq::take();
            }
            Timer::Virtual.stop();
        }
        _ => {
            let mut registers = [0; 31];
            registers[1] = wait::now().saturating_sub(random.pick(&[0, 10_000, u64::MAX])) + random.below(20_000);
            if mrs!("S3_0_C0_C6_2") & 0xF >= 2 {
                probe::run(&[random.pick(&WITH_TIMEOUT)], &mut registers);
            }
        }
    }
    1
}
