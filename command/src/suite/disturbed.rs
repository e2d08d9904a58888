//! Limit of the messages of other VMs' PCI functions that interrupt a VM, by its account: a number in each of its time slices.

/// Free misses of a VM's functions in a time slice, as in `crates/pci/src/misses.rs`.
const FREE: u64 = 64;

/// A VM on a CPU that functions of another VM interrupt.
#[derive(Debug, Clone, Copy)]
pub struct Disturbed {
    /// Its name.
    pub vm: &'static str,
    /// Number of the functions' vectors.
    pub vectors: u64,
}

impl Disturbed {
    /// Reports a problem if more messages interrupted the VM than the limit allows, or if standard error has no account of it.
    pub fn problem(self, err: &str) -> Option<String> {
        let heading = format!("exits of {}", self.vm);
        let account = || err.lines().skip_while(|line| *line != heading).take_while(|line| !line.starts_with("exits counted"));
        let samples = |name: &str| {
            let row = |line: &str| line.trim_start().strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok();
            account().find_map(row).unwrap_or(0)
        };
        if account().next().is_none() {
            return Some(format!("standard error has no account of {}", self.vm));
        }
        // All slices but the last end by the timer or a kick. The limit's periods begin at any time in a slice: two overlap each slice.
        let slices = samples("slice or deadline") + samples("kick") + 1;
        let most = 2 * slices * (FREE + 1 + self.vectors);
        let messages = samples("function's message");
        (messages > most).then(|| format!("{messages} messages interrupted {}, which had {slices} slices: {most} are allowed", self.vm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: &str = "exits of attacker\n  function's message   99999   2.61%  9.88%   6.88us 62.10us 20.31us\n\
        exits counted 99999, exits taken 99999, difference 0\n\nexits of neighbour\nINTERRUPT   517    2.78% 10.01%  6.88us 62.10us 190.73us\n\
        \u{20} function's message   MESSAGES   2.61%  9.88%   6.88us 62.10us 20.31us\n\
        \u{20} slice or deadline   2   0.16%  0.10%     7.60us   171.34us    33.96us\n\
        exits counted 18599, exits taken 18599, difference 0\n";

    #[test]
    fn messages_are_held_against_the_number_of_slices() {
        let disturbed = Disturbed { vm: "neighbour", vectors: 31 };
        // 3 slices, 96 messages in each of twice as many periods.
        for (messages, is_problem) in [("0", false), ("576", false), ("577", true)] {
            assert_eq!(disturbed.problem(&ACCOUNT.replace("MESSAGES", messages)).is_some(), is_problem, "{messages}");
        }
        assert!(Disturbed { vm: "other", vectors: 31 }.problem(ACCOUNT).is_some());
    }
}
