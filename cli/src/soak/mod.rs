//! `stile soak`: runs rounds of hostile guests beside a VM that checks its own isolation.

mod account;
mod limits;
mod plan;
mod run;
mod summary;
mod totals;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::SoakArgs;
use crate::config::Arch;
use crate::programs::Programs;
use crate::progress::Task;
use crate::{cargo, emulator, exit, hypervisor, out};
pub use limits::LONGEST_EXIT;
use plan::{Round, seed_of};
use summary::Summary;
use totals::Totals;

/// A short round of `stile test`.
#[derive(Clone, Copy)]
pub struct Short {
    /// The test's name.
    pub name: &'static str,
    /// The architecture of the machine.
    pub arch: Arch,
    /// Whether the attacking VM is a hypervisor.
    nested: bool,
    /// Operations of a round, as `--round` has them.
    operations: u64,
}

/// The short rounds.
pub const SHORT: [Short; 3] = [
    Short { name: "soak/aarch64", arch: Arch::Aarch64, nested: false, operations: 200_000 },
    Short { name: "soak/aarch64-nested", arch: Arch::Aarch64, nested: true, operations: 20_000 * plan::NESTED_PART },
    Short { name: "soak/x86_64", arch: Arch::X86_64, nested: false, operations: 50_000 },
];

impl Short {
    /// Runs it, on a machine with one CPU: the same each time.
    ///
    /// # Errors
    /// The round failed.
    pub fn run(self) -> Result<(), String> {
        let Self { arch, nested, operations, .. } = self;
        let mut rounds = (0..).map(|number| Round::new(arch, seed_of(1, arch, number), operations));
        let round = rounds.find(|round| round.is_timed() && round.vcpus > 1 && round.nested.is_some() == nested);
        let args = SoakArgs {
            replay: round.map(|round| round.seed),
            arch: Some(arch),
            round: operations,
            jobs: 1,
            longest_exit: LONGEST_EXIT,
            ..SoakArgs::default()
        };
        match soak(&args) {
            Ok(exit::OK) => Ok(()),
            Ok(_) => Err("a round failed".to_owned()),
            Err(error) => Err(format!("{error:#}")),
        }
    }
}

/// State that all workers share.
struct Campaign<'a> {
    args: &'a SoakArgs,
    archs: Vec<Arch>,
    programs: Vec<(Arch, Programs)>,
    master: u64,
    dir: PathBuf,
    start: Instant,
    stop: Arc<AtomicBool>,
    next: AtomicU64,
    summary: Mutex<Summary>,
    task: Task,
}

/// Runs rounds until the time or operation limit, a failure, or a signal. Returns [`exit::FAILURE`] if a round failed.
///
/// # Errors
/// The guests or the hypervisor don't compile, an emulator is missing, or a round can't be started.
pub fn soak(args: &SoakArgs) -> Result<u8> {
    let archs = args.arch.map_or(Arch::ALL.to_vec(), |arch| vec![arch]);
    let mut programs = Vec::new();
    for &arch in &archs {
        emulator::ensure(arch)?;
        programs.push((arch, Programs::build(arch)?));
        // Here, so that rounds at the same time do not wait for each other.
        hypervisor::build_for(arch)?;
    }
    let master = match (args.replay, args.seed) {
        (Some(seed), _) | (None, Some(seed)) => seed,
        (None, None) => getrandom::u64().map_err(|error| anyhow::anyhow!("no random seed: {error}"))?,
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching signals")?;
    }
    if args.replay.is_none() {
        out::note(format_args!("stile: soak with seed {master:#x}"));
    }
    let dir = args.keep.clone().unwrap_or_else(|| cargo::repository().join("target/soak"));
    let task = Task::start("soak");
    let campaign = Campaign {
        args,
        archs,
        programs,
        master,
        dir,
        start: Instant::now(),
        stop,
        next: AtomicU64::new(0),
        summary: Mutex::default(),
        task,
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.jobs).map(|_| scope.spawn(|| campaign.work())).collect();
        // A worker's panic has been printed.
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    })?;
    let Campaign { summary, task, start, .. } = campaign;
    drop(task);
    let summary = summary.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    if args.json {
        out::json(&summary.object(start.elapsed()))?;
    } else {
        out::line(summary.text(start.elapsed()).trim_end())?;
    }
    Ok(if summary.failures.is_empty() && summary.rounds > 0 { exit::OK } else { exit::FAILURE })
}

impl Campaign<'_> {
    /// Runs rounds, one after the other.
    fn work(&self) -> Result<()> {
        while let Some(round) = self.next() {
            let programs = self.programs.iter().find(|(arch, _)| *arch == round.arch).context("no programs")?;
            let dir = self.dir.join(format!("{}-{:016x}", round.arch.name(), round.seed));
            let tell = |operations| self.task.message(format!("{}; this round {operations}: {}", self.progress(), round.describe()));
            let outcome = run::run(&round, &programs.1, &dir, self.args.longest_exit, &self.stop, tell);
            let Some(outcome) = outcome? else { return Ok(()) };
            let mut summary = self.summary.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let failed = !outcome.problems.is_empty();
            out::note(summary::line(&round, &outcome));
            if let Some(path) = &self.args.totals {
                summary.totals = Some(Totals::record(path, &round, &outcome)?);
            }
            summary.add(&round, outcome, &dir);
            if failed && !self.args.keep_going {
                self.stop.store(true, Ordering::Relaxed);
            }
            drop(summary);
            if !failed && !self.args.keep_all {
                remove(&dir);
            }
        }
        Ok(())
    }

    /// The next round, unless all is done.
    fn next(&self) -> Option<Round> {
        let done = self.summary.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).operations;
        let hours = self.args.hours.map(|hours| Duration::from_secs_f64(hours * 3600.0));
        let minutes = self.args.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
        let late = hours.or(minutes).is_some_and(|limit| self.start.elapsed() >= limit);
        let enough = self.args.operations.is_some_and(|limit| done >= limit);
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let over = if self.args.replay.is_some() { number > 0 } else { late || enough };
            if over || self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let arch = self.archs[(number % self.archs.len() as u64) as usize];
            let seed = self.args.replay.unwrap_or_else(|| seed_of(self.master, arch, number));
            let round = Round::new(arch, seed, self.args.round);
            if round.is_timed() || !self.args.one_cpu {
                return Some(round);
            }
        }
    }

    fn progress(&self) -> String {
        let summary = self.summary.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let rate = summary.operations as f64 / self.start.elapsed().as_secs_f64().max(1.0);
        let total = summary.totals.as_ref().map_or(String::new(), |totals| format!(" of {} in total", totals.sum().operations));
        format!("{} rounds, {} operations{total} ({rate:.0}/s), {} failures", summary.rounds, summary.operations, summary.failures.len())
    }
}

/// Removes the files of a round without a fault.
fn remove(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir);
}
