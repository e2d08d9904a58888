//! Verdict on a round, from its consoles and its ledger.

use std::collections::BTreeMap;

use super::account::{Account, Longest};
use super::plan::{NEIGHBOUR, Round, SOAK};
use crate::exit;

/// Verdict on a round.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Operations, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// Operations.
    pub operations: u64,
    /// Exits.
    pub exits: u64,
    /// The longest exit, if virtual time was one CPU's own.
    pub longest: Option<Longest>,
    /// The neighbour's least share in thousandths, and its longest wait in microseconds, if reported.
    pub share: Option<(u64, u64)>,
    /// Faults found.
    pub problems: Vec<String>,
}

/// Lines of a console so far.
#[derive(Debug, Default)]
pub struct Consoles {
    /// Number of operations reported.
    pub operations: u64,
    kinds: BTreeMap<String, u64>,
    /// The attacking guest's own status, at its end.
    pub status: Option<u64>,
    share: Option<(u64, u64)>,
    failures: Vec<String>,
    /// Rounds of the neighbour's checksum.
    pub sums: u64,
}

impl Consoles {
    /// Takes a line that a VM printed.
    pub fn line(&mut self, name: &str, text: &str) {
        if text.starts_with("FAIL") || text.contains("unexpected") || text.contains("panicked") {
            self.failures.push(format!("{name}: {text}"));
        }
        match name {
            SOAK => self.attacker(text),
            // Later values may not be under attack.
            NEIGHBOUR if self.status.is_none() => self.neighbour(text),
            _ => {}
        }
    }

    fn attacker(&mut self, text: &str) {
        if let Some(status) = text.strip_prefix("EXIT: STATUS=") {
            self.status = Some(status.parse().unwrap_or(u64::MAX));
        }
        let words: Vec<&str> = text.split([' ', ',']).collect();
        match words[..] {
            ["soak:", "operations", count] | ["soak:", "done", "", "operations", count] => self.operations = count.parse().unwrap_or(0),
            ["soak:", "kind", name, count] => {
                self.kinds.insert(name.to_owned(), count.parse().unwrap_or(0));
            }
            _ => {}
        }
    }

    fn neighbour(&mut self, text: &str) {
        if text.starts_with("checksum: round") {
            self.sums += 1;
        }
        let words: Vec<&str> = text.split([' ', ',']).collect();
        if let ["checksum:", "share", share, "of", "1000", "", "longest", "wait", wait, "us"] = words[..]
            && let (Ok(share), Ok(wait)) = (share.parse::<u64>(), wait.parse::<u64>())
        {
            let (least, longest) = self.share.unwrap_or((u64::MAX, 0));
            self.share = Some((least.min(share), longest.max(wait)));
        }
    }
}

/// Judges a round by its exit status, its consoles and its events. `bound`: the most instructions that an exit may last.
pub fn judge(round: &Round, status: Option<i32>, consoles: &Consoles, events: &str, bound: u64) -> Outcome {
    let account = Account::read(events);
    let mut problems = consoles.failures.clone();
    match consoles.status {
        Some(0) => {}
        Some(status) => problems.push(format!("{SOAK} ended with status {status}")),
        None => problems.push(format!("{SOAK} did not come to its end")),
    }
    // The run is ended by a signal once the attacking guest is off.
    if status != Some(exit::LEFT.into()) {
        let status = status.map_or("a signal".to_owned(), |status| status.to_string());
        problems.push(format!("the run ended with {status}, expected {}", exit::LEFT));
    }
    if account.taken == 0 {
        problems.push("Stile sent no account of its exits".to_owned());
    } else if account.taken != account.counted {
        problems.push(format!("{} exits were taken, and rows of the ledger have {}", account.taken, account.counted));
    }
    if let Some((before, now)) = account.memory
        && before != now
    {
        problems.push(format!("{} bytes of Stile's memory were free at the start, {now} at the end", before));
    }
    let longest = account.longest(round.arch).filter(|_| round.is_timed());
    if let Some(longest) = &longest
        && longest.instructions > bound
    {
        problems.push(format!("an exit ({}) took {} instructions, more than {bound}", longest.row, longest.instructions));
    }
    let share = consoles.share.filter(|_| round.is_timed());
    if let Some((least, wait)) = share
        && least < round.least_share()
    {
        problems.push(format!("the neighbour had {least} of 1000 of its CPU, less than {}, and waited for {wait} us", round.least_share()));
    }
    Outcome { kinds: consoles.kinds.clone(), operations: consoles.operations, exits: account.taken, longest, share, problems }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Arch;

    fn round() -> Round {
        (0..).map(|seed| Round::new(Arch::Aarch64, seed, 100)).find(|round| round.is_timed() && round.least_share() == 250).unwrap()
    }

    fn consoles(lines: &str) -> Consoles {
        let mut consoles = Consoles::default();
        for (name, text) in lines.lines().filter_map(|line| line.split_once('|')) {
            consoles.line(name.trim(), text.trim());
        }
        consoles
    }

    const GOOD: &str = "\
        soak      | soak: operations 60\n\
        neighbour | checksum: share 480 of 1000, longest wait 5300 us\n\
        neighbour | checksum: share 410 of 1000, longest wait 6300 us\n\
        soak      | soak: kind devices 20\n\
        soak      | soak: done, operations 105\n\
        soak      | EXIT: STATUS=0\n\
        neighbour | checksum: share 1 of 1000, longest wait 99999 us\n";

    fn events(max: u64) -> String {
        let events = [
            json!({"CounterFrequency": {"hz": 62_500_000}}),
            json!({"LedgerRow": {"vm": 0, "vcpu": 0, "row": {"reason": "IRQ", "sub": "kick"}, "count": 7, "ticks": 100, "min": 1, "max": max}}),
            json!({"LedgerTotal": {"vm": 0, "vcpu": 0, "taken": 7, "counted": 7, "outside_ticks": 100, "alive_ticks": 1000}}),
        ];
        events.map(|event| json!({"seconds": 1.0, "event": event}).to_string()).join("\n")
    }

    #[test]
    fn a_good_round_has_no_problems() {
        let outcome = judge(&round(), Some(130), &consoles(GOOD), &events(50), 1000);
        assert_eq!(outcome.problems, Vec::<String>::new());
        assert_eq!((outcome.operations, outcome.exits, outcome.share), (105, 7, Some((410, 6300))));
        assert_eq!(outcome.kinds.get("devices"), Some(&20));
        // A tick of 16 ns: 50 ticks are 800 instructions.
        assert_eq!(outcome.longest, Some(Longest { instructions: 800, row: "IRQ kick".to_owned() }));
    }

    #[test]
    fn each_fault_is_a_problem() {
        let problems = |status, lines: &str, events: &str| judge(&round(), Some(status), &consoles(lines), events, 1000).problems;
        assert_eq!(problems(124, GOOD, &events(50)).len(), 1, "a time-out");
        assert_eq!(problems(130, GOOD, "").len(), 1, "no account");
        assert_eq!(problems(130, GOOD, &events(63)).len(), 1, "an exit of 1,008 instructions");
        assert_eq!(problems(130, &GOOD.replace("410", "240"), &events(50)).len(), 1, "a share of less than 250");
        assert_eq!(problems(130, &GOOD.replace("STATUS=0", "STATUS=2"), &events(50)).len(), 1, "a status");
        assert_eq!(problems(130, &format!("neighbour | FAIL checksum: changed\n{GOOD}"), &events(50)).len(), 1, "the neighbour's memory");
        assert_eq!(problems(101, "", "").len(), 3, "a panic at the start");
    }
}
