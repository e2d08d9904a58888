//! Registers that a GICv2's distributor has instead of a GICv3's: banked words, target lists, SGIs.

use payload::gic::{Bits, GICD_CTLR, gicd};
use payload::gicc;
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;

use crate::expect;

pub const TESTS: &[Test] = tests![
    gicv2_identification,
    gicv2_control,
    gicv2_read_only,
    gicv2_reserved,
    gicv2_private_is_banked,
    gicv2_own_targets,
    gicv2_target_lists,
    gicv2_first_of_several_targets,
    gicv2_no_target,
    gicv2_sgi_filters,
    gicv2_sgi_pending_registers,
    gicv2_sgi_pending_is_read_only_elsewhere,
    gicv2_no_system_registers,
    gicv2_access_sizes,
];

fn gicv2() -> Outcome {
    if !machine::is_gicv2() {
        skip!("the machine has a GICv3");
    }
    Ok(())
}

fn spi(n: u32) -> u32 {
    gic::spare_spis().start + n
}

fn myself() -> u32 {
    1 << smp::this()
}

fn all() -> u32 {
    (1 << machine::cpus()) - 1
}

fn gicv2_identification() -> Outcome {
    gicv2()?;
    check_eq!(gicd(0xFE8).read() >> 4 & 0xF, 2, "ICPIDR2.ArchRev");
    let typer = gicd(0x4).read();
    check_eq!(typer >> 5 & 7, machine::cpus() as u32 - 1, "GICD_TYPER.CPUNumber");
    check_eq!(typer >> 10 & 1, 0, "GICD_TYPER.SecurityExtn");
    check!(typer & 0x1F >= 1, "GICD_TYPER {typer:#x}: no SPIs");
    Ok(())
}

fn gicv2_control() -> Outcome {
    gicv2()?;
    for value in [0, 1, 2, 3] {
        GICD_CTLR.write(!3 | value);
        check_eq!(GICD_CTLR.read(), value, "GICD_CTLR");
    }
    Ok(())
}

fn gicv2_read_only() -> Outcome {
    gicv2()?;
    for offset in [0x4, 0x8, 0xFE8] {
        let before = gicd(offset).read();
        gicd(offset).write(!before);
        check_eq!(gicd(offset).read(), before, "GICD + {offset:#x} after a write");
    }
    Ok(())
}

fn gicv2_reserved() -> Outcome {
    gicv2()?;
    for offset in [0xC, 0x40, 0xD00, 0xE00, 0xF00, 0xF04, 0xF30, 0xFC0] {
        gicd(offset).write(0x0300_0000);
        check_eq!(gicd(offset).read(), 0, "GICD + {offset:#x}");
    }
    Ok(())
}

fn gicv2_private_is_banked() -> Outcome {
    gicv2()?;
    smp::need(2)?;
    const PPI: u32 = 21;
    for bits in [Bits::Enable, Bits::Pending, Bits::Active] {
        gic::set(bits, PPI);
        check!(gic::get(bits, PPI), "the bit is 0 after it was set");
        smp::on(1, || {
            check!(!gic::get(Bits::Enable, PPI) && !gic::get(Bits::Pending, PPI) && !gic::get(Bits::Active, PPI), "CPU 1 has it, too");
            Ok(())
        })?;
        gic::clear(bits, PPI);
        check!(!gic::get(bits, PPI), "the bit is 1 after it was cleared");
    }
    gic::set_priority(PPI, 0x40);
    gic::set_priority(3, 0x20);
    smp::on(1, || {
        gic::reset_cpu();
        check_eq!(gic::priority(PPI), gic::PRIORITY, "priority at CPU 1");
        Ok(())
    })?;
    check_eq!(gic::priority(PPI), 0x40, "priority of a PPI");
    check_eq!(gic::priority(3), 0x20, "priority of an SGI");
    Ok(())
}

fn gicv2_own_targets() -> Outcome {
    gicv2()?;
    smp::start_all()?;
    smp::on_all(|| {
        let own = if machine::cpus() == 1 { 0 } else { myself() };
        for intid in 0..32 {
            check_eq!(u32::from(gic::targets(intid)), own, "GICD_ITARGETSR of {intid}");
        }
        check_eq!(gicd(0x804).read(), own * 0x0101_0101, "GICD_ITARGETSR1");
        gicd(0x804).write(!0);
        check_eq!(gicd(0x804).read(), own * 0x0101_0101, "GICD_ITARGETSR1 after a write");
        Ok(())
    })
}

fn gicv2_target_lists() -> Outcome {
    gicv2()?;
    smp::need(2)?;
    let word = 0x800 + u64::from(spi(0) & !3);
    for cpus in [0xFF, 1, 2, 3, 0, 0xAA] {
        gic::set_targets(spi(0), cpus);
        check_eq!(u32::from(gic::targets(spi(0))), u32::from(cpus) & all(), "GICD_ITARGETSR after {cpus:#x}");
        gicd(word).write(u32::from_ne_bytes([cpus; 4]));
        check_eq!(gicd(word).read(), u32::from_ne_bytes([cpus & all() as u8; 4]), "GICD_ITARGETSR, a word, after {cpus:#x}");
    }
    Ok(())
}

/// 1 of N: exactly one of the targets takes it.
fn gicv2_first_of_several_targets() -> Outcome {
    gicv2()?;
    smp::need(2)?;
    expect::listen_everywhere()?;
    gic::set_targets(spi(0), 0xFF);
    gic::set(Bits::Enable, spi(0));
    irq::unmask();
    for round in 1..=20 {
        gic::set(Bits::Pending, spi(0));
        let count = || (0..machine::cpus()).map(irq::count).sum::<usize>();
        check!(wait::until(|| count() >= round), "{} interrupts after {round}", count());
        wait::spin(100);
        check_eq!(count(), round, "interrupts");
    }
    irq::mask();
    expect::deafen()
}

fn gicv2_no_target() -> Outcome {
    gicv2()?;
    smp::need(2)?;
    gic::set_targets(spi(0), 0);
    gic::set(Bits::Enable, spi(0));
    gic::set(Bits::Pending, spi(0));
    expect::nothing()?;
    check!(gic::get(Bits::Pending, spi(0)), "not pending");
    gic::set_targets(spi(0), myself() as u8);
    expect::all(&[spi(0)])
}

fn gicv2_sgi_filters() -> Outcome {
    gicv2()?;
    smp::need(2)?;
    let others = all() & !myself();
    // A list, all but this CPU, this CPU, and a reserved filter.
    for (value, cpus) in
        [(0x02 << 16, 0b10), (0xFF << 16, all()), (1 << 24, others), (1 << 24 | 0xFF << 16, others), (2 << 24, myself()), (3 << 24, 0)]
    {
        expect::listen_everywhere()?;
        smp::on_all(|| {
            gic::set(Bits::Enable, 9);
            Ok(())
        })?;
        // NSATT is ignored.
        gicc::write_sgir(value | 1 << 15 | 9);
        if cpus & myself() != 0 {
            expect::taken(&[9])?;
        }
        for cpu in 0..machine::cpus() {
            match cpus >> cpu & 1 {
                1 => expect::taken_on(cpu, &[9])?,
                _ => expect::log(cpu, &[])?,
            }
        }
    }
    expect::deafen()
}

fn gicv2_sgi_pending_registers() -> Outcome {
    gicv2()?;
    for sgi in [0, 5, 15_u32] {
        let (clear, set) = (gicd(0xF10 + u64::from(sgi & !3)), gicd(0xF20 + u64::from(sgi & !3)));
        let byte = sgi % 4 * 8;
        set.write(1 << byte);
        check_eq!(set.read(), 1 << byte, "GICD_SPENDSGIR with SGI {sgi} pending");
        check_eq!(clear.read(), 1 << byte, "GICD_CPENDSGIR with SGI {sgi} pending");
        check!(gic::get(Bits::Pending, sgi), "GICD_ISPENDR0 lacks SGI {sgi}");
        clear.write(1 << byte);
        check_eq!(set.read() | clear.read(), 0, "pending SGIs after {sgi} was cleared");
        set.write(1 << byte);
        gic::set(Bits::Enable, sgi);
        wait::until(|| gicc::hppir() == sgi);
        let value = gicc::raw_iar();
        check_eq!(value, sgi, "GICC_IAR, from CPU 0");
        gicc::raw_eoir(value);
    }
    expect::nothing()
}

fn gicv2_sgi_pending_is_read_only_elsewhere() -> Outcome {
    gicv2()?;
    gic::set(Bits::Pending, 6);
    check!(!gic::get(Bits::Pending, 6), "GICD_ISPENDR0 made an SGI pending");
    gic::pend_private(6);
    gic::clear(Bits::Pending, 6);
    check!(gic::get(Bits::Pending, 6), "GICD_ICPENDR0 cleared an SGI");
    Ok(())
}

fn gicv2_no_system_registers() -> Outcome {
    gicv2()?;
    check_eq!(mrs!("ID_AA64PFR0_EL1") >> 24 & 0xF, 0, "ID_AA64PFR0_EL1.GIC");
    Ok(())
}

/// Accesses of all sizes, everywhere: they return, and have no effect but that of words and bytes.
fn gicv2_access_sizes() -> Outcome {
    use payload::board::{GICC, GICD};
    use payload::encode::{load, store};
    use payload::probe;

    gicv2()?;
    for base in [GICD, GICD + 0xFC0, GICC + 0x1000, GICC + 0x1FF0] {
        for offset in (0..0x40).chain([0x80, 0x101, 0x202, 0x403, 0x806, 0xC01, 0xF00, 0xF02, 0xF11]) {
            for size in 0..4 {
                let mut registers = [0; 31];
                registers[1] = base + offset;
                registers[3] = if base == GICD && offset < 4 { 0 } else { u64::MAX };
                probe::run(&[load(size, 2, 1), store(size, 3, 1)], &mut registers);
            }
        }
    }
    gic::reset();
    expect::nothing()
}
