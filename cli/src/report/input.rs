//! The events of a trace in JSON lines.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A trace.
#[derive(Debug, Default)]
pub struct Input {
    /// By time.
    pub events: Vec<Event>,
    /// Ticks per second.
    pub hz: u64,
    /// Exits that found no room.
    pub dropped: u64,
    /// Records lost on the line.
    pub lost: u64,
}

/// An event.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Since the trace began.
    pub ns: i64,
    /// Duration in ticks.
    pub ticks: i64,
    /// The CPU.
    pub cpu: u16,
    /// The VM's name; empty if no vCPU was loaded.
    #[serde(default)]
    pub vm: String,
    /// The vCPU.
    #[serde(default)]
    pub vcpu: u8,
    /// Its kind.
    #[serde(flatten)]
    pub kind: Kind,
}

/// Kinds of events.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Kind {
    /// An exit.
    Exit(Exit),
    /// The vCPU that the scheduler chose is entered.
    Enter,
    /// The vCPU sent an interrupt to others.
    Ipi {
        /// The interrupt's number.
        interrupt: u32,
        /// The targets.
        targets: Vec<u8>,
        /// Arrivals at the targets.
        #[serde(default)]
        arrivals: Vec<Arrival>,
    },
    /// An interrupt became pending.
    Inject {
        /// The interrupt's number.
        interrupt: u32,
    },
    /// The timer of a vCPU that waits expired.
    Timer {
        /// The entry that follows.
        #[serde(default)]
        arrivals: Vec<Arrival>,
    },
    /// The CPU takes another one's request to reschedule.
    Kick {
        /// The other CPU.
        from_cpu: u16,
    },
    /// The CPU records from now on.
    Begin,
    /// The CPU stopped recording.
    End,
    /// A kind of a later version.
    #[serde(other)]
    Other,
}

/// An exit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Exit {
    /// Its duration.
    pub took_ticks: u64,
    /// The reason.
    pub reason: String,
    /// The sub-reason.
    pub sub: String,
    /// Reason of the scheduler's choice, if any.
    #[serde(default)]
    pub left_for: Option<String>,
}

/// The arrival of an interrupt at a vCPU.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Arrival {
    /// The vCPU.
    pub vcpu: u8,
    /// From the sender's exit to the target's entry.
    pub after_ticks: u64,
    /// Cause of the target's entry: `kick` or `scheduler`.
    pub via: String,
}

#[derive(Deserialize)]
struct Summary {
    counter_hz: u64,
    exits_dropped: u64,
    lost: u64,
}

#[derive(Deserialize)]
struct Tag {
    event: String,
}

impl Event {
    /// The event's exit.
    pub const fn exit(&self) -> Option<&Exit> {
        match &self.kind {
            Kind::Exit(exit) => Some(exit),
            _ => None,
        }
    }

    /// The VM's name and the number of the vCPU, if one was loaded.
    pub fn loaded(&self) -> Option<(&str, u8)> {
        (!self.vm.is_empty()).then_some((self.vm.as_str(), self.vcpu))
    }
}

impl Input {
    /// Reads a file's text.
    ///
    /// # Errors
    /// The input is not a trace in JSON lines.
    pub fn parse(text: &str) -> Result<Self> {
        let mut input = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let at = || format!("line {number}");
            let tag: Tag = serde_json::from_str(line).with_context(at)?;
            if tag.event == "summary" {
                let summary: Summary = serde_json::from_str(line).with_context(at)?;
                (input.hz, input.dropped, input.lost) = (summary.counter_hz, summary.exits_dropped, summary.lost);
            } else {
                input.events.push(serde_json::from_str(line).with_context(at)?);
            }
        }
        if input.hz == 0 {
            bail!("it has no summary: `stile trace --format json` writes one at the end");
        }
        // As they are written.
        input.events.sort_by_key(|event| event.ticks);
        Ok(input)
    }

    /// The exits, by time.
    pub fn exits(&self) -> impl Iterator<Item = (&Event, &Exit)> {
        self.events.iter().filter_map(|event| event.exit().map(|exit| (event, exit)))
    }

    /// Converts `ticks` to nanoseconds.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        (u128::from(ticks) * 1_000_000_000 / u128::from(self.hz.max(1))).try_into().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_refused() {
        for (text, why) in [("", "no summary"), ("{\"event\":\"exit\"}\n", "line 1"), ("binary\u{1}", "line 1")] {
            assert!(format!("{:#}", Input::parse(text).unwrap_err()).contains(why), "{text}");
        }
    }

    #[test]
    fn kinds_of_later_versions_are_allowed() {
        let text = "{\"event\":\"new\",\"ns\":1,\"ticks\":1,\"cpu\":0,\"x\":[]}\n{\"event\":\"summary\",\"counter_hz\":1,\"exits_dropped\":0,\"lost\":0}\n";
        assert_eq!(Input::parse(text).unwrap().events[0].kind, Kind::Other);
    }
}
