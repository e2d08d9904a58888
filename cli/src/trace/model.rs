//! The events of a trace, with their names and absolute times.

use std::collections::BTreeMap;

use stile_ledger::{Catalogue, RowId, RowKey};
use stile_trace::{Kind, Record, extend, id_of, vcpu_of};

use crate::control::protocol::{CpuCounts, RowName};

/// A trace.
#[derive(Debug, Default)]
pub struct Trace {
    /// Ticks per second.
    pub hz: u64,
    /// The counter at the beginning.
    pub start: u64,
    /// The CPUs.
    pub cpus: Vec<u8>,
    /// The names of VMs, by number.
    pub vms: Vec<String>,
    /// By CPU, then in their order.
    pub events: Vec<Event>,
    /// Counts of each CPU.
    pub counts: Vec<CpuCounts>,
    /// Records lost on the line.
    pub lost: u64,
    /// Names of rows that are the same in each ledger, and of others: see [`Trace::name`].
    names: BTreeMap<(Option<u16>, u16), Name>,
}

/// A reason and a sub-reason.
pub type Name = (String, String);

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The CPU.
    pub cpu: u8,
    /// Ticks since the beginning.
    pub at: i64,
    /// The vCPU: VM and number.
    pub vcpu: Option<(u8, u8)>,
    /// Its kind.
    pub kind: Kind,
}

impl Event {
    /// Of a CPU's record.
    pub fn new(cpu: u8, record: &Record, start: u64) -> Self {
        let at = extend(record.ticks, start).wrapping_sub(start).cast_signed();
        Self { cpu, at, vcpu: vcpu_of(record.vcpu), kind: record.kind }
    }

    /// The ledger's row, the duration and, if the scheduler chose after it, why.
    pub const fn exit(&self) -> Option<(u16, u32, Option<u8>)> {
        match self.kind {
            Kind::Exit { row, took } => Some((row, took, None)),
            Kind::Leave { row, took, why } => Some((row, took, Some(why))),
            _ => None,
        }
    }

    /// When what it tells was over.
    pub fn end(&self) -> i64 {
        self.exit().map_or(self.at, |(_, took, _)| self.at.saturating_add(took.into()))
    }
}

/// Why a vCPU was left, by the number of the hypervisor's `Leave`.
pub fn why(number: u8) -> &'static str {
    ["reschedule", "timer", "wait", "yield", "off"].get(usize::from(number)).copied().unwrap_or("?")
}

impl Trace {
    /// Names the rows of the ledger.
    pub fn name_rows(&mut self, catalogue: &'static Catalogue, rows: Vec<RowName>) {
        let rows = rows.into_iter().map(|row| ((Some(row.vcpu), row.row), (row.reason, row.sub)));
        self.names = rows.collect();
        let used: Vec<u16> = self.events.iter().filter_map(|event| event.exit().map(|(row, ..)| row)).collect();
        for row in used {
            let key = RowId::from_raw(row).filter(|id| !id.is_dynamic()).map(RowKey::Static);
            if let Some(name) = key.and_then(|key| catalogue.name(key)) {
                self.names.entry((None, row)).or_insert_with(|| (name.reason_name.to_owned(), name.sub.to_string()));
            }
        }
    }

    /// The name of an exit's row.
    pub fn name(&self, event: &Event, row: u16) -> Name {
        let id = event.vcpu.map(|(vm, vcpu)| id_of(vm, vcpu));
        let found = self.names.get(&(None, row)).or_else(|| self.names.get(&(id, row)));
        found.cloned().unwrap_or_else(|| ("?".into(), format!("row {row}")))
    }

    /// The name of a VM.
    pub fn vm(&self, number: u8) -> String {
        self.vms.get(usize::from(number)).filter(|name| !name.is_empty()).cloned().unwrap_or_else(|| format!("VM {number}"))
    }

    /// Keeps only events of a VM, and only exits with this text in their names.
    pub fn keep(&mut self, vm: Option<&str>, reason: Option<&str>) {
        let wanted = reason.map(str::to_lowercase);
        let mut events = std::mem::take(&mut self.events);
        events.retain(|event| {
            let is_of_vm = vm.is_none_or(|vm| event.vcpu.is_some_and(|(of, _)| self.vm(of) == vm));
            let is_of_reason = wanted.as_ref().is_none_or(|wanted| {
                event.exit().is_none_or(|(row, ..)| {
                    let (reason, sub) = self.name(event, row);
                    format!("{reason} {sub}").to_lowercase().contains(wanted)
                })
            });
            is_of_vm && is_of_reason
        });
        self.events = events;
    }

    /// Exits that were recorded.
    pub fn exits(&self) -> u64 {
        self.events.iter().filter(|event| event.exit().is_some()).count() as u64
    }

    /// Exits that the vectors counted, exits whose records were dropped, and other records that were.
    pub fn counted(&self) -> (u64, u64, u64) {
        self.counts.iter().fold((0, 0, 0), |(taken, exits, others), cpu| {
            (taken.saturating_add(cpu.taken), exits.saturating_add(cpu.exits), others.saturating_add(cpu.others))
        })
    }

    /// Nanoseconds of so many ticks.
    pub fn nanoseconds(&self, ticks: i64) -> i64 {
        (i128::from(ticks) * 1_000_000_000 / i128::from(self.hz.max(1))) as i64
    }

    /// Where each interrupt between vCPUs arrived: the indices of the events that sent it and that let it in. It arrived with the first entry
    /// of the target after it was sent that can let interrupts in: one after a kick, or one that the scheduler chose.
    pub fn arrows(&self) -> Vec<(usize, usize)> {
        let mut entries: BTreeMap<(u8, u8), Vec<(i64, usize)>> = BTreeMap::new();
        for (index, event) in self.events.iter().enumerate() {
            let lets_in = match event.kind {
                Kind::Enter => true,
                Kind::Exit { row, .. } => self.is_kick(event, row),
                _ => false,
            };
            if let Some(vcpu) = event.vcpu.filter(|_| lets_in) {
                entries.entry(vcpu).or_default().push((event.end(), index));
            }
        }
        entries.values_mut().for_each(|entries| entries.sort_unstable());
        let mut arrows = Vec::new();
        for (from, event) in self.events.iter().enumerate() {
            let (Kind::Ipi { first, targets, .. }, Some((vm, sender))) = (event.kind, event.vcpu) else { continue };
            for target in (0..32).filter(|target| targets >> target & 1 != 0).map(|target| first.saturating_add(target)) {
                if target == sender {
                    continue;
                }
                let Some(entries) = entries.get(&(vm, target)) else { continue };
                let next = entries.partition_point(|(end, _)| *end < event.at);
                arrows.extend(entries.get(next).map(|(_, to)| (from, *to)));
            }
        }
        arrows
    }

    fn is_kick(&self, event: &Event, row: u16) -> bool {
        self.name(event, row).1 == "kick"
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

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
        trace
    }

    #[test]
    fn interrupts_arrive_with_the_next_entry_that_lets_them_in() {
        assert_eq!(example().arrows(), [(1, 9), (3, 11)]);
    }

    #[test]
    fn exits_are_compared_with_the_ledger() {
        let trace = example();
        assert_eq!((trace.exits(), trace.counted()), (5, (9, 4, 1)));
    }

    #[test]
    fn events_are_filtered() {
        let mut trace = example();
        trace.keep(None, Some("KICK"));
        assert_eq!(trace.exits(), 2);
        trace.keep(Some("db"), None);
        assert!(trace.events.is_empty());
    }
}
