//! Counts of a round's ledger, from the file of events that `stile run --log` leaves.

use serde_json::Value;

use crate::config::Arch;

/// The longest exit of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Longest {
    /// Instructions: nanoseconds of virtual time.
    pub instructions: u64,
    /// Its row of the ledger.
    pub row: String,
}

/// The accounts of all vCPUs, added up.
#[derive(Debug, Default)]
pub struct Account {
    /// Exits that were taken.
    pub taken: u64,
    /// Exits that rows of the ledger have.
    pub counted: u64,
    /// Bytes of Stile's memory that were free when the first VM started, and at the end.
    pub memory: Option<(u64, u64)>,
    /// Ticks, and the row.
    longest: Option<(u64, String)>,
    hertz: u64,
}

impl Account {
    /// Reads the lines of `events.jsonl`.
    pub fn read(events: &str) -> Self {
        let mut account = Self::default();
        for line in events.lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            // Messages of a Stile in a VM are ignored.
            if line.get("stile").is_none() {
                account.take(&line["event"]);
            }
        }
        account
    }

    fn take(&mut self, event: &Value) {
        let number = |event: &Value, field: &str| event[field].as_u64().unwrap_or(0);
        if let Some(row) = event.get("LedgerRow") {
            let (count, max) = (number(row, "count"), number(row, "max"));
            self.counted = self.counted.saturating_add(count);
            if count > 0 && self.longest.as_ref().is_none_or(|(longest, _)| max > *longest) {
                let name = match (row["row"]["reason"].as_str(), row["row"]["sub"].as_str()) {
                    (Some(reason), Some(sub)) => format!("{reason} {sub}"),
                    _ => row["row"].to_string(),
                };
                self.longest = Some((max, name));
            }
        } else if let Some(total) = event.get("LedgerTotal") {
            self.taken = self.taken.saturating_add(number(total, "taken"));
        } else if let Some(frequency) = event.get("CounterFrequency") {
            self.hertz = number(frequency, "hz");
        } else if let Some(memory) = event.get("Memory") {
            self.memory = Some((number(memory, "before"), number(memory, "now")));
        }
    }

    /// The longest exit. Only of a machine with one CPU is it that many instructions.
    pub fn longest(&self, arch: Arch) -> Option<Longest> {
        let (ticks, row) = self.longest.clone()?;
        let instructions = match arch {
            Arch::Aarch64 => u64::try_from(u128::from(ticks) * 1_000_000_000 / u128::from(self.hertz.max(1))).unwrap_or(u64::MAX),
            // The emulated PC's counter counts instructions, whatever its frequency.
            Arch::X86_64 => ticks,
        };
        Some(Longest { instructions, row })
    }
}
