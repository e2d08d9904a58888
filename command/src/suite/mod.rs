//! `stile test`: the whole test suite.
//!
//! [`checks`] need no emulator and run first, then the scenarios ([`table`]). Each scenario is a separate `stile run`,
//! as a user would start it.

mod checks;
mod devices;
mod direct;
mod disk;
mod firmware;
mod guests;
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
mod snapshots;
mod system_disk;
mod table;
mod traced;

use std::sync::Mutex;
use std::time::Instant;

use anyhow::Result;

use stile::args::TestArgs;
use stile::config::Arch;
use stile::out::Unwritable;
use stile::{emulator, exit, out, soak};
use stile_bench::{budgets, nested as nested_bench, scale};

use scenario::Scenario;

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
    let scenarios: Vec<_> = table::all()?.into_iter().filter(|scenario| chosen(&scenario.name) && named(&scenario.name)).collect();
    let system_disk = Some(system_disk::NAME).filter(|name| chosen(name));
    let budgets: Vec<_> = budgets::TESTS.into_iter().filter(|(name, _)| chosen(name)).collect();
    let at_scale = Some(scale::budgets::TEST).filter(|name| chosen(name));
    let nested: Vec<_> = nested_bench::budgets::TESTS.into_iter().filter(|(name, _)| chosen(name)).collect();
    let nested_pc = Some(nested_bench::pc::budgets::TEST).filter(|name| chosen(name));
    let natives: Vec<_> = native::TESTS.into_iter().filter(|(name, ..)| chosen(name)).collect();
    let longs: Vec<_> = long::TESTS.into_iter().filter(|(name, _)| chosen(name) && named(name)).collect();
    let soaks: Vec<_> = soak::TESTS.into_iter().filter(|(name, ..)| chosen(name)).collect();
    if args.list {
        checks
            .iter()
            .map(|check| check.name)
            .chain(scenarios.iter().map(|scenario| scenario.name.as_str()))
            .chain(system_disk)
            .chain(budgets.iter().map(|(name, _)| *name))
            .chain(at_scale)
            .chain(nested.iter().map(|(name, _)| *name))
            .chain(nested_pc)
            .chain(natives.iter().map(|(name, ..)| *name))
            .chain(soaks.iter().map(|(name, ..)| *name))
            .chain(longs.iter().map(|(name, _)| *name))
            .try_for_each(out::line)?;
        return Ok(exit::OK);
    }
    let mut count = Count::default();
    for check in checks {
        let start = Instant::now();
        out::line(format_args!("running {}", check.name))?;
        count.add(check.name, start, check.run())?;
    }
    if !scenarios.is_empty() {
        // Here, as an emulator that must be built first would use up the time of the scenarios that wait for it.
        for arch in Arch::ALL.into_iter().filter(|&arch| scenarios.iter().any(|scenario| scenario.arch() == arch)) {
            emulator::ensure(arch)?;
        }
        run_scenarios(&scenarios, usize::from(args.jobs), &mut count)?;
    }
    if let Some(name) = system_disk {
        let start = Instant::now();
        out::line(format_args!("running {name}"))?;
        count.add(name, start, system_disk::test())?;
    }
    for (name, arch) in budgets {
        let start = Instant::now();
        out::line(format_args!("running {name}"))?;
        count.add(name, start, budgets::test(arch))?;
    }
    if let Some(name) = at_scale {
        let start = Instant::now();
        out::line(format_args!("running {name}"))?;
        count.add(name, start, scale::budgets::test())?;
    }
    for (name, l1) in nested {
        let start = Instant::now();
        out::line(format_args!("running {name}"))?;
        count.add(name, start, nested_bench::budgets::test(l1))?;
    }
    if let Some(name) = nested_pc {
        let start = Instant::now();
        out::line(format_args!("running {name}"))?;
        count.add(name, start, nested_bench::pc::budgets::test())?;
    }
    for (name, program, cpu) in natives {
        let start = Instant::now();
        out::line(format_args!("running {name}"))?;
        count.add(name, start, native::test(program, cpu))?;
    }
    for (name, arch, nested) in soaks {
        let start = Instant::now();
        out::line(format_args!("running {name}"))?;
        count.add(name, start, soak::test(arch, nested))?;
    }
    for (name, test) in longs {
        let start = Instant::now();
        out::line(format_args!("running {name}"))?;
        count.add(name, start, test())?;
    }
    for name in &count.failed {
        out::line(format_args!("failed: {name}"))?;
    }
    out::line(format_args!("\n{} passed, {} failed", count.passed, count.failed.len()))?;
    Ok(if count.failed.is_empty() && count.passed > 0 { exit::OK } else { exit::FAILURE })
}

/// Runs scenarios, `jobs` at a time.
///
/// # Errors
/// Standard output can't be written: no further scenario starts then.
fn run_scenarios(scenarios: &[Scenario], jobs: usize, count: &mut Count) -> Result<(), Unwritable> {
    out::line(format_args!("running {} scenarios in the emulator, {jobs} at a time", scenarios.len()))?;
    let next = Mutex::new(scenarios.iter());
    let state = Mutex::new((count, Ok(())));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                // A poisoned lock means that another worker panicked: the scope will panic, too.
                while let Some(scenario) = next.lock().ok().and_then(|mut next| next.next()) {
                    let start = Instant::now();
                    let result = scenario.run();
                    let Ok(mut state) = state.lock() else { return };
                    let (count, shown) = &mut *state;
                    if shown.is_ok() {
                        *shown = count.add(&scenario.name, start, result);
                    }
                    if shown.is_err() {
                        return;
                    }
                }
            });
        }
    });
    state.into_inner().map_or(Ok(()), |(_, shown)| shown)
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
    use super::matches;

    #[test]
    fn patterns_match_anywhere() {
        assert!(matches("boot", "boot/debian/max"));
        assert!(matches("boot*max", "boot/debian/max"));
        assert!(matches("debian:6.1/", "boot/debian:6.1/max"));
        assert!(!matches("max*boot", "boot/debian/max"));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = super::table::without_guests().into_iter().map(|scenario| scenario.name).collect();
        names.extend(super::checks::all().iter().map(|check| check.name.to_owned()));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
