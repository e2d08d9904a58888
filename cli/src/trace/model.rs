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
    pub cpus: Vec<u16>,
    /// The names of VMs, by number.
    pub vms: Vec<String>,
    /// By CPU, then in their order.
    pub events: Vec<Event>,
    /// Counts of each CPU.
    pub counts: Vec<CpuCounts>,
    /// Records lost on the line.
    pub lost: u64,
    /// Exits that [`Trace::keep`] removed.
    pub removed: u64,
    /// From each interrupt between vCPUs to its arrival.
    pub arrows: Vec<Arrow>,
    /// Names of rows that are the same in each ledger, and of others: see [`Trace::name`].
    pub names: BTreeMap<(Option<u16>, u16), Name>,
}

/// A reason and a sub-reason.
pub type Name = (String, String);

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The CPU.
    pub cpu: u16,
    /// Ticks since the beginning.
    pub at: i64,
    /// The vCPU: VM and number.
    pub vcpu: Option<(u8, u8)>,
    /// Its kind.
    pub kind: Kind,
}

impl Event {
    /// Converts a CPU's record.
    pub fn new(cpu: u16, record: &Record, start: u64) -> Self {
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

    /// End of the recorded event.
    pub fn end(&self) -> i64 {
        self.exit().map_or(self.at, |(_, took, _)| self.at.saturating_add(took.into()))
    }
}

/// The way of an interrupt between vCPUs to its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrow {
    /// The index of the event that sent the interrupt.
    pub from: usize,
    /// The index of the event that let it in.
    pub to: usize,
    /// The target.
    pub vcpu: u8,
    /// Ticks from the sender's exit to the target's entry.
    pub after: i64,
    /// Cause of the target's entry.
    pub via: Via,
}

/// Cause of a target's entry with an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// It ran, and a kick made it exit.
    Kick,
    /// The scheduler chose it.
    Scheduler,
}

impl Via {
    /// The word for it in JSON lines.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kick => "kick",
            Self::Scheduler => "scheduler",
        }
    }
}

/// Reason for which a vCPU was left, by the number of the hypervisor's `Leave`.
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

    /// Keeps only events of a VM, and only exits with this text in their names; and arrows both of whose ends are kept.
    pub fn keep(&mut self, vm: Option<&str>, reason: Option<&str>) {
        let wanted = reason.map(str::to_lowercase);
        let is_kept = |event: &Event| {
            let is_of_vm = vm.is_none_or(|vm| event.vcpu.is_some_and(|(of, _)| self.vm(of) == vm));
            let is_of_reason = wanted.as_ref().is_none_or(|wanted| {
                event.exit().is_none_or(|(row, ..)| {
                    let (reason, sub) = self.name(event, row);
                    format!("{reason} {sub}").to_lowercase().contains(wanted)
                })
            });
            is_of_vm && is_of_reason
        };
        let mut kept = 0..;
        // By the old index: the new one.
        let places: Vec<Option<usize>> = self.events.iter().map(|event| if is_kept(event) { kept.next() } else { None }).collect();
        let place = |index: usize| places.get(index).copied().flatten();
        self.arrows =
            self.arrows.iter().filter_map(|arrow| Some(Arrow { from: place(arrow.from)?, to: place(arrow.to)?, ..*arrow })).collect();
        let before = self.exits();
        let mut places = places.iter();
        self.events.retain(|_| places.next().is_some_and(Option::is_some));
        self.removed += before - self.exits();
    }

    /// Removes timers that did not expire while their vCPU waited: something else ended the wait before, or the trace ended.
    /// Returns the arrows from the others to the entry after it. Events are by CPU, in the order of their records.
    pub fn take_timers(&mut self) -> Vec<Arrow> {
        let mut entries: BTreeMap<(u8, u8), Vec<(i64, usize)>> = BTreeMap::new();
        for (index, event) in self.events.iter().enumerate() {
            if let (Kind::Enter, Some(vcpu)) = (event.kind, event.vcpu) {
                entries.entry(vcpu).or_default().push((event.at, index));
            }
        }
        entries.values_mut().for_each(|entries| entries.sort_unstable());
        let mut found: BTreeMap<usize, (usize, i64)> = BTreeMap::new();
        for (index, event) in self.events.iter().enumerate() {
            // The exit that begins the wait follows.
            let wait = self.events.get(index + 1).filter(|wait| wait.vcpu == event.vcpu);
            let (Kind::Timer, Some(wait), Some(entries)) = (event.kind, wait, event.vcpu.and_then(|vcpu| entries.get(&vcpu))) else {
                continue;
            };
            let next = entries.get(entries.partition_point(|(at, _)| *at < wait.at));
            if let Some(&(at, to)) = next.filter(|(at, _)| *at >= event.at) {
                found.insert(index, (to, at - event.at));
            }
        }
        let mut place = 0;
        // By the old index: the new one.
        let mut places = Vec::with_capacity(self.events.len());
        for (index, event) in self.events.iter().enumerate() {
            places.push(place);
            place += usize::from(event.kind != Kind::Timer || found.contains_key(&index));
        }
        let arrow = |(&from, &(to, after)): (&usize, &(usize, i64))| {
            let vcpu = self.events.get(from)?.vcpu?.1;
            Some(Arrow { from: *places.get(from)?, to: *places.get(to)?, vcpu, after, via: Via::Scheduler })
        };
        let arrows = found.iter().filter_map(arrow).collect();
        let mut index = 0..;
        self.events.retain(|event| index.next().is_some_and(|index| event.kind != Kind::Timer || found.contains_key(&index)));
        arrows
    }

    /// Exits among the events.
    pub fn exits(&self) -> u64 {
        self.events.iter().filter(|event| event.exit().is_some()).count() as u64
    }

    /// Exits that the vectors counted, exits whose records were dropped, and other records that were.
    pub fn counted(&self) -> (u64, u64, u64) {
        self.counts.iter().fold((0, 0, 0), |(taken, exits, others), cpu| {
            (taken.saturating_add(cpu.taken), exits.saturating_add(cpu.exits), others.saturating_add(cpu.others))
        })
    }

    /// Returns the machine's time from the beginning of the first CPU's records to the end of the last one's, in nanoseconds.
    pub fn span(&self) -> i64 {
        let recorded = self.events.iter().filter(|event| event.kind != Kind::Timer);
        let ends = recorded.clone().map(Event::end).max().zip(recorded.map(|event| event.at).min());
        ends.map_or(0, |(last, first)| self.nanoseconds(last.saturating_sub(first)))
    }

    /// Converts `ticks` to nanoseconds.
    pub fn nanoseconds(&self, ticks: i64) -> i64 {
        (i128::from(ticks) * 1_000_000_000 / i128::from(self.hz.max(1))) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::super::example::example;
    use super::*;

    #[test]
    fn exits_are_compared_with_the_ledger() {
        let trace = example();
        assert_eq!((trace.exits(), trace.counted()), (5, (9, 4, 1)));
    }

    #[test]
    fn a_timer_leads_to_the_entry_after_its_expiry() {
        let mut trace = example();
        let wait = trace.events.iter().position(|event| matches!(event.kind, Kind::Leave { .. })).unwrap();
        // The vCPU waits from 230 on, and is entered at 450: by that timer, or by something else before it.
        for (expiry, after) in [(440, Some(10)), (450, Some(0)), (451, None), (9_000, None)] {
            let mut timed = example();
            let event = Event { at: expiry, kind: Kind::Timer, ..timed.events[wait] };
            timed.events.insert(wait, event);
            let arrows = timed.take_timers();
            let found = arrows.first().map(|arrow| (timed.events[arrow.from].kind, timed.events[arrow.to].kind, arrow.after));
            assert_eq!(found, after.map(|after| (Kind::Timer, Kind::Enter, after)));
            assert_eq!(timed.events.len() - trace.events.len(), arrows.len());
            assert_eq!(timed.span(), 500_000, "a timer is no record's end");
        }
        assert_eq!(trace.take_timers(), []);
    }

    #[test]
    fn events_are_filtered() {
        let mut trace = example();
        trace.keep(None, Some("KICK"));
        assert_eq!(trace.exits(), 2);
        // The second arrow leads to an entry, the first one to a kick: their events moved.
        let ends: Vec<_> = trace.arrows.iter().map(|arrow| (trace.events[arrow.from].at, trace.events[arrow.to].at)).collect();
        assert_eq!(ends, [(100, 105), (400, 450)]);
        // The interrupt that a kick delivered does not belong to a later entry.
        let mut trace = example();
        trace.keep(None, Some("HVC"));
        assert_eq!(trace.arrows.len(), 1);
        trace.keep(Some("db"), None);
        assert!(trace.events.is_empty());
    }
}
