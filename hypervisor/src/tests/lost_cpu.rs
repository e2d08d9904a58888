//! A CPU that does not respond.

use stile_sched::CpuId;

use super::machine::Machine;
use crate::arch::fake;
use crate::{cpu, watch};

/// An unresponsive CPU is reported, and no longer once it responds.
pub fn is_found(machine: &mut Machine) {
    let lost = loop {
        // CPU 0 receives the operator's commands.
        if let Some(cpu) = machine.lose_cpu().filter(|cpu| cpu.index() != 0) {
            break cpu;
        }
        machine.regain_cpu();
        machine.step();
    };
    watch::begin();
    assert!(!watch::is_lost(lost));
    cpu::request_resched(lost);
    watch::begin();
    run_until_lost(machine, lost, true);
    machine.regain_cpu();
    run_until_lost(machine, lost, false);
}

fn run_until_lost(machine: &mut Machine, cpu: CpuId, expected: bool) {
    machine.run_until(|| {
        fake::pass(1_000_000);
        watch::is_lost(cpu) == expected
    });
}
