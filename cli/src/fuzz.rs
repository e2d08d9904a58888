//! `stile fuzz`: libFuzzer on the functions that take untrusted input, from the corpora in `fuzz/corpus`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use data_encoding::HEXLOWER;
use rustix::process::Signal;
use serde_json::json;

use crate::args::FuzzArgs;
use crate::{cargo, child, exit, out};

/// Makes the compiler count executed edges and compared values, as libFuzzer expects it. Stable compilers accept these options.
const COVERAGE: [&str; 7] = [
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// The longest input in bytes.
const LONGEST: usize = 8192;

/// Longer inputs are not kept.
const LONGEST_KEPT: usize = 1024;

/// The most bytes of a kept corpus's file.
const CORPUS_MAX: usize = 96 << 10;

/// Runs the fuzzer on each target in turn. The status is [`exit::FAILURE`] if an input made one fail.
///
/// # Errors
/// An unknown target, or the fuzzer can't be built or run.
pub fn fuzz(args: &FuzzArgs) -> Result<u8> {
    let known = targets()?;
    if args.list {
        if args.json {
            out::json(&known)?;
        } else {
            known.iter().try_for_each(out::line)?;
        }
        return Ok(exit::OK);
    }
    if let Some(unknown) = args.targets.iter().find(|name| !known.contains(name)) {
        return Err(exit::usage(format!("there is no fuzz target \"{unknown}\": `stile fuzz --list` lists them")));
    }
    let program = build()?;
    let mut failed = Vec::new();
    for target in if args.targets.is_empty() { &known } else { &args.targets } {
        let fuzzer = Fuzzer::new(&program, target)?;
        out::note(format_args!("{target}: {} s", args.seconds));
        let passed = fuzzer.run(args.seconds)?;
        if args.json {
            out::json(&json!({"target": target, "passed": passed}))?;
        }
        if !passed {
            failed.push(target.as_str());
        } else if args.keep {
            let kept = fuzzer.keep()?;
            out::note(format_args!("{target}: {kept} inputs kept in {}", corpus(target).display()));
        }
    }
    if failed.is_empty() {
        return Ok(exit::OK);
    }
    out::note(format_args!("failed: {}", failed.join(", ")));
    Ok(exit::FAILURE)
}

/// The names of all targets: each has a corpus.
fn targets() -> Result<Vec<String>> {
    let directory = cargo::repository().join("fuzz/corpus");
    let files = fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut names: Vec<_> =
        files.filter_map(|file| file.ok()?.path().file_name()?.to_str()?.strip_suffix(".hex").map(ToOwned::to_owned)).collect();
    names.sort();
    Ok(names)
}

fn corpus(target: &str) -> PathBuf {
    cargo::repository().join("fuzz/corpus").join(target).with_extension("hex")
}

/// Builds the fuzzer with all targets, and returns its path.
fn build() -> Result<PathBuf> {
    let version = Command::new("rustc").arg("-vV").output().map_err(|error| exit::lacking(format!("rustc does not run: {error}")))?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    // With --target, build scripts and macros are not instrumented.
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    let mut command = cargo::locked("build", &cargo::repository());
    command
        .args(["--profile", "fuzz", "--package", "stile-fuzz", "--bin", "guided", "--target", host])
        .arg("--target-dir")
        .arg(directory())
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\x1f"));
    let programs = cargo::build(command, "the fuzzer (libFuzzer needs a C++ compiler)")?;
    let guided = programs.into_iter().find(|(name, _)| name == "guided");
    guided.map(|(_, path)| path).context("cargo built no fuzzer")
}

/// Folder in which the fuzzer is built and runs.
fn directory() -> PathBuf {
    cargo::repository().join("target/fuzz")
}

/// The fuzzer on one target.
struct Fuzzer<'a> {
    program: &'a Path,
    target: &'a str,
    /// All inputs that it found.
    found: PathBuf,
}

impl<'a> Fuzzer<'a> {
    fn new(program: &'a Path, target: &'a str) -> Result<Self> {
        let found = directory().join("found").join(target);
        fs::create_dir_all(&found).with_context(|| format!("creating {}", found.display()))?;
        Ok(Self { program, target, found })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        child::end_with_parent(&mut command, Signal::TERM).env("STILE_FUZZ_TARGET", self.target).stdin(Stdio::null());
        command
    }

    /// Returns whether no input failed.
    fn run(&self, seconds: u32) -> Result<bool> {
        let failing = directory().join(format!("{}-", self.target));
        let status = self
            .command()
            .env("STILE_FUZZ_SEEDS", &self.found)
            .arg(&self.found)
            .args([format!("-max_total_time={seconds}"), format!("-max_len={LONGEST}")])
            .arg(format!("-artifact_prefix={}", failing.display()))
            .args(["-print_final_stats=1", "-timeout=20", "-rss_limit_mb=3072"])
            .status()
            .context("running the fuzzer")?;
        if !status.success() {
            out::note(format_args!(
                "{0}: an input fails. It is in the file that libFuzzer names above; once the fault is fixed, keep it: a comment that names \
                 the fault and then the input in hexadecimal (xxd -p -c0 FILE), in {1}",
                self.target,
                corpus(self.target).display()
            ));
        }
        Ok(status.success())
    }

    /// Replaces the kept corpus by the fewest found inputs with the same coverage, and those that once failed. Returns their number.
    fn keep(&self) -> Result<usize> {
        let fewest = tempfile::tempdir()?;
        let output = self.command().arg("-set_cover_merge=1").arg(fewest.path()).arg(&self.found).output().context("running the fuzzer")?;
        if !output.status.success() {
            bail!("merging the corpus of {} failed:\n{}", self.target, String::from_utf8_lossy(&output.stderr));
        }
        let mut inputs = Vec::new();
        for file in fs::read_dir(fewest.path())? {
            inputs.push(fs::read(file?.path())?);
        }
        let file = corpus(self.target);
        let text = merged(&fs::read_to_string(&file)?, inputs);
        fs::write(&file, &text).with_context(|| format!("writing {}", file.display()))?;
        Ok(text.lines().filter(|line| !line.starts_with('#')).count())
    }
}

/// The text of a corpus: the inputs after comments in the old text, with the comments, and then `inputs`, short ones first.
fn merged(old: &str, mut inputs: Vec<Vec<u8>>) -> String {
    let mut text = String::new();
    let mut kept = BTreeSet::new();
    let mut after_comment = false;
    for line in old.lines() {
        if line.starts_with('#') || after_comment {
            text += &format!("{line}\n");
            kept.insert(line.to_owned());
        }
        after_comment = line.starts_with('#');
    }
    inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    for input in inputs.iter().filter(|input| input.len() <= LONGEST_KEPT) {
        let line = HEXLOWER.encode(input);
        if text.len() + line.len() < CORPUS_MAX && kept.insert(line.clone()) {
            text += &format!("{line}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_of_faults_stay() {
        let old = "00\n# it looped\n0102\nff\n# it panicked\n# twice\n03\n";
        let text = merged(old, vec![vec![9; LONGEST_KEPT + 1], vec![4, 4], vec![3], vec![5]]);
        assert_eq!(text, "# it looped\n0102\n# it panicked\n# twice\n03\n05\n0404\n");
    }

    #[test]
    fn a_corpus_stays_small() {
        let inputs = (0..1000u32).map(|n| [n.to_le_bytes(); 64].concat()).collect();
        let text = merged("", inputs);
        assert!((CORPUS_MAX - 600..CORPUS_MAX).contains(&text.len()), "{}", text.len());
    }
}
