//! CPUs on and off.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::harness::Test;
use payload::prelude::*;
use payload::psci::{self, id};
use payload::{entry, tests};

pub const TESTS: &[Test] = tests![
    on_bad_target,
    on_already,
    on_entry_state,
    on_32_bit,
    off_and_on,
    off_and_on_many_times,
    on_by_two_at_once,
    on_by_another,
    all_off_and_on,
    interrupt_does_not_turn_on,
];

/// Turns off a CPU, which must be on, and waits until it is off.
fn turn_off(cpu: usize) -> Outcome {
    smp::give(cpu, || {
        psci::cpu_off();
        Err(Fail::new(format_args!("CPU_OFF returned")))
    });
    check!(wait::until(|| psci::affinity_info(cpu) == psci::OFF), "CPU {cpu} stays on: AFFINITY_INFO {}", psci::affinity_info(cpu));
    smp::forget(cpu);
    Ok(())
}

fn others() -> impl Iterator<Item = usize> {
    1..machine::cpus()
}

fn on_bad_target() -> Outcome {
    for target in [machine::cpus() as u64, 0x80, 0x1_0000, 1 << 32, 0xFF_00FF_FFFF, u64::MAX] {
        let result = psci::call(id::CPU_ON, [target, entry::start_address(), 0]);
        check!(result == psci::INVALID_PARAMETERS, "CPU_ON of {target:#x} returned {result}");
    }
    Ok(())
}

fn on_already() -> Outcome {
    smp::start_all()?;
    for cpu in 0..machine::cpus() {
        let result = psci::cpu_on(cpu, 0);
        check!(result == psci::ALREADY_ON, "CPU_ON of CPU {cpu}, which is on, returned {result}");
    }
    Ok(())
}

fn on_entry_state() -> Outcome {
    smp::need(2)?;
    for cpu in others() {
        turn_off(cpu)?;
        let context = 0x0123_4567_89AB_CDEF ^ cpu as u64;
        smp::start(cpu, context)?;
        let Some(entry) = smp::entry(cpu) else { return Err(Fail::new(format_args!("no entry state"))) };
        check!(
            entry.is_clean(),
            "CPU {cpu} was entered with SCTLR_EL1 {:#x} DAIF {:#x} CurrentEL {:#x}",
            entry.sctlr,
            entry.daif,
            entry.current_el
        );
        check_eq!(entry.x0, context, "context of CPU {cpu}");
        check_eq!(entry.mpidr & 0xFF_00FF_FFFF, cpu as u64, "affinity of CPU {cpu}");
    }
    Ok(())
}

fn on_32_bit() -> Outcome {
    smp::need(2)?;
    turn_off(1)?;
    check_eq!(psci::call(id::AFFINITY_INFO_32, [1, 0, 0]), psci::OFF, "AFFINITY_INFO");
    let before = smp::arrivals(1);
    check_eq!(psci::call(id::CPU_ON_32, [1, entry::start_address(), 77]), psci::SUCCESS, "CPU_ON");
    check!(wait::until(|| smp::arrivals(1) > before), "CPU 1 does not come up");
    check_eq!(smp::entry(1).map_or(0, |entry| entry.x0), 77, "context");
    Ok(())
}

fn off_and_on() -> Outcome {
    smp::need(2)?;
    for cpu in others() {
        turn_off(cpu)?;
        check_eq!(psci::affinity_info(cpu), psci::OFF, "AFFINITY_INFO of CPU {cpu}");
        smp::start(cpu, 0)?;
        check_eq!(psci::affinity_info(cpu), 0, "AFFINITY_INFO of CPU {cpu}");
    }
    Ok(())
}

fn off_and_on_many_times() -> Outcome {
    smp::need(2)?;
    for round in 0..100 {
        let cpu = 1 + round % (machine::cpus() - 1);
        turn_off(cpu)?;
        smp::start(cpu, round as u64)?;
        check_eq!(smp::entry(cpu).map_or(0, |entry| entry.x0), round as u64, "context in round {round}");
    }
    Ok(())
}

/// Two CPUs turn on the same one: one of them succeeds. (QEMU's own PSCI lets both succeed.)
fn on_by_two_at_once() -> Outcome {
    static SUCCESSES: AtomicU64 = AtomicU64::new(0);
    static READY: AtomicU64 = AtomicU64::new(0);
    fn race() -> Outcome {
        READY.fetch_add(1, AcqRel);
        wait::until(|| READY.load(Acquire).is_multiple_of(2));
        match psci::cpu_on(2, 0) {
            psci::SUCCESS => SUCCESSES.fetch_add(1, AcqRel),
            psci::ALREADY_ON | psci::ON_PENDING => 0,
            other => return Err(Fail::new(format_args!("CPU_ON returned {other}"))),
        };
        Ok(())
    }
    smp::need(3)?;
    for round in 1..=20 {
        turn_off(2)?;
        let before = smp::arrivals(2);
        smp::give(1, race);
        let outcome = race();
        smp::join(1)?;
        outcome?;
        check!(wait::until(|| smp::arrivals(2) > before), "CPU 2 does not come up");
        if machine::is_stile() {
            check_eq!(SUCCESSES.load(Acquire), round, "CPU_ON calls that succeeded");
            check_eq!(smp::arrivals(2), before + 1, "arrivals of CPU 2");
        }
    }
    Ok(())
}

/// Each CPU is turned on by the one before it.
fn on_by_another() -> Outcome {
    smp::need(3)?;
    for cpu in others().skip(1) {
        turn_off(cpu)?;
        let before = smp::arrivals(cpu);
        smp::on(cpu - 1, || {
            let result = psci::cpu_on(smp::this() + 1, 5);
            check!(result == psci::SUCCESS, "CPU_ON returned {result}");
            Ok(())
        })?;
        check!(wait::until(|| smp::arrivals(cpu) > before), "CPU {cpu} does not come up");
    }
    Ok(())
}

fn all_off_and_on() -> Outcome {
    smp::need(2)?;
    for _ in 0..5 {
        for cpu in others() {
            turn_off(cpu)?;
        }
        smp::start_all()?;
    }
    Ok(())
}

/// An interrupt for a CPU that is off does not turn it on.
fn interrupt_does_not_turn_on() -> Outcome {
    smp::need(2)?;
    smp::on(1, || {
        gic::reset_cpu();
        gic::set(gic::Bits::Enable, 4);
        Ok(())
    })?;
    turn_off(1)?;
    let before = smp::arrivals(1);
    icc::sgi(4, 0b10);
    wait::spin(5_000);
    check_eq!(psci::affinity_info(1), psci::OFF, "AFFINITY_INFO");
    check_eq!(smp::arrivals(1), before, "arrivals of CPU 1");
    smp::start(1, 0)
}
