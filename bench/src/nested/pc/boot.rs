//! Exits of L1's boot, by reason: from power-on through its init, which loads KVM's modules, waits some seconds and powers
//! off.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::measure;
use super::operations::KVM;
use crate::number::number;

/// Exits of a boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The emulated CPU's model.
    pub cpu: String,
    /// Exits by reason.
    pub boot_exits: BTreeMap<String, u64>,
}

/// Boots L1 without a VM of its own.
///
/// # Errors
/// A file can't be built or fetched, the run fails, or the ledger misses exits.
pub fn measure(cpu: &str) -> Result<Boot> {
    let mut boot_exits = BTreeMap::new();
    for (row, count) in measure::run(KVM, cpu, &[], 0)?.exits()? {
        let reason = row.split_once(": ").map_or(row.as_str(), |(reason, _)| reason);
        *boot_exits.entry(reason.to_owned()).or_default() += count;
    }
    boot_exits.retain(|_, count| *count > 0);
    Ok(Boot { cpu: cpu.to_owned(), boot_exits })
}

impl Boot {
    /// Formats the exits as text, a line for each reason.
    pub fn text(&self) -> String {
        let rows: Vec<_> = self.boot_exits.iter().map(|(reason, count)| format!("  {reason:<16} {:>9}", number(*count as f64))).collect();
        format!("Exits of L1's boot on {}, with KVM's modules and without a VM\n{}", self.cpu, rows.join("\n"))
    }

    /// Returns the rows of a table, the heading first.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let heading = vec!["reason".to_owned(), "exits of L1's boot".to_owned()];
        let row = |(reason, count): (&String, &u64)| vec![reason.clone(), number(*count as f64)];
        [heading].into_iter().chain(self.boot_exits.iter().map(row)).collect()
    }

    /// Returns a message for each reason whose exits exceed its budget. The budget of a reason that has none is 0.
    pub fn exceeded(&self, budget: &BTreeMap<String, u64>) -> Vec<String> {
        let sentence = |(reason, count): (&String, &u64)| {
            let most = budget.get(reason).copied().unwrap_or(0);
            (*count > most).then(|| format!("boot of L1 on {}: {count} exits by {reason}, and its budget is {most}", self.cpu))
        };
        self.boot_exits.iter().filter_map(sentence).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_that_has_no_budget_is_named() {
        let map = |rows: &[(&str, u64)]| rows.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
        let boot = Boot { cpu: "pc".to_owned(), boot_exits: map(&[("CPUID", 300), ("HLT", 20)]) };
        assert!(boot.exceeded(&map(&[("CPUID", 300), ("HLT", 21), ("IO", 5)])).is_empty());
        assert_eq!(boot.exceeded(&map(&[("CPUID", 299)])).len(), 2);
        assert_eq!(boot.exceeded(&map(&[("CPUID", 300)])), ["boot of L1 on pc: 20 exits by HLT, and its budget is 0"]);
    }
}
