//! `stile test`: the whole test suite.
//!
//! [`checks`] run first, one at a time. Then several tests run at a time: those of the host ([`host_tests`]),
//! measurements, and the scenarios ([`table`]), each of which is a separate `stile run`, as a user would start it.

mod checks;
mod client;
mod devices;
mod direct;
mod disk;
mod figure;
mod firmware;
mod guests;
mod host_tests;
mod ipi;
mod long;
mod longest_exit;
mod native;
mod nested;
mod nested_pc;
mod operated;
mod operator;
mod output;
mod pc;
mod scenario;
mod screen;
mod served;
mod share;
mod snapshots;
mod start_up;
mod system_disk;
mod table;
mod test;
mod traced;
mod variants;
mod waits;

use std::num::NonZero;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::Result;

use stile::args::TestArgs;
use stile::config::Arch;
use stile::out::Unwritable;
use stile::programs::Programs;
use stile::{emulator, exit, out, soak};
use stile_bench::{budgets, nested as nested_bench, scale};
use test::Test;

/// All tests that need an emulator, with the guests for Arm and for the PC.
///
/// Tests that are not scenarios come first: the longest are among them, and a worker that begins one of those last would
/// leave the others idle.
///
/// # Errors
/// A guest is missing.
fn emulated([arm, pc]: &[Programs; 2]) -> Result<Vec<Test>> {
    let mut tests = vec![
        Test::new(system_disk::NAME, Arch::Aarch64, system_disk::test),
        Test::new(scale::budgets::TEST, Arch::Aarch64, scale::budgets::test),
        Test::new(nested_bench::pc::budgets::TEST, Arch::X86_64, nested_bench::pc::budgets::test),
    ];
    tests.extend(budgets::TESTS.map(|(name, arch)| Test::new(name, arch, move || budgets::test(arch))));
    tests.extend(nested_bench::budgets::TESTS.map(|(name, l1)| Test::new(name, Arch::Aarch64, move || nested_bench::budgets::test(l1))));
    tests.extend(native::TESTS.map(|(name, program, cpu)| Test::new(name, Arch::X86_64, move || native::test(program, cpu))));
    tests.extend(soak::SHORT.map(|round| Test::new(round.name, round.arch, move || round.run())));
    tests.extend(long::TESTS.map(|(name, test)| Test::new(name, Arch::Aarch64, test)));
    tests.extend(table::all(arm, pc)?);
    Ok(tests)
}

/// Numbers of tests by outcome.
#[derive(Debug, Default)]
struct Count {
    passed: usize,
    failed: Vec<String>,
}

impl Count {
    /// Counts a test that ended, and shows its result.
    fn add(&mut self, name: &str, start: Instant, result: Result<(), String>) -> Result<(), Unwritable> {
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                self.passed += 1;
                out::line(format_args!("test {name} ... ok ({seconds:.1} s)"))
            }
            Err(report) => {
                self.failed.push(name.to_owned());
                out::line(format_args!("test {name} ... FAILED ({seconds:.1} s)"))?;
                report.lines().try_for_each(|line| out::line(format_args!("    {line}")))
            }
        }
    }
}

/// Runs or lists the tests. The status is [`exit::FAILURE`] if one failed, or if none was chosen.
///
/// # Errors
/// Preparation fails: a program is missing, or the guests do not compile.
pub fn test(args: &TestArgs) -> Result<u8> {
    let chosen = |name: &str| args.only.is_empty() || args.only.iter().any(|pattern| matches(pattern, name));
    let checks: Vec<_> = checks::all().into_iter().filter(|check| chosen(check.name)).collect();
    // Long tests run only if they are named.
    let named = |name: &str| !name.starts_with(long::PREFIX) || args.only.iter().any(|pattern| pattern.starts_with(long::PREFIX));
    // Other tests cover the subject of a variant.
    let needed = |name: &str| args.all || !args.only.is_empty() || !variants::NAMES.contains(&name);
    let mut tests = emulated(&Arch::ALL.map(Programs::unbuilt))?;
    let wanted = |test: &Test| chosen(&test.name) && named(&test.name) && needed(&test.name);
    tests.retain(wanted);
    let has_units = args.only.is_empty() || args.only.iter().any(|pattern| matches(pattern, host_tests::NAME) || is_unit(pattern));
    if args.list {
        let unit = has_units.then_some(host_tests::NAME);
        checks.iter().map(|check| check.name).chain(unit).chain(tests.iter().map(|test| test.name.as_str())).try_for_each(out::line)?;
        return Ok(exit::OK);
    }
    let mut count = Count::default();
    for check in checks {
        let start = Instant::now();
        out::line(format_args!("running {}", check.name))?;
        count.add(check.name, start, check.run())?;
    }
    let mut units = Vec::new();
    if has_units {
        let start = Instant::now();
        out::line(format_args!("running {}", host_tests::NAME))?;
        let built = host_tests::build();
        count.add(host_tests::NAME, start, built.as_ref().map(|_| ()).map_err(String::clone))?;
        units = built.unwrap_or_default();
        units.retain(|test| chosen(&test.name));
    }
    // Here, as what must be built first would use up the time of the tests that wait for it.
    let [arm, pc] = Arch::ALL.map(|arch| {
        if tests.iter().all(|test| test.arch != Some(arch)) {
            return Ok(Programs::unbuilt(arch));
        }
        emulator::ensure(arch)?;
        Programs::build(arch)
    });
    tests = emulated(&[arm?, pc?])?;
    tests.retain(wanted);
    units.extend(tests);
    let jobs = args.jobs.map_or_else(|| thread::available_parallelism().map_or(1, NonZero::get) + 1, usize::from);
    run(units, jobs, &mut count)?;
    for name in &count.failed {
        out::line(format_args!("failed: {name}"))?;
    }
    out::line(format_args!("\n{} passed, {} failed", count.passed, count.failed.len()))?;
    Ok(if count.failed.is_empty() && count.passed > 0 { exit::OK } else { exit::FAILURE })
}

/// Tests that wait for most of their time. They run beside the others.
const WAITING: [&str; 2] = ["command/timeout", "life/idle-until-timeout"];

/// Runs tests, `jobs` at a time, and one more of those that wait.
///
/// # Errors
/// Standard output can't be written: no further test starts then.
fn run(tests: Vec<Test>, jobs: usize, count: &mut Count) -> Result<(), Unwritable> {
    if !tests.is_empty() {
        out::line(format_args!("running {} tests, {jobs} at a time", tests.len()))?;
    }
    let (waiting, busy): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| WAITING.contains(&test.name.as_str()));
    let queues = [waiting, busy].map(|tests| Mutex::new(tests.into_iter()));
    let state = Mutex::new((count, Ok(())));
    // A poisoned lock means that another worker panicked: the scope will panic, too.
    let work = |queue: &Mutex<std::vec::IntoIter<Test>>| {
        while let Some(test) = queue.lock().ok().and_then(|mut queue| queue.next()) {
            let start = Instant::now();
            let result = test.run();
            let Ok(mut state) = state.lock() else { return };
            let (count, shown) = &mut *state;
            if shown.is_ok() {
                *shown = count.add(&test.name, start, result);
            }
            if shown.is_err() {
                return;
            }
        }
    };
    let [waiting, busy] = &queues;
    thread::scope(|scope| {
        scope.spawn(|| work(waiting));
        for _ in 0..jobs {
            scope.spawn(|| work(busy));
        }
    });
    state.into_inner().map_or(Ok(()), |(_, shown)| shown)
}

/// Whether a pattern is for host tests alone.
fn is_unit(pattern: &str) -> bool {
    pattern.strip_prefix(host_tests::NAME).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether `name` contains `pattern`, in which `*` matches any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut rest = name;
    pattern.split('*').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::{Arch, Programs, WAITING, emulated, matches, variants};

    #[test]
    fn patterns_match_anywhere() {
        assert!(matches("boot", "boot/debian/max"));
        assert!(matches("boot*max", "boot/debian/max"));
        assert!(matches("debian:6.1/", "boot/debian:6.1/max"));
        assert!(!matches("max*boot", "boot/debian/max"));
    }

    #[test]
    fn names_are_unique() {
        let mut names = names();
        names.extend(super::checks::all().iter().map(|check| check.name.to_owned()));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn lists_name_tests() {
        let names = names();
        for name in variants::NAMES.into_iter().chain(WAITING) {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
    }

    fn names() -> Vec<String> {
        let tests = emulated(&Arch::ALL.map(Programs::unbuilt)).unwrap();
        tests.into_iter().map(|test| test.name).collect()
    }
}
