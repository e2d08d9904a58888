//! Software-generated interrupts, and PPIs set pending by register.

use payload::encode::Sysreg;
use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::probe;
use payload::tests;

use crate::expect;

pub const TESTS: &[Test] = tests![
    sgi_to_self,
    sgi_all_numbers,
    sgi_twice_is_once,
    sgi_disabled,
    sgi_while_active,
    sgi_to_each_other,
    sgi_target_list,
    sgi_all_but_self,
    sgi_to_nobody,
    sgi_by_pending_register,
    sgi_from_all_to_one,
    sgi_from_every_register,
    sgi_wakes_wfi,
    ppi_by_pending_register,
    ppi_level_latch,
];

/// A PPI that no device of the board drives.
const PPI: u32 = 21;

fn enable_all_sgis() {
    for intid in 0..16 {
        gic::set(Bits::Enable, intid);
    }
}

fn myself() -> u64 {
    1 << smp::this()
}

fn sgi_to_self() -> Outcome {
    enable_all_sgis();
    icc::sgi(3, myself());
    expect::taken(&[3])
}

fn sgi_all_numbers() -> Outcome {
    enable_all_sgis();
    for intid in 0..16 {
        icc::sgi(intid, myself());
        check!(wait::until(|| gic::get(Bits::Pending, intid)), "SGI {intid} is not pending");
        expect::all(&[intid])?;
    }
    Ok(())
}

/// With affinity routing each SGI has one pending bit for all senders.
fn sgi_twice_is_once() -> Outcome {
    enable_all_sgis();
    icc::sgi(5, myself());
    icc::sgi(5, myself());
    expect::all(&[5])
}

fn sgi_disabled() -> Outcome {
    gic::clear(Bits::Enable, 6);
    icc::sgi(6, myself());
    expect::nothing()?;
    check!(gic::get(Bits::Pending, 6), "the disabled SGI is not pending");
    gic::set(Bits::Enable, 6);
    expect::taken(&[6])
}

fn sgi_while_active() -> Outcome {
    enable_all_sgis();
    icc::sgi(7, myself());
    expect::acknowledge(7)?;
    icc::sgi(7, myself());
    expect::nothing()?;
    check!(gic::get(Bits::Pending, 7) && gic::get(Bits::Active, 7), "SGI 7 is not pending and active");
    icc::eoir1(7);
    expect::all(&[7])
}

fn listen_for_sgis() -> Outcome {
    expect::listen_everywhere()?;
    smp::on_all(|| {
        enable_all_sgis();
        Ok(())
    })
}

/// Expects that the CPUs in the mask have taken SGI `intid` once, and the others nothing.
fn only(mask: u64, intid: u32) -> Outcome {
    if mask & myself() != 0 {
        expect::taken(&[intid])?;
    }
    for cpu in 0..machine::cpus() {
        match mask >> cpu & 1 {
            1 => expect::taken_on(cpu, &[intid])?,
            _ => expect::log(cpu, &[])?,
        }
    }
    expect::nothing()
}

fn sgi_to_each_other() -> Outcome {
    smp::need(2)?;
    for cpu in 0..machine::cpus() {
        listen_for_sgis()?;
        icc::sgi(cpu as u32, 1 << cpu);
        only(1 << cpu, cpu as u32)?;
    }
    expect::deafen()
}

fn sgi_target_list() -> Outcome {
    smp::need(2)?;
    let all = (1 << machine::cpus()) - 1;
    // Bits of CPUs that do not exist are ignored.
    for mask in [0, all, 0b10, 0b11, 0xAAAA, 0x5555, 0xFFFF] {
        listen_for_sgis()?;
        icc::sgi(9, mask);
        only(mask & all, 9)?;
    }
    expect::deafen()
}

fn sgi_all_but_self() -> Outcome {
    smp::need(2)?;
    listen_for_sgis()?;
    icc::sgi_others(10);
    only(((1 << machine::cpus()) - 1) & !myself(), 10)?;
    expect::deafen()
}

fn sgi_to_nobody() -> Outcome {
    expect::gicv3()?;
    smp::start_all()?;
    listen_for_sgis()?;
    // Another Aff1, Aff2, Aff3: no such CPU exists.
    for field in [16, 32, 48] {
        icc::sgi1r(1 << field | 11 << 24 | 0xFFFF);
    }
    wait::settle();
    only(0, 11)?;
    expect::deafen()
}

fn sgi_by_pending_register() -> Outcome {
    expect::gicv3()?;
    listen_for_sgis()?;
    for cpu in 0..machine::cpus() {
        gic::set_on(cpu, Bits::Pending, 12);
    }
    only((1 << machine::cpus()) - 1, 12)?;
    expect::deafen()
}

/// Each CPU sends SGIs of its own number continuously. They may merge, but none is lost.
fn sgi_from_all_to_one() -> Outcome {
    smp::need(2)?;
    listen_for_sgis()?;
    irq::unmask();
    let outcome = smp::on_all(|| {
        if smp::this() != 0 {
            for _ in 0..200 {
                icc::sgi(smp::this() as u32, 1);
            }
        }
        Ok(())
    });
    wait::settle();
    irq::mask();
    outcome?;
    for sender in 1..machine::cpus() as u32 {
        check!(!gic::get(Bits::Pending, sender), "SGI {sender} is still pending");
    }
    check!(irq::count(0) >= machine::cpus() - 1, "only {} interrupts came", irq::count(0));
    expect::deafen()
}

/// ICC_SGI1R_EL1 is written from each general register, to this CPU and to another one; the others hold other values.
fn sgi_from_every_register() -> Outcome {
    expect::gicv3()?;
    /// ICC_SGI1R_EL1.
    const SGI1R: Sysreg = Sysreg::new(3, 0, 12, 11, 5);
    smp::need(2)?;
    for t in 0..31 {
        for target in [0b01, 0b10] {
            listen_for_sgis()?;
            let mut registers = probe::pattern(t as u64);
            registers[t] = 4 << 24 | target;
            let fault = probe::run(&[SGI1R.write(t as u32)], &mut registers);
            check!(fault.is_none(), "ICC_SGI1R_EL1 from x{t}: {fault:?}");
            only(target, 4)?;
        }
    }
    expect::deafen()
}

/// An interrupt masked by PSTATE.I, but not by the GIC, ends WFI.
fn sgi_wakes_wfi() -> Outcome {
    smp::need(2)?;
    listen_for_sgis()?;
    smp::on(1, || {
        irq::mask();
        Ok(())
    })?;
    for _ in 0..20 {
        smp::give(1, || {
            while !irq::is_pending() {
                payload::instruction!("wfi");
            }
            irq::take();
            Ok(())
        });
        wait::spin(200);
        icc::sgi(2, 0b10);
        smp::join(1)?;
    }
    check!(irq::count(1) == 20, "CPU 1 took {} interrupts, expected 20", irq::count(1));
    expect::deafen()
}

fn ppi_by_pending_register() -> Outcome {
    gic::set_edge(PPI, true);
    gic::set(Bits::Pending, PPI);
    expect::nothing()?;
    check!(gic::get(Bits::Pending, PPI), "the PPI is not pending");
    gic::set(Bits::Enable, PPI);
    expect::taken(&[PPI])?;
    check!(!gic::get(Bits::Pending, PPI), "the PPI is still pending");
    Ok(())
}

/// A level-sensitive interrupt made pending by register stays pending until acknowledged or cleared by
/// register.
fn ppi_level_latch() -> Outcome {
    gic::set_edge(PPI, false);
    gic::set(Bits::Enable, PPI);
    gic::set(Bits::Pending, PPI);
    expect::all(&[PPI])?;
    icc::set_pmr(0);
    gic::set(Bits::Pending, PPI);
    gic::clear(Bits::Pending, PPI);
    icc::set_pmr(0xFF);
    expect::nothing()
}
