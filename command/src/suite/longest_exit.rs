//! The longest exit that a run's accounts name.

use stile::config::Arch;

/// Maximum number of instructions of an exit. It bounds an exit's part of the time for which a ready vCPU waits for its
/// CPU.
pub const BOUND: f64 = 200_000.0;

/// Instructions in a nanosecond of a machine with one CPU: with `--icount` on QEMU; on Bochs, whose counter ticks 100
/// million times a second.
const fn instructions(arch: Arch) -> f64 {
    match arch {
        Arch::Aarch64 => 1.0,
        Arch::X86_64 => 0.1,
    }
}

/// Reports a problem if the accounts on standard error have an exit that took longer than [`BOUND`], or none at all.
pub fn problem(arch: Arch, err: &str) -> Option<String> {
    let Some((row, longest)) = err.lines().filter_map(row).max_by(|(_, a), (_, b)| a.total_cmp(b)) else {
        return Some("standard error has no account".to_owned());
    };
    let longest = longest * instructions(arch);
    (longest > BOUND).then(|| format!("an exit took {longest:.0} instructions, and {BOUND} are allowed: {row}"))
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
        for (arch, most, more) in [(Arch::Aarch64, "200.00", "200.01"), (Arch::X86_64, "2000.00", "2000.10")] {
            assert_eq!(problem(arch, &ACCOUNT.replace("LONGEST", most)), None);
            assert!(problem(arch, &ACCOUNT.replace("LONGEST", more)).is_some_and(|problem| problem.contains("fetch")));
            assert!(problem(arch, "difference 0").is_some());
        }
    }
}
