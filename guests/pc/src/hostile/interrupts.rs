//! Floods of interrupts, and timers with wild values.

use common::fail::Outcome;
use common::random::Random;
use pc::lapic::{self, command, register};
use pc::machine;

use crate::{cpu, phase_machine};

/// The phase "interrupts": messages of every kind but INIT and startup, to everybody, with interrupts on; lines and levels.
pub fn storm() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        // Half of them by MSRs.
        if cpu::this() % 2 == 1 {
            lapic::set_base(lapic::base() | lapic::X2);
            lapic::enable();
        }
        for _ in phase_machine::share(1_500) {
            once(&mut random);
        }
        cpu::drain();
        Ok(())
    })
}

fn send(to: u32, command: u32) {
    if lapic::base() & lapic::X2 != 0 {
        let mut registers = [0; 16];
        (registers[0], registers[1], registers[2]) = (command.into(), 0x830, to.into());
        cpu::run(&[0x0f, 0x30], registers);
    } else {
        lapic::write(register::ICR_HIGH, to << 24);
        lapic::write(register::ICR, command);
    }
}

/// The phase "timers".
pub fn timers() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for _ in phase_machine::share(200) {
            timer_once(&mut random);
        }
        Ok(())
    })
}

/// Sends a message, or changes the routing of a line.
pub fn once(random: &mut Random) -> u64 {
    // Not those of exceptions, which would be taken for them.
    let vector = match random.below(256) as u32 {
        16..32 => 0,
        vector => vector,
    };
    // Fixed, lowest priority, SMI, reserved, NMI; external.
    let delivery = random.pick(&[0u32, 0, 0, 1, 2, 3, 4, 7]) << 8;
    let others = (random.bits() as u32) & (1 << 11 | 1 << 12 | 1 << 14 | 1 << 15 | 3 << 18 | 0xfff0_0000 | 1 << 13);
    match random.below(10) {
        0..5 => {
            let any = random.bits() as u32;
            let to = random.pick(&[0, 1, 2, 3, 0xff, u32::MAX, any]);
            // Without waiting for the delivery status, which is not guaranteed to clear.
            send(to, vector | delivery | others);
        }
        5 => send(0, vector.max(32) | command::ALL | command::ASSERT),
        6 => send(0, vector.max(32) | command::SELF | command::ASSERT),
        7 => {
            // No INIT, startup.
            let low = vector | delivery & !(5 << 8) | others & (1 << 11 | 1 << 15);
            lapic::io_route(random.below(24) as u32, random.bits() as u32 & 0xff, low);
        }
        8 => {
            let line = 0x2000 + random.below(24) as u16;
            // SAFETY: the port sets an interrupt line of the test device, to which nothing else is connected.
            unsafe { machine::out8(line, random.below(2) as u8) };
        }
        _ => {
            machine::sti();
            lapic::end();
            machine::cli();
        }
    }
    1
}

/// Any control and deadline of the timers.
pub fn timer_once(random: &mut Random) -> u64 {
    let mode = random.below(4) as u32;
    lapic::write(register::TIMER, mode << 17 | 0x50 | u32::from(random.below(8) == 0) << 16);
    // By MSRs reserved bits are an exception.
    let bits = if lapic::base() & lapic::X2 != 0 { 0xb } else { u32::MAX };
    lapic::write(register::DIVIDE, random.bits() as u32 & bits);
    let odd = random.odd();
    let near = machine::ticks().wrapping_add(random.below(20_000)).wrapping_sub(10_000);
    if mode == 2 {
        let value = random.pick(&[0, 1, u64::MAX, u64::MAX - 1, near, odd]);
        // SAFETY: the register exists, and the interrupt has a handler.
        unsafe { machine::wrmsr(0x6e0, value) };
    } else {
        let value = random.pick(&[0, 1, 2, u32::MAX, odd as u32, 1000]);
        lapic::write(register::INITIAL, value);
    }
    if cpu::this() == 0 {
        // The 8254, in each mode, with each special count, as NMI or interrupt or for the 8259s only.
        let count = random.pick(&[0u16, 1, 2, 3, 0xffff]);
        lapic::io_route(2, 0, random.pick(&[lapic::IO_MASKED, 0x51, 0x400]));
        // SAFETY: the 8254 belongs to the guest.
        unsafe {
            machine::out8(0x43, 0x30 | (random.below(8) as u8) << 1);
            machine::out8(0x40, count as u8);
            machine::out8(0x40, (count >> 8) as u8);
        }
    }
    // SAFETY: another time of day; interrupts have handlers.
    unsafe { machine::wrmsr(0x10, random.pick(&[near, odd, 0, u64::MAX])) };
    machine::sti();
    for _ in 0..200 {
        core::hint::spin_loop();
    }
    machine::cli();
    lapic::write(register::INITIAL, 0);
    // Leaving deadline mode disarms the deadline.
    lapic::write(register::TIMER, 1 << 16);
    2
}
