//! Budgets of VMs: limits of their exits, and their use.

use std::fmt;

use serde::{Deserialize, Serialize};

/// All of a CPU's time, in the unit of [`Budget::exit_time`].
pub const CPU: u64 = 1_000_000;

/// A VM's budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Exits per second of all its vCPUs.
    pub exits_per_second: Option<u64>,
    /// Time in Stile for its exits, in millionths of a CPU.
    pub exit_time: Option<u64>,
}

impl Budget {
    /// Whether it limits nothing.
    pub const fn is_empty(&self) -> bool {
        self.exits_per_second.is_none() && self.exit_time.is_none()
    }

    /// Returns the limits, each with its kind.
    pub fn limits(&self) -> impl Iterator<Item = (Kind, u64)> {
        let exits = self.exits_per_second.map(|limit| (Kind::ExitsPerSecond, limit));
        exits.into_iter().chain(self.exit_time.map(|limit| (Kind::ExitTime, limit)))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<String> = self.limits().map(|(kind, limit)| kind.figure(limit)).collect();
        write!(f, "at most {}", limits.join(", and "))
    }
}

/// A quantity that a budget limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Exits per second.
    ExitsPerSecond,
    /// Time in Stile, in millionths of a CPU.
    ExitTime,
}

impl Kind {
    /// Its name in configurations and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ExitsPerSecond => "exits_per_second",
            Self::ExitTime => "exit_time",
        }
    }

    /// A figure with its unit.
    fn figure(self, value: u64) -> String {
        match self {
            Self::ExitsPerSecond => format!("{value} exits/s"),
            // All of the digits: a figure just above its limit differs from it.
            Self::ExitTime => format!("{}% of a CPU", value as f64 * 100.0 / CPU as f64),
        }
    }
}

/// Usage of one limit of a VM's budget in the last interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The VM.
    pub vm: String,
    /// The limited quantity.
    pub budget: Kind,
    /// The limit.
    pub limit: u64,
    /// The amount used.
    pub used: u64,
    /// The limit was exceeded, and is not reliably kept again.
    pub exceeded: bool,
    /// Number of times that the limit began to be exceeded.
    pub violations: u64,
    /// While it is exceeded: the row that grew most since it was last kept.
    pub cause: Option<Growth>,
}

/// Growth of a row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// The reason.
    pub reason: String,
    /// The sub-reason.
    pub sub: String,
    /// Its share of the limited quantity, while the limit was kept.
    pub before: u64,
    /// Its part now.
    pub now: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm, budget, limit, used, exceeded, .. } = self;
        let (verb, when) = match exceeded {
            true if used > limit => ("exceeds", ""),
            true => ("exceeded", " a moment ago"),
            false => ("keeps", ""),
        };
        write!(f, "{vm} {verb} its budget of {}{when}: {}", budget.figure(*limit), budget.figure(*used))?;
        if let Some(Growth { reason, sub, before, now }) = &self.cause {
            write!(f, "; {reason} {sub} grew from {} to {}", budget.figure(*before), budget.figure(*now))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_lists_its_limits() {
        let budget = Budget { exits_per_second: Some(2_000), exit_time: Some(5_000) };
        assert_eq!(budget.to_string(), "at most 2000 exits/s, and 0.5% of a CPU");
        assert_eq!(Budget { exits_per_second: None, ..budget }.to_string(), "at most 0.5% of a CPU");
    }

    #[test]
    fn usage_names_what_grew() {
        let cause = Growth { reason: "IRQ".into(), sub: "kick".into(), before: 10_000, now: 25_000 };
        let usage =
            |used, exceeded, cause| Usage { vm: "web".into(), budget: Kind::ExitTime, limit: 20_000, used, exceeded, violations: 1, cause };
        let text = "web exceeds its budget of 2% of a CPU: 3% of a CPU; IRQ kick grew from 1% of a CPU to 2.5% of a CPU";
        assert_eq!(usage(30_000, true, Some(cause)).to_string(), text);
        assert_eq!(usage(20_001, true, None).to_string(), "web exceeds its budget of 2% of a CPU: 2.0001% of a CPU");
        assert_eq!(usage(19_000, true, None).to_string(), "web exceeded its budget of 2% of a CPU a moment ago: 1.9% of a CPU");
        assert_eq!(usage(18_000, false, None).to_string(), "web keeps its budget of 2% of a CPU: 1.8% of a CPU");
    }
}
