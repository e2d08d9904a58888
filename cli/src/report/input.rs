//! The exits of a trace's file in JSON lines.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A trace, as far as a report needs it.
#[derive(Debug, Default)]
pub struct Input {
    /// By time.
    pub exits: Vec<Exit>,
    /// Ticks per second.
    pub hz: u64,
    /// Exits that found no room.
    pub dropped: u64,
    /// Records lost on the line.
    pub lost: u64,
}

/// An exit.
#[derive(Debug, Clone, Deserialize)]
pub struct Exit {
    /// Since the trace began.
    pub ns: i64,
    /// Its duration.
    pub took_ticks: u64,
    /// The CPU.
    pub cpu: u8,
    /// The VM's name.
    #[serde(default)]
    pub vm: String,
    /// The vCPU.
    #[serde(default)]
    pub vcpu: u8,
    /// The reason.
    pub reason: String,
    /// The sub-reason.
    pub sub: String,
}

#[derive(Deserialize)]
struct Summary {
    counter_hz: u64,
    exits_dropped: u64,
    lost: u64,
}

#[derive(Deserialize)]
struct Kind {
    event: String,
}

impl Input {
    /// Reads a file's text.
    ///
    /// # Errors
    /// It is no trace in JSON lines.
    pub fn parse(text: &str) -> Result<Self> {
        let mut input = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let at = || format!("line {number}");
            let kind: Kind = serde_json::from_str(line).with_context(at)?;
            match kind.event.as_str() {
                "exit" => input.exits.push(serde_json::from_str(line).with_context(at)?),
                "summary" => {
                    let summary: Summary = serde_json::from_str(line).with_context(at)?;
                    (input.hz, input.dropped, input.lost) = (summary.counter_hz, summary.exits_dropped, summary.lost);
                }
                _ => {}
            }
        }
        if input.hz == 0 {
            bail!("it has no summary: `stile trace --format json` writes one at the end");
        }
        Ok(input)
    }

    /// Nanoseconds of so many ticks.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        (u128::from(ticks) * 1_000_000_000 / u128::from(self.hz.max(1))) as u64
    }
}
