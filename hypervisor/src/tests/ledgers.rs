//! Ledgers that the operator gets from the running machine.

use stile_sched::CpuId;
use stile_wire::Event;

use super::CPUS;
use super::counts::{SAMPLES, TOTALS, count, line_length, messages};
use super::machine::Machine;
use crate::{cpu, report, sample, vm};

/// An idle CPU answers a request for the ledger of a vCPU that ran at the time of the request, and was put since.
pub fn an_idle_cpu_answers(machine: &mut Machine) {
    let is_put = |vcpu: &&&vm::Vcpu| vcpu.arch.loaded.lock().unwrap().is_none();
    let put = || vm::all().flat_map(|vm| &vm.vcpus).find(is_put);
    machine.run_until(|| put().is_some());
    let (Some(n), Some(vcpu)) = ((0..CPUS).find(|&n| machine.idle[n]), put()) else { return };
    sample::want_for_tests(vcpu.id.vm(), vcpu.id.vcpu());
    cpu::request_resched(CpuId::new(n).unwrap());
    assert!(machine.step_cpu(n));
    assert!(!sample::is_wanted(), "the idle CPU took the request, and did not answer");
    count(&SAMPLES, 1);
}

/// The operator gets all ledgers, and no exit sends more than a piece of them: 16 rows (`report::PIECE`) and a total.
pub fn are_sent_in_pieces(machine: &mut Machine) {
    let vcpus = vm::all().map(|vm| vm.vcpus.len() as u64).sum::<u64>();
    let from = line_length();
    report::begin();
    let rows = messages(from).iter().filter(|event| matches!(event, Event::LedgerRow(_) | Event::LedgerTotal(_))).count();
    assert!(rows <= 17, "an exit sends {rows} rows");
    let mut seen = from;
    machine.run_until(|| {
        let end = line_length();
        messages(core::mem::replace(&mut seen, end)).contains(&Event::LedgerEnd)
    });
    let totals = messages(from).iter().filter(|event| matches!(event, Event::LedgerTotal(_))).count() as u64;
    assert_eq!(totals, vcpus);
    count(&TOTALS, totals);
}
