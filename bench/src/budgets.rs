//! The budgets: the most that each operation may cost under Stile (`bench/budgets.toml`), and the test that holds Stile to them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use stile_blob::{Gic, Techniques};

use super::host::{self, Figure, Host, Request, Together, measure_together};
use super::platform::{self, PLATFORMS, Platform};
use super::{counts, io, probe};
use stile::cargo;
use stile::config::Arch;
use stile::emulator;

/// The tests: names, platforms, and on Arm the interrupt controller.
pub static TESTS: [(&str, &Platform, Gic); 4] = [
    ("budgets", &PLATFORMS[0], Gic::V3),
    ("budgets/gicv2", &PLATFORMS[0], Gic::V2),
    ("budgets/x86_64", &PLATFORMS[1], Gic::V3),
    ("budgets/x86_64-svm", &platform::AMD_V, Gic::V3),
];

/// Name of tables of machines with a GICv2, behind the CPU model.
const GICV2: &str = "gicv2";

/// Iterations of each operation: few, because the figures are exact.
const ITERATIONS: u32 = 512;

/// Tolerance for the rounding of figures, and for one instruction of a whole run: where loops of two CPUs begin within the emulator's turns
/// decides about as many.
const ROUNDING: f64 = 0.001 + 1.0 / ITERATIONS as f64;

/// The most that an operation may cost.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    instructions: f64,
    exits: f64,
    /// MRS at EL2. Present, as `sysreg_writes` and `barriers`, if the platform's emulator has a plugin that counts it.
    sysreg_reads: Option<f64>,
    /// MSR at EL2.
    sysreg_writes: Option<f64>,
    /// DSB, DMB, ISB and SB at EL2.
    barriers: Option<f64>,
    /// VMREAD outside of guests. Present, as `vmcs_writes`, for the emulated PC.
    vmcs_reads: Option<f64>,
    /// VMWRITE outside of guests.
    vmcs_writes: Option<f64>,
}

impl Budget {
    /// Whether it limits all quantities that are counted on a platform.
    fn is_whole(&self, platform: &Platform) -> bool {
        (platform.arch != Arch::Aarch64 || self.sysreg_reads.and(self.sysreg_writes).and(self.barriers).is_some())
            && (!platform.counts_vmx || self.vmcs_reads.and(self.vmcs_writes).is_some())
    }
}

/// Budgets by table and operation. A table's name is a CPU model, or a model, a slash and the host that disables a technique, or `gicv2`.
type ByModel = BTreeMap<String, BTreeMap<String, Budget>>;

/// All budgets.
#[derive(Debug, Deserialize)]
pub struct Budgets {
    /// Budgets of L2's operations and L1's own, in Stile's instructions only. [`super::nested::budgets::machine`] parses the tables' names.
    pub nested: ByModel,
    /// Exits of L1's boot on a PC, by CPU model and reason.
    pub boot: BTreeMap<String, BTreeMap<String, u64>>,
    /// Budgets of atomic writes to cache lines that other VMs' CPUs write, by operation ([`super::scale`]).
    pub scale: BTreeMap<String, f64>,
    /// Budgets of requests' exits ([`super::io`]).
    pub io: io::limit::ByPath,
    /// Budgets of the operations of Stile's own guests.
    #[serde(flatten)]
    plain: ByModel,
}

/// Measures every operation that has a budget on a platform.
///
/// # Errors
/// The operations that exceed their budgets, and by how much; or a build or run that failed.
pub fn test(platform: &'static Platform, gic: Gic) -> Result<(), String> {
    let failures = measure(platform, gic).map_err(|error| format!("{error:#}"))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn measure(platform: &'static Platform, gic: Gic) -> Result<Vec<String>> {
    emulator::ensure_for_model(platform.arch, platform.model)?;
    let budgets = read()?.plain;
    let probe = probe::build(platform.arch)?;
    let plugin = platform.has_plugin.then(counts::build).transpose()?;
    let mut failures = Vec::new();
    let is_here = |of: &str| std::ptr::eq(platform::of_cpu(model(of)), platform) && gic_of(of) == gic;
    for (of, budgets) in budgets.iter().filter(|(of, _)| is_here(of)) {
        let cpu = model(of);
        let names: Vec<_> = budgets.keys().cloned().collect();
        let operations = platform.choose(&names).map_err(anyhow::Error::msg)?;
        let request = Request {
            platform,
            probe: &probe,
            cpu,
            operations: &operations,
            iterations: ITERATIONS,
            techniques: techniques(of)?,
            gic,
            plugin: plugin.as_deref(),
            progress: &|_| {},
        };
        let mut figures = Vec::new();
        let mut alone = operations.clone();
        if platform.counts_vmx {
            alone.retain(|operation| !operation.joins_others());
            let together = measure_together(&request)?;
            failures.extend(exceeded_together(of, &together, budgets));
            figures.extend(together.figures);
        }
        let mut measured = Host::Stile.measure(&Request { operations: &alone, ..request })?;
        let is_over = |figure: &Figure| !exceeded(of, figure, budgets.get(&figure.operation)).is_empty();
        for _ in 0..further_tries(platform) {
            let (over, within): (Vec<_>, Vec<_>) = measured.into_iter().partition(is_over);
            measured = within;
            let again: Vec<_> =
                alone.iter().filter(|operation| over.iter().any(|figure| figure.operation == operation.name)).copied().collect();
            if !again.is_empty() {
                measured.extend(Host::Stile.measure(&Request { operations: &again, ..request })?);
            }
        }
        failures.extend(measured.iter().flat_map(|figure| exceeded(of, figure, budgets.get(&figure.operation))));
        figures.extend(measured);
        failures.extend(missing(of, figures.iter().map(|figure| figure.operation.as_str()), budgets));
    }
    Ok(failures)
}

/// Returns how often an operation over its budget is measured again. Where time is real, a busy machine delays kicks and timers, and each
/// delay adds exits; a cost of Stile's code is there each time.
fn further_tries(platform: &Platform) -> usize {
    if platform.counts_outside_only() { 7 } else { 0 }
}

/// Reads the repository's budgets.
///
/// # Errors
/// The file can't be read, or is malformed.
pub fn read() -> Result<Budgets> {
    let path = cargo::repository().join("bench/budgets.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("reading {}", path.display()))
}

/// The architecture of a table of budgets.
pub fn arch(of: &str) -> Arch {
    platform::of_cpu(model(of)).arch
}

/// The CPU model of a table of budgets.
fn model(of: &str) -> &str {
    of.split_once('/').map_or(of, |(model, _)| model)
}

/// The interrupt controller of a table of budgets.
fn gic_of(of: &str) -> Gic {
    if of.split_once('/').is_some_and(|(_, name)| name == GICV2) { Gic::V2 } else { Gic::V3 }
}

/// The VM's techniques of a table of budgets.
fn techniques(of: &str) -> Result<Techniques> {
    let Some((_, name)) = of.split_once('/').filter(|(_, name)| *name != GICV2) else { return Ok(Techniques::default()) };
    match host::by_name(name) {
        Some(Host::Without(technique)) => Ok(technique.switched_off(arch(of), Techniques::default())),
        _ => bail!("{name} is not the name of a host that disables a technique"),
    }
}

/// Parses the file. Each operation must have a budget on its platform's default CPU model.
fn parse(text: &str) -> Result<Budgets> {
    let budgets: Budgets = toml::from_str(text)?;
    for platform in PLATFORMS.iter().chain([&platform::AMD_V]) {
        let most = budgets.plain.get(platform.cpu());
        for operation in platform.operations {
            let budget = most.and_then(|budgets| budgets.get(operation.name));
            let given = budget.is_some_and(|budget| budget.is_whole(platform));
            anyhow::ensure!(given, "{} has no budget on {}", operation.name, platform.cpu());
        }
    }
    Ok(budgets)
}

/// Returns a sentence for each cost that exceeds its budget or was not counted.
pub fn exceeded(cpu: &str, figure: &Figure, budget: Option<&Budget>) -> Vec<String> {
    let Some(budget) = budget else { return Vec::new() };
    let outside = figure.outside.as_ref();
    let costs = [
        ("instructions", Some(figure.instructions), Some(budget.instructions)),
        ("exits", figure.exits, Some(budget.exits)),
        ("system-register reads", outside.map(|outside| outside.sysreg_reads), budget.sysreg_reads),
        ("system-register writes", outside.map(|outside| outside.sysreg_writes), budget.sysreg_writes),
        ("barriers", outside.map(|outside| outside.barriers), budget.barriers),
        ("VMREADs", figure.vmx.map(|vmx| vmx.vmcs_reads), budget.vmcs_reads),
        ("VMWRITEs", figure.vmx.map(|vmx| vmx.vmcs_writes), budget.vmcs_writes),
    ];
    let sentence = |(what, cost, most): (&str, Option<f64>, Option<f64>)| match (cost, most) {
        (_, None) => None,
        (None, Some(_)) => Some(format!("{} on {cpu}: {what} were not counted", figure.operation)),
        (Some(cost), Some(most)) if cost > most + ROUNDING => {
            Some(format!("{} on {cpu}: {cost:.3} {what}, {:.3} more than its budget of {most}", figure.operation, cost - most))
        }
        (Some(_), Some(_)) => None,
    };
    costs.into_iter().filter_map(sentence).collect()
}

/// Returns how operations that were measured in one run exceed their budgets: instructions of each, and the exits of all.
fn exceeded_together(cpu: &str, together: &Together, budgets: &BTreeMap<String, Budget>) -> Vec<String> {
    let mut most = 0.0;
    let mut failures = Vec::new();
    for figure in &together.figures {
        let Some(budget) = budgets.get(&figure.operation) else { continue };
        failures.extend(exceeded(cpu, figure, Some(budget)));
        most += budget.exits * figure.iterations as f64;
    }
    let exits = together.exits.values().sum::<i64>();
    if exits as f64 > most {
        let reasons: Vec<_> = together.exits.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        failures.push(format!("all operations on {cpu}: {exits} exits, and their budgets are {most}: {}", reasons.join(", ")));
    }
    failures
}

/// Returns a sentence for each operation that has a budget but no figure.
pub fn missing<'a>(cpu: &str, measured: impl Iterator<Item = &'a str>, budgets: &BTreeMap<String, Budget>) -> Vec<String> {
    let measured: Vec<_> = measured.collect();
    budgets.keys().filter(|name| !measured.contains(&name.as_str())).map(|name| format!("{name} on {cpu} was not measured")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::host::Outside;
    use super::super::platform;
    use super::super::vmx::Vmx;
    use super::*;

    #[test]
    fn the_repositorys_budgets_can_be_read() {
        let budgets = read().unwrap();
        for (cpu, budgets) in budgets.plain {
            let names: Vec<_> = budgets.keys().cloned().collect();
            platform::of_cpu(model(&cpu)).choose(&names).unwrap();
            techniques(&cpu).unwrap();
        }
    }

    /// An interrupt between vCPUs that spin for each other on one CPU takes short turns and not slices: at most three times as much as one to
    /// a vCPU that waits there.
    #[test]
    fn spinning_costs_little_more_than_waiting() {
        let plain = &read().unwrap().plain["max"];
        assert!(plain["ipi_shared"].instructions <= 3.0 * plain["ipi_wfi_shared"].instructions);
    }

    const BUDGET: Budget = Budget {
        instructions: 35.0,
        exits: 1.0,
        sysreg_reads: Some(3.0),
        sysreg_writes: Some(0.0),
        barriers: Some(0.0),
        vmcs_reads: None,
        vmcs_writes: None,
    };

    /// A figure that equals the budget.
    fn figure() -> Figure {
        let outside =
            Outside { instructions: 33.0, sysreg_reads: 3.0, sysreg_writes: 0.0, barriers: 0.0, tlb_ops: 0.0, loads: 8.0, stores: 5.0 };
        Figure {
            operation: "hyp_call".to_owned(),
            instructions: 35.0,
            exits: Some(1.0),
            reasons: Default::default(),
            outside: Some(outside),
            vmx: None,
            iterations: 512,
        }
    }

    fn broken(change: fn(&mut Figure, &mut Outside)) -> Vec<String> {
        let mut figure = figure();
        let mut outside = figure.outside.unwrap();
        change(&mut figure, &mut outside);
        figure.outside = Some(outside);
        exceeded("max", &figure, Some(&BUDGET))
    }

    #[test]
    fn costs_within_the_budget_pass() {
        assert!(broken(|_, _| ()).is_empty());
        assert!(broken(|figure, outside| (figure.instructions, outside.sysreg_reads) = (20.0, 1.0)).is_empty());
    }

    #[test]
    fn each_kind_that_grew_is_named() {
        assert_eq!(
            broken(|figure, _| figure.instructions = 36.5),
            ["hyp_call on max: 36.500 instructions, 1.500 more than its budget of 35"]
        );
        assert_eq!(broken(|figure, _| figure.exits = Some(2.0)), ["hyp_call on max: 2.000 exits, 1.000 more than its budget of 1"]);
        assert_eq!(
            broken(|_, outside| outside.sysreg_reads = 4.0),
            ["hyp_call on max: 4.000 system-register reads, 1.000 more than its budget of 3"]
        );
        assert_eq!(
            broken(|_, outside| outside.sysreg_writes = 1.0),
            ["hyp_call on max: 1.000 system-register writes, 1.000 more than its budget of 0"]
        );
        assert_eq!(broken(|_, outside| outside.barriers = 0.5), ["hyp_call on max: 0.500 barriers, 0.500 more than its budget of 0"]);
    }

    #[test]
    fn missing_counts_fail() {
        let figure = Figure { exits: None, outside: None, ..figure() };
        assert_eq!(exceeded("max", &figure, Some(&BUDGET)).len(), 4);
    }

    #[test]
    fn exits_of_operations_in_one_run_are_added_up() {
        let not_here = Budget { sysreg_reads: None, sysreg_writes: None, barriers: None, ..BUDGET };
        let budget = Budget { vmcs_reads: Some(4.0), vmcs_writes: Some(1.0), ..not_here };
        let budgets = BTreeMap::from([("hyp_call".to_owned(), budget)]);
        let run = |exits, instructions, vmcs_reads| {
            let vmx = Some(Vmx { vmcs_reads, vmcs_writes: 1.0, msr_writes: 0.0 });
            let figure = Figure { instructions, iterations: 100, outside: None, vmx, ..figure() };
            exceeded_together("pc", &Together { figures: vec![figure], exits: BTreeMap::from([("HVC".to_owned(), exits)]) }, &budgets)
        };
        assert!(run(100, 35.0, 4.0).is_empty());
        assert_eq!(run(101, 35.0, 4.0), ["all operations on pc: 101 exits, and their budgets are 100: 101 HVC"]);
        assert_eq!(run(100, 36.0, 4.0), ["hyp_call on pc: 36.000 instructions, 1.000 more than its budget of 35"]);
        assert_eq!(run(100, 35.0, 5.0), ["hyp_call on pc: 5.000 VMREADs, 1.000 more than its budget of 4"]);
        assert_eq!(missing("pc", std::iter::empty(), &budgets), ["hyp_call on pc was not measured"]);
    }
}
