//! A trace for tests.

use stile_trace::Kind;

use super::arrows;
use super::model::{Event, Trace};
use crate::control::protocol::CpuCounts;

/// Two vCPUs of a VM, on a CPU each: the first one sends interrupt 5 to the second, which is kicked; then to itself and to one that waits.
pub fn example() -> Trace {
    let kick = stile_ledger::aarch64::IRQ_KICK.raw();
    let hvc = stile_ledger::aarch64::reason::HVC.other().raw();
    let event = |cpu, at, vcpu, kind| Event { cpu, at, vcpu: Some((0, vcpu)), kind };
    let mut trace = Trace {
        hz: 1_000_000,
        cpus: vec![0, 1],
        vms: vec!["web".into()],
        events: vec![
            event(0, 0, 0, Kind::Begin),
            event(0, 100, 0, Kind::Ipi { intid: 5, first: 0, targets: 0b10 }),
            event(0, 100, 0, Kind::Exit { row: hvc, took: 20 }),
            event(0, 400, 0, Kind::Ipi { intid: 6, first: 0, targets: 0b11 }),
            event(0, 400, 0, Kind::Exit { row: hvc, took: 10 }),
            event(0, 500, 0, Kind::End),
            event(1, 1, 1, Kind::Begin),
            event(1, 50, 1, Kind::Exit { row: kick, took: 10 }),
            event(1, 110, 1, Kind::Inject { intid: 5 }),
            event(1, 105, 1, Kind::Exit { row: kick, took: 10 }),
            event(1, 200, 1, Kind::Leave { row: hvc, took: 30, why: 2 }),
            event(1, 450, 1, Kind::Enter),
            event(1, 480, 1, Kind::End),
        ],
        counts: vec![CpuCounts { cpu: 0, taken: 2, exits: 0, others: 0 }, CpuCounts { cpu: 1, taken: 7, exits: 4, others: 1 }],
        ..Trace::default()
    };
    trace.name_rows(&stile_ledger::aarch64::CATALOGUE, Vec::new());
    trace.arrows = arrows::find(&trace, false);
    trace
}
