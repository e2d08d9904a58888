//! Latencies from an interrupt's cause to the entry of the vCPU that handles it.

use std::collections::BTreeMap;

use super::input::{Event, Input, Kind};

/// Exits for a timer of the loaded vCPU's own.
const TIMER_EXITS: [&str; 4] = ["virtual timer", "physical timer", "timer of its EL2", "guest's timer"];

/// The latencies of a trace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// By cause: ticks, ascending.
    pub of: BTreeMap<Cause, Vec<u64>>,
    /// Interrupts to a vCPU whose arrival is not in the trace.
    pub unseen: u64,
}

/// Source of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// An interrupt of another vCPU; the target ran, and was kicked.
    Kicked,
    /// An interrupt of another vCPU; the scheduler chose the target.
    Scheduled,
    /// The timer of the vCPU that runs.
    Timer,
    /// The timer of a vCPU that waits.
    WaitingTimer,
}

impl Cause {
    /// Its name in the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kicked => "IPI to a vCPU that runs (kick)",
            Self::Scheduled => "IPI to a vCPU that waits",
            Self::Timer => "Timer of the vCPU that runs",
            Self::WaitingTimer => "Timer of a vCPU that waits",
        }
    }
}

/// A vCPU, by its VM's name and number.
type Vcpu<'i> = (&'i str, u8);

/// The state at an event.
#[derive(Default)]
struct State<'i> {
    /// Timers of vCPUs that were left before their entry: when they expired.
    expired: BTreeMap<Vcpu<'i>, i64>,
    found: Latencies,
}

impl Latencies {
    /// Latencies of a trace.
    pub fn of(input: &Input) -> Self {
        let mut state = State::default();
        input.events.iter().for_each(|event| state.pass(event));
        state.found.of.values_mut().for_each(|ticks| ticks.sort_unstable());
        state.found
    }
}

impl<'i> State<'i> {
    fn pass(&mut self, event: &'i Event) {
        let vcpu = event.loaded();
        match &event.kind {
            Kind::Exit(exit) => {
                let Some(vcpu) = vcpu else { return };
                let is_timer = matches!(exit.reason.as_str(), "IRQ" | "INTERRUPT") && TIMER_EXITS.contains(&exit.sub.as_str());
                match &exit.left_for {
                    None if is_timer => self.found(Cause::Timer, exit.took_ticks),
                    Some(_) if is_timer => _ = self.expired.insert(vcpu, event.ticks),
                    _ => {}
                }
            }
            Kind::Enter => {
                if let Some(at) = vcpu.and_then(|vcpu| self.expired.remove(&vcpu)) {
                    self.found(Cause::Timer, event.ticks.saturating_sub(at).max(0).cast_unsigned());
                }
            }
            Kind::Timer { arrivals } => arrivals.iter().for_each(|arrival| self.found(Cause::WaitingTimer, arrival.after_ticks)),
            Kind::Ipi { targets, arrivals, .. } => {
                for arrival in arrivals {
                    let cause = if arrival.via == "kick" { Cause::Kicked } else { Cause::Scheduled };
                    self.found(cause, arrival.after_ticks);
                }
                // An interrupt to the sender itself has no latency.
                let others = targets.iter().filter(|target| **target != event.vcpu).count();
                self.found.unseen += others.saturating_sub(arrivals.len()) as u64;
            }
            Kind::Inject { .. } | Kind::Kick { .. } | Kind::Begin | Kind::End | Kind::Other => {}
        }
    }

    fn found(&mut self, cause: Cause, ticks: u64) {
        self.found.of.entry(cause).or_default().push(ticks);
    }
}

/// Returns the smallest of the ascending values that at least `per_mille` of them do not exceed.
pub fn percentile(ascending: &[u64], per_mille: u64) -> u64 {
    let rank = (ascending.len() as u64).saturating_mul(per_mille).div_ceil(1000).max(1);
    ascending.get(rank as usize - 1).or(ascending.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUMMARY: &str = "{\"event\":\"summary\",\"counter_hz\":1000,\"exits_dropped\":0,\"lost\":0}\n";

    fn of(lines: &[&str]) -> Latencies {
        let text: String =
            lines.iter().map(|line| line.replace("{t", "{\"vm\":\"a\",\"ns\":0,\"ticks\"").replace('\'', "\"") + "\n").collect();
        Latencies::of(&Input::parse(&(text + SUMMARY)).unwrap())
    }

    #[test]
    fn interrupts_between_vcpus_go_by_how_the_target_came_to_its_entry() {
        let found = of(&[
            "{t:1,'cpu':0,'vcpu':0,'event':'ipi','interrupt':3,'targets':[0,1,2,3],'arrivals':[{'vcpu':1,'after_ticks':9,'via':'kick'},{'vcpu':2,'after_ticks':4,'via':'scheduler'}]}",
            "{t:2,'cpu':0,'vcpu':0,'event':'ipi','interrupt':3,'targets':[1],'arrivals':[{'vcpu':1,'after_ticks':5,'via':'kick'}]}",
            // Traces of earlier versions have no arrivals.
            "{t:3,'cpu':0,'vcpu':0,'event':'ipi','interrupt':3,'targets':[1]}",
        ]);
        assert_eq!(found, Latencies { of: [(Cause::Kicked, vec![5, 9]), (Cause::Scheduled, vec![4])].into(), unseen: 2 });
    }

    #[test]
    fn a_running_vcpus_timer_ends_with_its_entry() {
        let found = of(&[
            "{t:10,'cpu':0,'vcpu':0,'event':'exit','reason':'IRQ','sub':'virtual timer','took_ticks':7,'left_for':null}",
            // The same text with another meaning.
            "{t:20,'cpu':0,'vcpu':0,'event':'exit','reason':'SYSREG','sub':'virtual timer','took_ticks':99,'left_for':null}",
            // Left, and entered on another CPU.
            "{t:30,'cpu':0,'vcpu':0,'event':'exit','reason':'INTERRUPT','sub':'guest\\u0027s timer','took_ticks':3,'left_for':'reschedule'}",
            "{t:40,'cpu':0,'vcpu':1,'event':'enter'}",
            "{t:50,'cpu':1,'vcpu':0,'event':'enter'}",
        ]);
        assert_eq!(found.of, [(Cause::Timer, vec![7, 20])].into());
    }

    #[test]
    fn a_waiting_vcpus_timer_leads_to_its_entry() {
        let timer = "{t:20,'cpu':0,'vcpu':1,'event':'timer','arrivals':[{'vcpu':1,'after_ticks':6,'via':'scheduler'}]}";
        assert_eq!(of(&[timer]).of, [(Cause::WaitingTimer, vec![6])].into());
    }

    proptest! {
        #[test]
        fn percentiles_are_values_with_as_many_below(mut values in proptest::collection::vec(0..1000_u64, 1..50), per_mille in 1..1001_u64) {
            values.sort_unstable();
            let found = percentile(&values, per_mille);
            let at_most = |limit: u64| values.iter().filter(|value| **value <= limit).count() as u64 * 1000;
            let wanted = values.len() as u64 * per_mille;
            prop_assert!(values.contains(&found) && at_most(found) >= wanted);
            prop_assert!(values.iter().filter(|value| **value < found).all(|below| at_most(*below) < wanted));
        }
    }
}
