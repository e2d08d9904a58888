//! The account of exits, gathered from Stile's messages, and its tables.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use stile_board::{MAX_VCPUS, MAX_VMS};
use stile_ledger::report::{Account, Report};
use stile_ledger::{Catalogue, Reason, Row, RowId, RowKey};
use stile_wire::{CpuTime, Decoded, Event, LedgerRow, Level, VmState};

use crate::config::Arch;

/// The report's last line if no memory of Stile has leaked.
pub const SAME_MEMORY: &str = "memory: as much is free as at the start";

/// The presentation of the account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shown {
    /// An account for each vCPU; otherwise one for each VM.
    pub by_vcpu: bool,
    /// Small rows have lines of their own.
    pub all: bool,
    /// JSON, a line for each account, instead of tables.
    pub json: bool,
}

impl Shown {
    /// Parses `vm`, `vcpu`, `all` and `json`, separated by commas.
    ///
    /// # Errors
    /// An unknown word: a sentence that lists the known ones.
    pub fn parse(words: &str) -> Result<Self, String> {
        words.split(',').try_fold(Self::default(), |shown, word| match word {
            "vm" => Ok(Self { by_vcpu: false, ..shown }),
            "vcpu" => Ok(Self { by_vcpu: true, ..shown }),
            "all" => Ok(Self { all: true, ..shown }),
            "json" => Ok(Self { json: true, ..shown }),
            other => Err(format!("\"{other}\" is not known; expected vm, vcpu, all, json, or several with commas")),
        })
    }
}

/// The exits reported by Stile.
#[derive(Debug)]
pub struct Exits {
    /// The names of the architecture's rows.
    catalogue: &'static Catalogue,
    report: Report,
    /// Statistics of decoded instructions, by VM.
    decoded: BTreeMap<u8, Decoded>,
    /// CPU times of vCPUs, by VM.
    times: BTreeMap<u8, CpuTime>,
    /// VMs that are about to be destroyed, by number: the name, and the accounts of the vCPUs.
    leaving: BTreeMap<u8, Gone>,
    /// VMs that are destroyed.
    gone: Vec<Gone>,
    /// The counter's frequency in Hz, 0 if unknown.
    frequency: u64,
    /// Bytes of Stile's memory that were free when the first VM started, and that are free.
    memory: Option<(u64, u64)>,
}

/// Takes the name of a destroyed VM, and the accounts of its vCPUs.
type Gone = (String, Vec<(u8, Account)>);

/// Whether the number of a vCPU is possible. A guest can imitate the messages of a Stile in its VM.
pub fn exists(vm: u8, vcpu: u8) -> bool {
    usize::from(vm) < MAX_VMS && usize::from(vcpu) < MAX_VCPUS
}

/// The names of an architecture's rows.
pub const fn catalogue(arch: Arch) -> &'static Catalogue {
    match arch {
        Arch::Aarch64 => &stile_ledger::aarch64::CATALOGUE,
        Arch::X86_64 => &stile_ledger::x86_64::CATALOGUE,
    }
}

impl Exits {
    /// An empty account.
    pub fn new(arch: Arch) -> Self {
        Self {
            catalogue: catalogue(arch),
            report: Report::default(),
            decoded: BTreeMap::new(),
            times: BTreeMap::new(),
            leaving: BTreeMap::new(),
            gone: Vec::new(),
            frequency: 0,
            memory: None,
        }
    }

    /// Processes a message; most are unrelated.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Hello { level: Level::Svm, .. } => self.catalogue = &stile_ledger::x86_64::CATALOGUE_SVM,
            Event::LedgerRow(row) => self.row(row),
            Event::LedgerTotal(total) if exists(total.vm, total.vcpu) => {
                let account = self.report.account_mut(total.vm, total.vcpu);
                account.taken = total.taken;
                account.alive = total.alive_ticks;
            }
            Event::Decoded(decoded) => {
                self.decoded.insert(decoded.vm, *decoded);
            }
            Event::CpuTime(time) => {
                self.times.insert(time.vm, *time);
            }
            Event::Vm { vm, state: VmState::Destroyed } => self.destroyed(*vm),
            Event::CounterFrequency { hz } => self.frequency = *hz,
            Event::Memory { before, now } => self.memory = Some((*before, *now)),
            _ => {}
        }
    }

    /// Keeps the accounts of a VM that is off and about to be destroyed; `report` has them.
    pub fn keep(&mut self, vm: u8, name: &str, report: &Report) {
        let vcpus = report.vcpus().filter(|(of, _, _)| *of == vm).map(|(_, vcpu, account)| (vcpu, account.clone()));
        self.leaving.insert(vm, (name.to_owned(), vcpus.collect()));
    }

    /// Removes a destroyed VM. VMs of one name share an account, so that the number of accounts is bounded by that of names.
    fn destroyed(&mut self, vm: u8) {
        let Some((name, vcpus)) = self.leaving.remove(&vm) else { return };
        let Some((_, known)) = self.gone.iter_mut().find(|(other, _)| *other == name) else {
            return self.gone.push((name, vcpus));
        };
        for (vcpu, account) in vcpus {
            match known.iter_mut().find(|(other, _)| *other == vcpu) {
                Some((_, sum)) => sum.merge(&account),
                None => known.push((vcpu, account)),
            }
        }
    }

    fn row(&mut self, row: &LedgerRow) {
        // A row unknown to this program is not in the sum, and so appears as a difference.
        let Some(key) = key(row.row) else { return };
        if !exists(row.vm, row.vcpu) {
            return;
        }
        let counted = Row { count: row.count, ticks: row.ticks, min: row.min, max: row.max };
        let account = self.report.account_mut(row.vm, row.vcpu);
        if account.has_room_for(key) {
            account.add(key, &counted);
        }
    }

    /// The names of a row: its reason, and its sub-reason.
    pub fn name(&self, key: RowKey) -> Option<(String, String)> {
        self.catalogue.name(key).map(|name| (name.reason_name.to_owned(), name.sub.to_string()))
    }

    /// The accounts of all vCPUs.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// An event for programs to read: the rows of the ledger have their names.
    ///
    /// # Errors
    /// It can't be made JSON: a mistake of this program.
    pub fn named(&self, event: &Event) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(event)?;
        if let (Event::LedgerRow(LedgerRow { row, .. }), Some(fields)) = (event, value.get_mut("LedgerRow")) {
            let name = key(*row).and_then(|key| self.catalogue.name(key));
            if let Some(name) = name {
                fields["row"] = json!({ "reason": name.reason_name, "sub": name.sub.to_string() });
            }
        }
        Ok(value)
    }

    /// The accounts of the VMs, or of each vCPU, with the VMs' names; destroyed VMs come last.
    fn accounts<'n>(&'n self, names: &'n [String], by_vcpu: bool) -> Vec<(&'n str, Option<u8>, Account)> {
        let gone = self.gone.iter().flat_map(|(name, vcpus)| vcpus.iter().map(move |(vcpu, account)| (name.as_str(), *vcpu, account)));
        if by_vcpu {
            let vcpus = self.report.vcpus().map(|(vm, vcpu, account)| (name(names, vm), vcpu, account));
            return vcpus.chain(gone).map(|(name, vcpu, account)| (name, Some(vcpu), account.clone())).collect();
        }
        let vms = self.report.vms().into_iter().map(|vm| (name(names, vm), None, self.report.vm(vm)));
        let gone = self.gone.iter().map(|(name, vcpus)| (name.as_str(), None, sum(vcpus.iter().map(|(_, account)| account))));
        vms.chain(gone).collect()
    }

    /// The accounts, presented according to `shown`, with the VMs' `names`; `None` if Stile reported no vCPU.
    pub fn text(&self, names: &[String], shown: Shown) -> Option<String> {
        self.report.vcpus().next()?;
        Some(if shown.json { self.json(names, shown.by_vcpu) } else { self.tables(names, shown) })
    }

    /// A JSON object a line for each account, all its rows in it.
    fn json(&self, names: &[String], by_vcpu: bool) -> String {
        let object = |(vm, vcpu, account): &(&str, Option<u8>, Account)| {
            let reasons = account.reasons(self.catalogue);
            let rows = reasons.iter().flat_map(|reason| {
                reason.subs.iter().map(|sub| {
                    let Row { count, ticks, min, max } = sub.row;
                    json!({ "reason": reason.name, "sub": sub.name, "count": count, "ticks": ticks, "min": min, "max": max })
                })
            });
            json!({
                "vm": vm,
                "vcpu": vcpu,
                "counter_hz": self.frequency,
                "alive_ticks": account.alive,
                "exits_taken": account.taken,
                "exits_counted": account.total().count,
                "difference": account.difference(),
                "rows": rows.collect::<Vec<_>>(),
            })
            .to_string()
        };
        self.accounts(names, by_vcpu).iter().map(object).collect::<Vec<_>>().join("\n")
    }

    /// Tables with a heading each.
    fn tables(&self, names: &[String], shown: Shown) -> String {
        let accounts = self.accounts(names, shown.by_vcpu);
        let mut text = String::new();
        for (vm, vcpu, account) in &accounts {
            let vcpu = vcpu.map(|vcpu| format!(", vCPU {vcpu}")).unwrap_or_default();
            let table = account.table(self.catalogue, self.frequency);
            let table = if shown.all { table } else { table.folded() };
            // Writing to a string can't fail.
            let _ = writeln!(text, "exits of {vm}{vcpu}\n{table}\n");
        }
        for (vm, decoded) in &self.decoded {
            let _ = writeln!(text, "{}", describe(name(names, *vm), decoded));
        }
        for (vm, time) in self.times.iter().filter(|_| self.frequency != 0) {
            let _ = writeln!(text, "{}", self.describe_time(name(names, *vm), time));
        }
        if accounts.len() > 1 {
            let all = sum(accounts.iter().map(|(_, _, account)| account));
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
        text.trim_end().to_owned()
    }
}

fn sum<'a>(accounts: impl Iterator<Item = &'a Account>) -> Account {
    accounts.fold(Account::default(), |mut sum, account| {
        sum.merge(account);
        sum
    })
}

/// The name of a VM.
fn name(names: &[String], vm: u8) -> &str {
    names.get(usize::from(vm)).map_or("?", String::as_str)
}

/// The key of a row, if known to this program.
pub fn key(row: stile_wire::Row) -> Option<RowKey> {
    match row {
        stile_wire::Row::Static(id) => RowId::from_raw(id).map(RowKey::Static),
        stile_wire::Row::Dynamic { kind, key } => {
            let reason = u8::try_from(kind).ok().and_then(Reason::from_raw)?;
            Some(RowKey::Dynamic { reason, key })
        }
    }
}

impl Exits {
    /// The CPU times of a VM's vCPUs.
    fn describe_time(&self, vm: &str, time: &CpuTime) -> String {
        let seconds = |ticks: u64| ticks as f64 / self.frequency as f64;
        let ready = time.ran.saturating_add(time.waited).max(1);
        format!(
            "CPU time of {vm}: ran {:.3} s, waited for a CPU {:.3} s; had a CPU for {:.1} % of the time that it wanted one\n",
            seconds(time.ran),
            seconds(time.waited),
            100.0 * time.ran as f64 / ready as f64
        )
    }
}

/// The statistics of a VM's decoded instructions.
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
    fn words_select_the_presentation() {
        let shown = |by_vcpu, all, json| Ok(Shown { by_vcpu, all, json });
        assert_eq!(Shown::parse("vm"), shown(false, false, false));
        assert_eq!(Shown::parse("all"), shown(false, true, false));
        assert_eq!(Shown::parse("vcpu,json"), shown(true, false, true));
        assert!(Shown::parse("none").is_err_and(|error| error.contains("json")));
    }

    #[test]
    fn json_contains_names() {
        let irq = stile_wire::Row::Static(reason::IRQ.other().raw());
        let mut exits = Exits::new(Arch::Aarch64);
        let event = row(0, 1, irq, 3);
        exits.take(&event);
        exits.take(&total(0, 1, 3));
        let named = exits.named(&event).unwrap();
        assert_eq!(named["LedgerRow"]["row"], json!({ "reason": "IRQ", "sub": "other" }));
        assert_eq!(named["LedgerRow"]["count"], 3);
        let shown = Shown { by_vcpu: true, json: true, ..Shown::default() };
        let line: Value = serde_json::from_str(&exits.text(&["guest".to_owned()], shown).unwrap()).unwrap();
        assert_eq!((&line["vm"], &line["vcpu"], &line["difference"]), (&json!("guest"), &json!(1), &json!(0)));
        assert_eq!(line["rows"], json!([{ "reason": "IRQ", "sub": "other", "count": 3, "ticks": 30, "min": 5, "max": 20 }]));
    }

    #[test]
    fn destroyed_vms_keep_their_accounts() {
        let mut exits = Exits::new(Arch::Aarch64);
        let mut report = Report::default();
        report.account_mut(1, 0).taken = 4;
        report.account_mut(1, 0).add(RowKey::Static(reason::IRQ.other()), &Row { count: 4, ticks: 40, min: 5, max: 20 });
        for _ in 0..2 {
            exits.keep(1, "gone", &report);
            exits.take(&Event::Vm { vm: 1, state: VmState::Destroyed });
        }
        // It stays.
        exits.keep(2, "stays", &report);
        exits.take(&total(0, 0, 0));
        let text = exits.text(&["guest".to_owned()], Shown::default()).unwrap();
        assert!(text.contains("exits of gone\n") && !text.contains("stays"), "{text}");
        assert!(text.contains("exits counted 8, exits taken 8, difference 0"), "{text}");
        assert!(text.contains("all together: exits counted 8, exits taken 8, difference 0"), "{text}");
        let json = exits.text(&["guest".to_owned()], Shown { json: true, ..Shown::default() }).unwrap();
        assert!(json.lines().any(|line| line.contains(r#""vm":"gone""#)), "{json}");
    }

    #[test]
    fn decoded_instructions_are_shown_if_there_were_any() {
        let mut exits = Exits::new(Arch::X86_64);
        exits.take(&total(0, 0, 0));
        assert!(!exits.text(&[], Shown::default()).unwrap().contains("decoded"));
        exits.take(&Event::Decoded(Decoded { vm: 0, hits: 999, misses: 1, evictions: 2, mismatches: 3, dropped: 4 }));
        let text = exits.text(&["guest".to_owned()], Shown::default()).unwrap();
        let line = "instructions decoded for guest: 1; found decoded: 999 (99.90 %); had changed: 3; dropped by a write: 4; made room: 2";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn messages_of_any_content_take_bounded_memory() {
        let mut exits = Exits::new(Arch::Aarch64);
        for n in 0..5000_u32 {
            let dynamic = stile_wire::Row::Dynamic { kind: reason::SYSREG.raw().into(), key: n };
            exits.take(&row(0, 0, dynamic, 1));
            exits.take(&row(n as u8, (n >> 8) as u8, dynamic, 1));
            exits.take(&total(n as u8, (n >> 4) as u8, 1));
        }
        let vcpus: Vec<_> = exits.report().vcpus().map(|(vm, vcpu, account)| (vm, vcpu, account.rows().count())).collect();
        assert!(vcpus.len() <= MAX_VMS * MAX_VCPUS, "{} vCPUs", vcpus.len());
        assert!(vcpus.iter().all(|(.., rows)| *rows <= stile_ledger::ROWS), "{vcpus:?}");
        assert_eq!(vcpus[0], (0, 0, stile_ledger::ROWS));
    }

    #[test]
    fn cpu_time_is_shown() {
        let mut exits = Exits::new(Arch::Aarch64);
        exits.take(&total(0, 0, 0));
        exits.take(&Event::CounterFrequency { hz: 1000 });
        exits.take(&Event::CpuTime(CpuTime { vm: 0, ran: 1500, waited: 4500 }));
        let text = exits.text(&["guest".to_owned()], Shown::default()).unwrap();
        let line = "CPU time of guest: ran 1.500 s, waited for a CPU 4.500 s; had a CPU for 25.0 % of the time that it wanted one";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn rows_are_summed_and_the_last_line_states_the_difference() {
        let irq = stile_wire::Row::Static(reason::IRQ.other().raw());
        let dynamic = stile_wire::Row::Dynamic { kind: reason::SYSREG.raw().into(), key: 0 };
        let mut exits = Exits::new(Arch::Aarch64);
        assert_eq!(exits.text(&[], Shown::default()), None);
        for event in [row(0, 0, irq, 3), row(0, 1, irq, 4), row(0, 0, dynamic, 2), total(0, 0, 5), total(0, 1, 4)] {
            exits.take(&event);
        }
        exits.take(&Event::CounterFrequency { hz: 1_000_000_000 });
        let names = ["guest".to_owned()];
        let table = exits.text(&names, Shown::default()).unwrap();
        assert!(table.starts_with("exits of guest\nVM-EXIT"), "{table}");
        assert!(table.ends_with("exits counted 9, exits taken 9, difference 0"), "{table}");
        let tables = exits.text(&names, Shown { by_vcpu: true, ..Shown::default() }).unwrap();
        assert!(tables.contains("exits of guest, vCPU 1\n"), "{tables}");
        assert!(tables.ends_with("all together: exits counted 9, exits taken 9, difference 0"), "{tables}");
        exits.take(&total(0, 1, 6));
        assert!(exits.text(&names, Shown::default()).unwrap().ends_with("difference 2"));
        exits.take(&Event::Memory { before: 8192, now: 8192 });
        assert!(exits.text(&names, Shown::default()).unwrap().ends_with(SAME_MEMORY));
        exits.take(&Event::Memory { before: 8192, now: 4096 });
        assert!(exits.text(&names, Shown::default()).unwrap().ends_with("memory: 4 KiB less are free than at the start"));
    }
}
