//! Endless attacks on a CPU that other VMs share: one kind of exit on all vCPUs at once, as often as possible.
//!
//! Boot argument: `attack=NAME`, of [`ATTACKS`].
#![no_std]
#![no_main]

use payload::board::{GICD, GICR, GICR_STRIDE, RTC, UART};
use payload::encode::{NOP, Sysreg, UNDECODABLE, hvc, load, store};
use payload::entry::{self, Entry};
use payload::gic::{Bits, gicr};
use payload::mmu::{self, Memory};
use payload::prelude::*;
use payload::probe;
use payload::psci::{self, id};
use payload::random::Random;
use payload::timer::{ENABLE, Timer};
use payload::uart::{self, Reg32};

payload::program!(main);

type Attack = (&'static str, fn() -> Outcome);

/// By name.
const ATTACKS: [Attack; 8] = [
    ("groups", groups),
    ("power", power),
    ("edges", edges),
    ("maintenance", maintenance),
    ("ticks", ticks),
    ("calls", calls),
    ("print", print),
    ("mixed", mixed),
];
/// Number of times that the same code is executed.
const TIMES: u64 = 256;

fn main(_: &Entry) -> ! {
    let name = machine::text("attack").unwrap_or("mixed");
    let Some((_, attack)) = ATTACKS.into_iter().find(|(known, _)| *known == name) else { panic!("no attack {name}") };
    println!("storm: {name}");
    gic::reset_distributor();
    for cpu in 1..machine::cpus() {
        smp::give(cpu, attack);
        psci::cpu_on(cpu, 0);
    }
    let _ = attack();
    unreachable!("an attack ended")
}

fn random() -> Random {
    Random::new(wait::now() ^ (smp::this() as u64) << 56)
}

/// SGIs of all numbers to all vCPUs, while each changes groups, priorities and enables of its own and of the others.
fn groups() -> Outcome {
    gic::reset_cpu();
    irq::set_hook(|intid| icc::sgi_others((intid + 1) % 16));
    let mut random = random();
    loop {
        let other = random.below(machine::cpus() as u64) as usize;
        let frame = gicr(other, 0x1_0000).0;
        for intid in 0..16 {
            gic::set_on(other, Bits::Enable, intid);
            icc::sgi(intid, 0xFFFF);
        }
        match random.below(8) {
            0 => Reg32(frame + Bits::Group as u64).write(random.bits() as u32),
            1 => Reg32(frame + 0x400 + random.below(8) * 4).write(random.bits() as u32),
            2 => gic::GICD_CTLR.write(gic::CTLR_ARE | gic::CTLR_DS | random.below(4) as u32),
            3 => icc::group0_sgi_others(random.below(16) as u32),
            4 => icc::set_pmr(random.bits() & 0xFF),
            5 => Reg32(frame + Bits::Active as u64 + if random.below(2) == 0 { 0x80 } else { 0 }).write(0xFFFF),
            _ => {
                icc::set_group0(random.below(2) == 0);
                icc::set_group1(random.below(2) == 0);
            }
        }
        irq::unmask();
        irq::mask();
    }
}

/// vCPUs turn each other on and themselves off, and suspend.
fn power() -> Outcome {
    gic::reset_cpu();
    gic::set(Bits::Enable, Timer::Virtual.intid());
    let mut random = random();
    loop {
        let is_first = smp::this() == 0;
        match random.below(8) {
            0..=2 if !is_first => {
                psci::cpu_off();
            }
            3 if !is_first => {
                Timer::Virtual.start(random.below(3));
                let odd = random.odd();
                let state = random.pick(&[0, 1 << 16, odd]);
                psci::call(id::CPU_SUSPEND, [state, entry::start_address(), random.odd()]);
                Timer::Virtual.stop();
            }
            4 => {
                psci::affinity_info_of(random.odd());
            }
            _ => {
                psci::cpu_on(random.below(machine::cpus() as u64) as usize, random.bits());
            }
        }
    }
}

/// Accesses of all sizes and forms around the ends of devices, of their pages, and of RAM.
fn edges() -> Outcome {
    let mut random = random();
    let places = [GICD, GICD + 0x1_0000, GICR, GICR + GICR_STRIDE / 2, GICR + GICR_STRIDE, UART + 0x1000, RTC, RTC + 0x1000];
    loop {
        let end = machine::ram().end;
        let memory = random.pick(&[Memory::Device, Memory::Normal]);
        let place = if random.below(4) == 0 { end } else { random.pick(&places) };
        let window = mmu::window(place, memory, true);
        let words: [u32; 8] = core::array::from_fn(|_| match random.below(3) {
            0 => random.pick(&UNDECODABLE).1,
            1 => load(random.below(4) as u32, 2, 1),
            // Of zero: enables, masks and data stay.
            _ => store(random.below(4) as u32, 31, 1),
        });
        probe::repeat(&words, TIMES, || {
            let mut registers = [0; 31];
            registers[1] = window.wrapping_add(random.below(64)).wrapping_sub(32);
            registers
        });
    }
}

/// TLB, instruction-cache and data-cache maintenance, by broadcast, by address and by set and way.
fn maintenance() -> Outcome {
    let mut random = random();
    let tlbi = |crm: u32, op2: u32| Sysreg::new(1, 0, 8, crm, op2).write(1);
    let cache = |op1: u32, crm: u32, op2: u32| Sysreg::new(1, op1, 7, crm, op2).write(1);
    // VMALLE1, ASIDE1, VAAE1, IS; VMALLE1; IC IALLUIS, IALLU, IVAU; DC ISW, CSW, CISW, CVAC, CVAU, CIVAC; AT S1E1R.
    let words = [
        tlbi(3, 0),
        tlbi(3, 2),
        tlbi(3, 3),
        tlbi(7, 0),
        cache(0, 1, 0),
        cache(0, 5, 0),
        cache(3, 5, 1),
        cache(0, 6, 2),
        cache(0, 10, 2),
        cache(0, 14, 2),
        cache(3, 10, 1),
        cache(3, 11, 1),
        cache(3, 14, 1),
        cache(0, 8, 0),
        NOP,
    ];
    loop {
        probe::repeat(&words, TIMES, || {
            let mut registers = [0; 31];
            let ram = machine::ram();
            registers[1] = match random.below(4) {
                0 => GICD,
                1 => random.bits() & 0xFF_FFFE,
                2 => random.odd(),
                _ => ram.start + random.below(ram.end - ram.start),
            };
            registers
        });
    }
}

/// Both timers always expire at the next tick, and are taken.
fn ticks() -> Outcome {
    gic::reset_cpu();
    for timer in Timer::ALL {
        gic::set(Bits::Enable, timer.intid());
        timer.set_control(ENABLE);
    }
    irq::set_hook(|_| {
        for timer in Timer::ALL {
            timer.set_deadline(timer.count() + 1);
        }
    });
    for timer in Timer::ALL {
        timer.set_deadline(0);
    }
    irq::unmask();
    loop {
        payload::instruction!("wfi");
    }
}

/// Functions, by hypercall, that would end the VM or this vCPU's part in it: SYSTEM_OFF, SYSTEM_RESET, SYSTEM_RESET2 and CPU_OFF, CPU_SUSPEND.
fn ends(function: u64) -> bool {
    function & 0xBF00_0000 == 0x8400_0000 && matches!(function & 0xFFFF, 1 | 2 | 8 | 9 | 0xC | 0xE | 0x12)
}

/// Hypercalls of all kinds, with extreme arguments.
fn calls() -> Outcome {
    const EXTREMES: [u64; 12] =
        [0, 1, 2, 0xFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 32, 1 << 63, u64::MAX, u64::MAX - 1, 0x0000_FFFF_FFFF_F000];
    let owners = [0u64, 4, 5, 6, 0x32];
    let words = [hvc(0)];
    let mut random = random();
    loop {
        for number in 0..0x60 {
            let any = random.below(1 << 16);
            let number = random.pick(&[number, 0x8000 | number, any]);
            let function = 0x8000_0000 | random.below(2) << 30 | random.pick(&owners) << 24 | number;
            if ends(function) {
                continue;
            }
            probe::repeat(&words, 16, || {
                let mut registers = core::array::from_fn(|_| random.pick(&EXTREMES));
                registers[0] = function;
                registers
            });
        }
    }
}

/// Output without pause, with resets of the UART, and bytes that look like a carrier's frames.
fn print() -> Outcome {
    let mut random = random();
    loop {
        for _ in 0..64 {
            uart::put(if random.below(4) == 0 { 0x10 } else { random.bits() as u8 });
        }
        if smp::this() == 0 {
            uart::init();
        }
    }
}

/// A different one on each vCPU.
fn mixed() -> Outcome {
    [groups, edges, maintenance, calls, ticks][smp::this() % 5]()
}
