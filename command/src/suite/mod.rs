//! `stile test`: the whole test suite.
//!
//! One thread checks formatting, builds what the others need, and then makes cargo's [`checks`] and builds the tests of
//! the host ([`host_tests`]), one after the other. Beside it several tests run at a time ([`run`]): measurements, the
//! scenarios ([`table`]), each of which is a separate `stile run`, as a user would start it, and those of the host.

mod amd;
mod amd_devices;
mod bench_stick;
mod boards;
mod broken_tables;
mod broken_tables_arm;
mod broken_tables_uefi;
mod broken_trees;
mod browser;
mod checks;
mod client;
mod counted;
mod debugger;
mod devices;
mod direct;
mod disk;
mod disturbed;
mod early_refusal;
mod ext4;
mod figure;
mod firmware;
mod firmware_pc;
mod function_cost;
mod gicv2;
mod grub;
mod guests;
mod host_tests;
mod http_boot;
mod installer;
mod ipi;
mod kexec;
mod long;
mod longest_exit;
mod media;
mod memory_disk;
mod native;
mod nested;
mod nested_pc;
mod operated;
mod operator;
mod output;
mod pc;
mod pc_start;
mod reconfigured;
mod report_in_browser;
mod run;
mod scenario;
mod screen;
mod secure_sgis;
mod served;
mod served_console;
mod served_host_sockets;
mod served_pc;
mod served_share;
mod share;
mod shared_folder;
mod sixteen;
mod slowdown;
mod snapshots;
mod stall;
mod start_up;
mod starved;
mod switches;
mod system_disk;
mod table;
mod test;
mod thinned_trees;
mod together;
mod topology;
mod traced;
mod u_boot;
mod variants;
mod waits;

use std::num::NonZero;
use std::thread;

use anyhow::Result;

use run::{Form, Run};
use stile::args::TestArgs;
use stile::config::Arch;
use stile::programs::Programs;
use stile::{emulator, exit, out, soak};
use stile_bench::{budgets, io, nested as nested_bench, scale};
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
        Test::new(installer::NAME, Arch::Aarch64, installer::test),
        Test::new(shared_folder::NAME, Arch::Aarch64, shared_folder::test),
        Test::new(served_console::NAME, Arch::Aarch64, served_console::test),
        Test::new(served_console::NAME_ON_PC, Arch::X86_64, served_console::test_on_pc),
        Test::new(served_host_sockets::NAME, Arch::Aarch64, served_host_sockets::test),
        Test::new(served_share::NAME, Arch::Aarch64, served_share::test),
        Test::new(served_share::NAME_ON_PC, Arch::X86_64, served_share::test_on_pc),
        Test::new(function_cost::NAME, Arch::X86_64, function_cost::test),
        Test::new(scale::budgets::TEST, Arch::Aarch64, scale::budgets::test),
        Test::new(io::budgets::TEST, Arch::Aarch64, io::budgets::test),
        Test::new(nested_bench::pc::budgets::TEST, Arch::X86_64, nested_bench::pc::budgets::test),
    ];
    tests.extend(system_disk::TESTS.map(|(name, arch, test)| Test::new(name, arch, test)));
    tests.extend(budgets::TESTS.map(|(name, platform, gic)| Test::new(name, platform.arch, move || budgets::test(platform, gic))));
    tests.extend(nested_bench::budgets::TESTS.map(|(name, l1)| Test::new(name, Arch::Aarch64, move || nested_bench::budgets::test(l1))));
    tests.extend(native::TESTS.map(|(name, program, cpu)| Test::new(name, Arch::X86_64, move || native::test(program, cpu))));
    let in_words = |test: firmware_pc::Run| move || test().map_err(|error| format!("{error:#}"));
    tests.extend(firmware_pc::TESTS.map(|(name, test)| Test::new(name, Arch::X86_64, in_words(test))));
    tests.extend(pc_start::TESTS.map(|(name, test)| Test::new(name, Arch::X86_64, in_words(test))));
    tests.extend(media::TESTS.map(|(name, arch, test)| Test::new(name, arch, in_words(test))));
    tests.extend(bench_stick::TESTS.map(|(name, arch, test)| Test::new(name, arch, in_words(test))));
    tests.extend(reconfigured::TESTS.map(|(name, arch, test)| Test::new(name, arch, in_words(test))));
    tests.push(Test::new(starved::NAME, Arch::X86_64, in_words(starved::test)));
    tests.push(Test::new(broken_tables::NAME, Arch::X86_64, broken_tables::test));
    tests.push(Test::new(broken_tables_arm::NAME, Arch::Aarch64, broken_tables_arm::test));
    tests.push(Test::new(broken_tables_uefi::NAME, Arch::X86_64, in_words(broken_tables_uefi::test)));
    tests.push(Test::new(thinned_trees::NAME, Arch::Aarch64, thinned_trees::test));
    tests.extend(broken_trees::all(arm)?);
    tests.extend(boards::TESTS.map(|(name, test)| Test::new(name, Arch::Aarch64, in_words(test))));
    let (name, test) = secure_sgis::TEST;
    tests.push(Test::new(name, Arch::Aarch64, in_words(test)));
    let (name, test) = early_refusal::TEST;
    tests.push(Test::new(name, Arch::Aarch64, in_words(test)));
    let (name, test) = u_boot::TEST;
    tests.push(Test::new(name, Arch::Aarch64, in_words(test)));
    tests.extend(soak::SHORT.map(|round| Test::new(round.name, round.arch, move || round.run())));
    tests.extend(long::TESTS.map(|(name, test)| Test::new(name, Arch::Aarch64, test)));
    tests.extend(long::TESTS_ON_PC.map(|(name, test)| Test::new(name, Arch::X86_64, test)));
    tests.extend(table::all(arm, pc)?);
    Ok(tests)
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
        if checks.is_empty() && unit.is_none() && tests.is_empty() {
            return Err(exit::usage(format!("no test has a name like {}", args.only.join(", "))));
        }
        let mut names = checks.iter().map(|check| check.name).chain(unit).chain(tests.iter().map(|test| test.name.as_str()));
        if args.json {
            out::json(&names.collect::<Vec<_>>())?;
        } else {
            names.try_for_each(out::line)?;
        }
        return Ok(exit::OK);
    }
    let jobs = args.jobs.map_or_else(|| 2 * thread::available_parallelism().map_or(1, NonZero::get), usize::from);
    let form = if args.json { Form::Json } else { Form::Text };
    let count = run::run(jobs, form, args.retries, |run| {
        let (formats, others): (Vec<_>, Vec<_>) = checks.iter().partition(|check| check.name.starts_with("format/"));
        formats.into_iter().try_for_each(|check| run.now(check.name, || check.run()).map(drop))?;
        for arch in Arch::ALL {
            if tests.iter().any(|test| test.arch == Some(arch)) {
                let added = add_emulated(run, arch, wanted)?;
                form.progress(format_args!("running {added} tests for {}, {jobs} at a time", arch.name()))?;
            }
        }
        // Beside the emulators, which leave processors idle while cargo's steps need one alone.
        others.into_iter().try_for_each(|check| run.now(check.name, || check.run()).map(drop))?;
        if has_units {
            let units = run.now(host_tests::NAME, host_tests::build)?;
            run.add(units.into_iter().flatten().filter(|test| chosen(&test.name)));
        }
        Ok(())
    })?;
    if args.json {
        out::json(&count)?;
    } else {
        count.failed.iter().try_for_each(|name| out::line(format_args!("failed: {name}")))?;
        count.unsteady.iter().try_for_each(|name| out::line(format_args!("unsteady: {name} failed, and passed when it ran again")))?;
        out::line(format_args!("\n{} passed, {} failed", count.passed, count.failed.len()))?;
    }
    Ok(if count.failed.is_empty() && count.passed > 0 { exit::OK } else { exit::FAILURE })
}

/// Builds what the tests of an emulator need, so that none waits for it in its own time, and hands the `wanted` ones over.
/// Returns their number.
///
/// # Errors
/// The emulator is missing, or the guests do not compile.
fn add_emulated(run: &Run, arch: Arch, wanted: impl Fn(&Test) -> bool) -> Result<usize> {
    emulator::ensure(arch)?;
    let built = Programs::build(arch)?;
    let programs = match arch {
        Arch::Aarch64 => [built, Programs::unbuilt(Arch::X86_64)],
        Arch::X86_64 => [Programs::unbuilt(Arch::Aarch64), built],
    };
    let mut tests = emulated(&programs)?;
    tests.retain(|test| test.arch == Some(arch) && wanted(test));
    let count = tests.len();
    run.add(tests);
    Ok(count)
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
    use super::run::WAITING;
    use super::{Arch, Programs, emulated, matches, variants};

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
        for name in variants::NAMES.iter().copied().chain(WAITING) {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
    }

    fn names() -> Vec<String> {
        let tests = emulated(&Arch::ALL.map(Programs::unbuilt)).unwrap();
        tests.into_iter().map(|test| test.name).collect()
    }
}
