//! `stile test`: the whole test suite.
//!
//! [`checks`] need no emulator and run first. Then several tests run at a time: measurements, and the scenarios
//! ([`table`]), each of which is a separate `stile run`, as a user would start it.

mod checks;
mod devices;
mod direct;
mod disk;
mod figure;
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
mod share;
mod snapshots;
mod start_up;
mod system_disk;
mod table;
mod traced;
mod variants;
mod waits;

use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail};

use stile::args::TestArgs;
use stile::config::Arch;
use stile::out::Unwritable;
use stile::{emulator, exit, out, soak};
use stile_bench::{budgets, nested as nested_bench, scale};

/// A test that needs an emulator.
struct Test {
    name: String,
    /// The architecture whose emulator it needs.
    arch: Arch,
    run: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

impl Test {
    fn new(name: &str, arch: Arch, run: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { name: name.to_owned(), arch, run: Box::new(run) }
    }
}

/// All tests that need an emulator. Builds the test guests.
///
/// Tests that are not scenarios come first: the longest are among them, and a worker that begins one of those last would
/// leave the others idle.
fn emulated() -> Result<Vec<Test>> {
    let mut tests = vec![
        Test::new(system_disk::NAME, Arch::Aarch64, system_disk::test),
        Test::new(scale::budgets::TEST, Arch::Aarch64, scale::budgets::test),
        Test::new(nested_bench::pc::budgets::TEST, Arch::X86_64, nested_bench::pc::budgets::test),
    ];
    tests.extend(budgets::TESTS.map(|(name, arch)| Test::new(name, arch, move || budgets::test(arch))));
    tests.extend(nested_bench::budgets::TESTS.map(|(name, l1)| Test::new(name, Arch::Aarch64, move || nested_bench::budgets::test(l1))));
    tests.extend(native::TESTS.map(|(name, program, cpu)| Test::new(name, Arch::X86_64, move || native::test(program, cpu))));
    tests.extend(soak::TESTS.map(|(name, arch, nested)| Test::new(name, arch, move || soak::test(arch, nested))));
    tests.extend(long::TESTS.map(|(name, test)| Test::new(name, Arch::Aarch64, test)));
    tests.extend(table::all()?.into_iter().map(|scenario| Test {
        name: scenario.name.clone(),
        arch: scenario.arch(),
        run: Box::new(move || scenario.run()),
    }));
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
    let mut tests = emulated()?;
    if let Some(name) = variants::NAMES.into_iter().find(|name| tests.iter().all(|test| test.name != *name)) {
        bail!("variants.rs has {name}, which is no test");
    }
    tests.retain(|test| chosen(&test.name) && named(&test.name) && needed(&test.name));
    if args.list {
        checks.iter().map(|check| check.name).chain(tests.iter().map(|test| test.name.as_str())).try_for_each(out::line)?;
        return Ok(exit::OK);
    }
    let mut count = Count::default();
    for check in checks {
        let start = Instant::now();
        out::line(format_args!("running {}", check.name))?;
        count.add(check.name, start, check.run())?;
    }
    if !tests.is_empty() {
        // Here, as an emulator that must be built first would use up the time of the tests that wait for it.
        for arch in Arch::ALL.into_iter().filter(|&arch| tests.iter().any(|test| test.arch == arch)) {
            emulator::ensure(arch)?;
        }
        run(&tests, usize::from(args.jobs), &mut count)?;
    }
    for name in &count.failed {
        out::line(format_args!("failed: {name}"))?;
    }
    out::line(format_args!("\n{} passed, {} failed", count.passed, count.failed.len()))?;
    Ok(if count.failed.is_empty() && count.passed > 0 { exit::OK } else { exit::FAILURE })
}

/// Runs tests, `jobs` at a time.
///
/// # Errors
/// Standard output can't be written: no further test starts then.
fn run(tests: &[Test], jobs: usize, count: &mut Count) -> Result<(), Unwritable> {
    out::line(format_args!("running {} tests in emulators, {jobs} at a time", tests.len()))?;
    let next = Mutex::new(tests.iter());
    let state = Mutex::new((count, Ok(())));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                // A poisoned lock means that another worker panicked: the scope will panic, too.
                while let Some(test) = next.lock().ok().and_then(|mut next| next.next()) {
                    let start = Instant::now();
                    let result = (test.run)();
                    let Ok(mut state) = state.lock() else { return };
                    let (count, shown) = &mut *state;
                    if shown.is_ok() {
                        *shown = count.add(&test.name, start, result);
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
