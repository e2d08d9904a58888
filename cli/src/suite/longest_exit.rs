//! The longest exit that a run's accounts name.

/// The most ticks, in nanoseconds, that an exit may take: with `--icount` on `-cpu max`, instructions. It bounds what an exit adds to the time for
/// which a vCPU that is ready waits for its CPU.
pub const BOUND: f64 = 200_000.0;

/// Reports a problem if the accounts on standard error have an exit that took longer than [`BOUND`], or none at all.
pub fn problem(err: &str) -> Option<String> {
    let Some((row, longest)) = err.lines().filter_map(row).max_by(|(_, a), (_, b)| a.total_cmp(b)) else {
        return Some("standard error has no account".to_owned());
    };
    (longest > BOUND).then(|| format!("an exit took {longest} ns, and {BOUND} are allowed: {row}"))
}

/// A row of an account, and its column "Max Time" in nanoseconds: name, samples, two shares, least, most and average time.
fn row(line: &str) -> Option<(&str, f64)> {
    let mut columns = line.split_whitespace().rev();
    let mut time = || columns.next()?.strip_suffix("us")?.parse::<f64>().ok();
    let (_average, most, _least) = (time()?, time()?, time()?);
    Some((line.trim(), most * 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: &str = "VM-EXIT            Samples Samples%  Time% Min Time   Max Time   Avg time\n\
        FAULT                    8    0.01% 11.26%  1.02us  88.15us  44.90us\n  fetch                  4    0.01%  7.00%  1.02us  LONGESTus  44.90us\n\
        outside the guest 23924.86us of 1637402.59us, 1.46%\n";

    #[test]
    fn the_longest_exit_of_an_account_is_held_against_the_bound() {
        assert_eq!(problem(&ACCOUNT.replace("LONGEST", "200.00")), None);
        assert!(problem(&ACCOUNT.replace("LONGEST", "200.01")).is_some_and(|problem| problem.contains("fetch")));
        assert!(problem("difference 0").is_some());
    }
}
