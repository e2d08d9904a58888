//! The account of exits, gathered from Stile's messages, and its tables.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::ValueEnum;
use stile_ledger::report::Report;
use stile_ledger::{Catalogue, Reason, Row, RowId, RowKey};
use stile_wire::{Decoded, Event, LedgerRow};

use crate::config::Arch;

/// The last line if nothing of Stile's memory is missing.
pub const SAME_MEMORY: &str = "memory: as much is free as at the start";

/// What the rows of a table are added up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// One table for each VM.
    Vm,
    /// One table for each vCPU.
    Vcpu,
}

/// What Stile has told of its exits.
#[derive(Debug)]
pub struct Exits {
    /// The names of the architecture's rows.
    catalogue: &'static Catalogue,
    report: Report,
    /// What became of decoded instructions, by VM.
    decoded: BTreeMap<u8, Decoded>,
    /// The counter's frequency in Hz, 0 if it was not told.
    frequency: u64,
    /// Bytes of Stile's memory that were free when the first VM started, and that are free.
    memory: Option<(u64, u64)>,
}

/// The names of an architecture's rows.
pub const fn catalogue(arch: Arch) -> &'static Catalogue {
    match arch {
        Arch::Aarch64 => &stile_ledger::aarch64::CATALOGUE,
        Arch::X86_64 => &stile_ledger::x86_64::CATALOGUE,
    }
}

impl Exits {
    /// Nothing yet.
    pub fn new(arch: Arch) -> Self {
        Self { catalogue: catalogue(arch), report: Report::default(), decoded: BTreeMap::new(), frequency: 0, memory: None }
    }

    /// Takes a message; most are about something else.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::LedgerRow(row) => self.row(row),
            Event::LedgerTotal(total) => {
                let account = self.report.account_mut(total.vm, total.vcpu);
                account.taken = total.taken;
                account.alive = total.alive_ticks;
            }
            Event::Decoded(decoded) => {
                self.decoded.insert(decoded.vm, *decoded);
            }
            Event::CounterFrequency { hz } => self.frequency = *hz,
            Event::Memory { before, now } => self.memory = Some((*before, *now)),
            _ => {}
        }
    }

    fn row(&mut self, row: &LedgerRow) {
        let key = match row.row {
            stile_wire::Row::Static(id) => RowId::from_raw(id).map(RowKey::Static),
            stile_wire::Row::Dynamic { kind, key } => {
                u8::try_from(kind).ok().and_then(Reason::from_raw).map(|reason| RowKey::Dynamic { reason, key })
            }
        };
        // A row without a name in this program's tables is missing from the sum, and so shows as a difference.
        let Some(key) = key else { return };
        let counted = Row { count: row.count, ticks: row.ticks, min: row.min, max: row.max };
        self.report.account_mut(row.vm, row.vcpu).add(key, &counted);
    }

    /// The accounts of all vCPUs.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The tables with a heading each, `names` being the VMs'; nothing if Stile has told of no vCPU.
    pub fn tables(&self, names: &[String], by: By) -> Option<String> {
        let name = |vm: u8| names.get(usize::from(vm)).map_or("?", String::as_str);
        let accounts: Vec<_> = match by {
            By::Vm => self.report.vms().into_iter().map(|vm| (format!("exits of {}", name(vm)), self.report.vm(vm))).collect(),
            By::Vcpu => {
                self.report.vcpus().map(|(vm, vcpu, account)| (format!("exits of {}, vCPU {vcpu}", name(vm)), account.clone())).collect()
            }
        };
        if accounts.is_empty() {
            return None;
        }
        let mut text = String::new();
        for (heading, account) in &accounts {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{heading}\n{}\n", account.table(self.catalogue, self.frequency));
        }
        for (vm, decoded) in &self.decoded {
            let _ = writeln!(text, "{}", describe(name(*vm), decoded));
        }
        if accounts.len() > 1 {
            let all = self.report.machine();
            let _ = writeln!(
                text,
                "all together: exits counted {}, exits taken {}, difference {}",
                all.total().count,
                all.taken,
                all.difference()
            );
        }
        if let Some((before, now)) = self.memory {
            let _ = match before.cmp(&now) {
                Ordering::Equal => writeln!(text, "{SAME_MEMORY}"),
                Ordering::Greater => writeln!(text, "memory: {} KiB less are free than at the start", (before - now) >> 10),
                Ordering::Less => writeln!(text, "memory: {} KiB more are free than at the start", (now - before) >> 10),
            };
        }
        Some(text.trim_end().to_owned())
    }
}

/// What became of a VM's decoded instructions.
fn describe(vm: &str, decoded: &Decoded) -> String {
    let Decoded { hits, misses, evictions, mismatches, dropped, .. } = *decoded;
    let rate = 100.0 * hits as f64 / hits.saturating_add(misses).max(1) as f64;
    format!(
        "instructions decoded for {vm}: {misses}; found decoded: {hits} ({rate:.2} %); had changed: {mismatches}; \
         dropped by a write: {dropped}; made room: {evictions}\n"
    )
}

#[cfg(test)]
mod tests {
    use stile_ledger::aarch64::reason;
    use stile_wire::LedgerTotal;

    use super::*;

    fn row(vm: u8, vcpu: u8, row: stile_wire::Row, count: u64) -> Event {
        Event::LedgerRow(LedgerRow { vm, vcpu, row, count, ticks: count * 10, min: 5, max: 20 })
    }

    fn total(vm: u8, vcpu: u8, taken: u64) -> Event {
        Event::LedgerTotal(LedgerTotal { vm, vcpu, taken, counted: taken, outside_ticks: taken * 10, alive_ticks: 1000 })
    }

    #[test]
    fn decoded_instructions_are_told_if_there_were_any() {
        let mut exits = Exits::new(Arch::X86_64);
        exits.take(&total(0, 0, 0));
        assert!(!exits.tables(&[], By::Vm).unwrap().contains("decoded"));
        exits.take(&Event::Decoded(Decoded { vm: 0, hits: 999, misses: 1, evictions: 2, mismatches: 3, dropped: 4 }));
        let text = exits.tables(&["guest".to_owned()], By::Vm).unwrap();
        let line = "instructions decoded for guest: 1; found decoded: 999 (99.90 %); had changed: 3; dropped by a write: 4; made room: 2";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn rows_are_added_up_and_the_last_line_states_the_difference() {
        let irq = stile_wire::Row::Static(reason::IRQ.other().raw());
        let dynamic = stile_wire::Row::Dynamic { kind: reason::SYSREG.raw().into(), key: 0 };
        let mut exits = Exits::new(Arch::Aarch64);
        assert_eq!(exits.tables(&[], By::Vm), None);
        for event in [row(0, 0, irq, 3), row(0, 1, irq, 4), row(0, 0, dynamic, 2), total(0, 0, 5), total(0, 1, 4)] {
            exits.take(&event);
        }
        exits.take(&Event::CounterFrequency { hz: 1_000_000_000 });
        let names = ["guest".to_owned()];
        let table = exits.tables(&names, By::Vm).unwrap();
        assert!(table.starts_with("exits of guest\nVM-EXIT"), "{table}");
        assert!(table.ends_with("exits counted 9, exits taken 9, difference 0"), "{table}");
        let tables = exits.tables(&names, By::Vcpu).unwrap();
        assert!(tables.contains("exits of guest, vCPU 1\n"), "{tables}");
        assert!(tables.ends_with("all together: exits counted 9, exits taken 9, difference 0"), "{tables}");
        exits.take(&total(0, 1, 6));
        assert!(exits.tables(&names, By::Vm).unwrap().ends_with("difference 2"));
        exits.take(&Event::Memory { before: 8192, now: 8192 });
        assert!(exits.tables(&names, By::Vm).unwrap().ends_with(SAME_MEMORY));
        exits.take(&Event::Memory { before: 8192, now: 4096 });
        assert!(exits.tables(&names, By::Vm).unwrap().ends_with("memory: 4 KiB less are free than at the start"));
    }
}
