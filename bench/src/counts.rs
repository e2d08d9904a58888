//! Counts of the emulator's plugin (`plugins/counts`): builds the plugin and parses its lines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use stile::cargo;
use stile::exit;

/// The plugin's package and library.
const PACKAGE: &str = "stile-counts";
const LIBRARY: &str = "stile_counts";

/// Builds the plugin, and returns its path.
///
/// # Errors
/// It doesn't compile.
pub fn build() -> Result<PathBuf> {
    let mut command = cargo::locked("build", &cargo::repository());
    command.args(["--release", "--package", PACKAGE, "--target-dir", "target"]);
    let libraries = cargo::build(command, "the emulator's plugin")?;
    Ok(libraries.into_iter().find(|(name, _)| name == LIBRARY).context("cargo made no plugin")?.1)
}

/// The plugin, and the counters that it enables.
#[derive(Debug, Clone, Copy)]
pub struct Plugin<'a> {
    /// Its path.
    pub path: &'a Path,
    /// Whether sections have [`Section::sharing`], too.
    pub sharing: bool,
}

impl<'a> Plugin<'a> {
    /// Plugin without the slow sharing counters.
    pub fn new(path: &'a Path) -> Self {
        Self { path, sharing: false }
    }

    /// The emulator's arguments that load the plugin, which writes into `output`.
    pub fn arguments(&self, output: &Path) -> [String; 2] {
        // Two commas stand for one in a value.
        let value = |path: &Path| path.display().to_string().replace(',', ",,");
        let sharing = if self.sharing { ",sharing=on" } else { "" };
        ["-plugin".into(), format!("{},out={}{sharing}", value(self.path), value(output))]
    }
}

/// Numbers of instructions by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// MRS.
    pub sysreg_reads: u64,
    /// MSR.
    pub sysreg_writes: u64,
    /// DSB, DMB, ISB and SB.
    pub barriers: u64,
    /// TLBI, AT, DC and IC.
    pub tlb_ops: u64,
    /// Instructions that load.
    pub loads: u64,
    /// Instructions that store.
    pub stores: u64,
}

impl Counts {
    /// Returns the difference to counts that are contained in these.
    pub fn without(&self, others: &Self) -> Self {
        Self {
            instructions: self.instructions.saturating_sub(others.instructions),
            sysreg_reads: self.sysreg_reads.saturating_sub(others.sysreg_reads),
            sysreg_writes: self.sysreg_writes.saturating_sub(others.sysreg_writes),
            barriers: self.barriers.saturating_sub(others.barriers),
            tlb_ops: self.tlb_ops.saturating_sub(others.tlb_ops),
            loads: self.loads.saturating_sub(others.loads),
            stores: self.stores.saturating_sub(others.stores),
        }
    }
}

/// Counts between two marks of the guest's.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Section {
    /// Counts of the guest.
    pub guest: Counts,
    /// Counts of everything but the guest.
    pub outside: Counts,
    /// The part of `outside` at EL2.
    pub el2: Counts,
    /// The guest's exits.
    pub exits: u64,
    /// Exits of others: of a host whose kernel is at EL1, of a hypervisor that is a guest.
    pub other_exits: u64,
    /// The guest's exits by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Others' by reason.
    pub other_reasons: BTreeMap<String, u64>,
    /// Memory shared by CPUs, if the plugin counted it.
    #[serde(default)]
    pub sharing: Option<Sharing>,
}

/// Counts at EL2 on the CPUs that had the guest loaded.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sharing {
    /// Counts by kind.
    pub el2: Counts,
    /// Atomic writes.
    pub atomics: u64,
    /// Those to cache lines that other guests' CPUs wrote atomically at EL2.
    pub shared: u64,
    /// Failed stores-exclusive.
    pub failed: u64,
    /// YIELDs: polls of CPUs that wait for another one.
    pub spins: u64,
}

/// Counts outside of guests, on the CPUs of the guest that set the marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnCpus {
    /// Instructions.
    pub instructions: u64,
    /// Atomic writes.
    pub atomics: u64,
    /// Those to cache lines that other CPUs also wrote atomically.
    pub shared: u64,
    /// Stores-exclusive, or compare-exchanges, that did not store.
    pub failed: u64,
    /// YIELDs, or PAUSEs: polls of CPUs that wait for another one.
    pub spins: u64,
}

impl From<&Sharing> for OwnCpus {
    fn from(counts: &Sharing) -> Self {
        let &Sharing { el2, atomics, shared, failed, spins } = counts;
        Self { instructions: el2.instructions, atomics, shared, failed, spins }
    }
}

/// Counts of a whole run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Run {
    /// Counts at EL2.
    pub el2: Counts,
    /// Counts at EL0 of a host whose kernel is at EL2.
    pub host_el0: Counts,
    /// Software at EL1 and EL0, by second stage.
    pub regimes: Vec<Regime>,
}

impl Run {
    /// Exits of VMs, which have a second stage.
    pub fn exits_of_vms(&self) -> u64 {
        self.regimes.iter().filter(|regime| regime.table.is_some()).flat_map(|regime| regime.reasons.values()).sum()
    }
}

/// Software at EL1 and EL0: a VM, or a host whose kernel is at EL1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Regime {
    /// Address of the second-stage table, if any.
    pub table: Option<u64>,
    /// Counts at EL1.
    pub el1: Counts,
    /// Counts at EL0.
    pub el0: Counts,
    /// Its exits.
    pub exits: u64,
    /// Exits by reason.
    pub reasons: BTreeMap<String, u64>,
}

/// The plugin's output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// The sections, in the order of their ends.
    pub sections: Vec<Section>,
    /// The run, if it completed.
    pub run: Option<Run>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Section(Section),
    Run(Run),
    Error(String),
}

/// Reads the plugin's lines.
///
/// # Errors
/// There are no lines, or one reports an error of the plugin.
pub fn parse(text: &str) -> Result<Output> {
    ensure!(!text.is_empty(), exit::lacking("the emulator's plugin counted nothing"));
    let mut output = Output::default();
    for line in text.lines() {
        match serde_json::from_str(line).with_context(|| format!("the plugin wrote {line}"))? {
            Line::Section(section) => output.sections.push(section),
            Line::Run(run) => output.run = Some(run),
            Line::Error(sentence) => bail!("counting failed: {sentence}"),
        }
    }
    Ok(output)
}

/// Returns advice for an emulator's error message about plugins.
pub fn advice(errors: &str) -> Option<&'static str> {
    errors.contains("plugin").then_some(
        "this emulator can't load the plugin that counts exits and accesses: install Debian's qemu-system-arm, version 10.0 or later, \
         or leave the counts out with --no-counts",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str = r#"{"instructions":0,"sysreg_reads":0,"sysreg_writes":0,"barriers":0,"tlb_ops":0,"loads":0,"stores":0}"#;

    #[test]
    fn lines_are_read() {
        let outside = NONE.replace("\"loads\":0", "\"loads\":8");
        let text = format!(
            "{{\"section\":{{\"guest\":{NONE},\"outside\":{outside},\"el2\":{NONE},\"exits\":4,\"other_exits\":0,\"reasons\":{{}},\"other_reasons\":{{}}}}}}\n\
             {{\"run\":{{\"el2\":{NONE},\"host_el0\":{NONE},\"regimes\":[\
             {{\"table\":4096,\"el1\":{NONE},\"el0\":{NONE},\"exits\":5,\"reasons\":{{\"HVC\":5}}}}]}}}}\n"
        );
        let output = parse(&text).unwrap();
        assert_eq!((output.sections[0].exits, output.sections[0].outside.loads), (4, 8));
        assert_eq!(output.run.unwrap().regimes[0].reasons["HVC"], 5);
    }

    #[test]
    fn errors_are_reported() {
        assert!(parse("").is_err());
        assert!(parse("{\"error\":\"no register\"}\n").unwrap_err().to_string().contains("no register"));
        assert!(parse("{}\n").is_err());
        assert!(advice("Could not load plugin /x.so: no such file").is_some_and(|advice| advice.contains("install")));
        assert_eq!(advice("no memory"), None);
    }

    #[test]
    fn commas_in_paths_are_doubled() {
        let plugin = Plugin::new(Path::new("/a,b/c.so"));
        assert_eq!(plugin.arguments(Path::new("/out")), ["-plugin", "/a,,b/c.so,out=/out"]);
        let plugin = Plugin { sharing: true, ..plugin };
        assert_eq!(plugin.arguments(Path::new("/out"))[1], "/a,,b/c.so,out=/out,sharing=on");
    }
}
