//! The probe under Stile.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use stile_blob::{Interrupts, IpiAccess, Techniques, TimerAccess};
use stile_board::CpuSet;

use super::{Figure, Outside, Request, figure};
use crate::counts::Section;
use crate::operation::{FIRE_DIRECT, Needs, Operation};
use crate::probe;
use crate::under_stile;
use crate::vmx;
use stile::config::{MachineConfig, VmConfig};
use stile::image::{Hypervisor, VmFiles};

/// Measures each operation in two runs, the second one with twice as many iterations. The difference gives the cost per
/// operation. The ledger and the emulator must agree on exits.
pub fn measure(request: &Request<'_>) -> Result<Vec<Figure>> {
    // The plugin distinguishes guests by the root of their second stage, and each vCPU with direct interrupts has a separate one.
    let plugin = request.plugin.filter(|_| request.techniques.interrupts != Interrupts::Direct);
    let request = &Request { plugin, ..*request };
    let hypervisor = stile::hypervisor::make(request.platform.arch)?;
    let mut figures = Vec::new();
    for operation in request.operations {
        (request.progress)(format!("stile, {}", operation.name));
        let Some(once) = run(request, &hypervisor, *operation, request.iterations)? else { continue };
        let Some(twice) = run(request, &hypervisor, *operation, 2 * request.iterations)? else { continue };
        let more = twice.iterations.saturating_sub(once.iterations);
        ensure!(more > 0, "{}: the second run had no more iterations than the first", operation.name);
        let reasons = Reasons::more(&twice.exits, &once.exits);
        let mut exits = reasons.sum();
        let mut reasons = reasons.of_each(more);
        let sections = twice.section.zip(once.section);
        if let Some((twice, once)) = &sections {
            let counted = twice.exits.saturating_sub(once.exits);
            if request.platform.counts_outside_only() {
                // Without -icount the rest of the VM's life differs from run to run.
                exits = counted as i64;
                reasons.clear();
            }
            ensure!(counted as i64 == exits, "{}: {exits} exits by the ledger, and {counted} by the emulator", operation.name);
        }
        let vmx = twice.vmx.zip(once.vmx);
        if let Some((twice, once)) = &vmx {
            let counted = twice.more_exits(once);
            ensure!(counted == exits, "{}: {exits} exits by the ledger, and {counted} by the emulator", operation.name);
        }
        figures.push(Figure {
            operation: operation.name.to_owned(),
            instructions: match &sections {
                Some((twice, once)) if request.platform.counts_outside_only() => {
                    Outside::of_each(&twice.outside.without(&once.outside), more).instructions
                }
                _ => twice.instructions,
            },
            exits: Some(exits as f64 / more as f64),
            reasons,
            outside: sections.map(|(twice, once)| Outside::of_each(&twice.outside.without(&once.outside), more)),
            vmx: vmx.map(|(twice, once)| twice.of_each(&once, more)),
            iterations: twice.iterations,
        });
    }
    Ok(figures)
}

/// Costs of operations that were measured in one run.
#[derive(Debug)]
pub struct Together {
    /// Cost of each; `iterations` is how many times more an operation ran in the second run.
    pub figures: Vec<Figure>,
    /// Additional exits of the second run, by reason.
    pub exits: BTreeMap<String, i64>,
}

/// Measures all operations that join others in two runs, the second one with twice as many iterations.
pub fn measure_together(request: &Request<'_>) -> Result<Together> {
    let hypervisor = stile::hypervisor::make(request.platform.arch)?;
    let operations: Vec<_> = request.operations.iter().filter(|operation| operation.joins_others()).copied().collect();
    let once = run_all(request, &hypervisor, &operations, request.iterations)?;
    let twice = run_all(request, &hypervisor, &operations, 2 * request.iterations)?;
    let mut figures = figure::figures(None, &twice.vmx, &twice.console, &operations)?;
    let before = figure::figures(None, &once.vmx, &once.console, &operations)?;
    // The sections are in the probe's own order.
    let lines = probe::lines(&twice.console)?;
    let measured = lines.iter().filter(|line| line.instructions.is_some());
    let mut counted = 0;
    for (line, (twice, once)) in measured.zip(twice.vmx.iter().zip(&once.vmx)) {
        let is_of = |figure: &Figure| figure.operation == line.operation;
        let Some(figure) = figures.iter_mut().find(|figure| is_of(figure)) else { continue };
        let iterations = before.iter().find(|figure| is_of(figure)).map_or(0, |before| before.iterations);
        figure.iterations = figure.iterations.saturating_sub(iterations);
        ensure!(figure.iterations > 0, "{}: twice as many iterations are no more", figure.operation);
        figure.exits = Some(twice.more_exits(once) as f64 / figure.iterations as f64);
        figure.vmx = Some(twice.of_each(once, figure.iterations));
        counted += twice.more_exits(once);
    }
    let exits = Reasons::more(&twice.exits()?, &once.exits()?);
    ensure!(counted == exits.sum(), "{} exits by the ledger, and {counted} by the emulator", exits.sum());
    Ok(Together { figures, exits: exits.0 })
}

/// Output of one run.
#[derive(Debug)]
struct Run {
    instructions: f64,
    iterations: u64,
    /// All exits of the VM by its ledger, from its start to its end, by reason.
    exits: BTreeMap<String, u64>,
    /// Counts of the emulator while the operation was measured.
    section: Option<Section>,
    /// Counts of the emulated PC, for the same time.
    vmx: Option<vmx::Section>,
}

/// Runs the probe with operations that need the same CPUs.
fn run_all(request: &Request<'_>, hypervisor: &Hypervisor, operations: &[Operation], iterations: u32) -> Result<under_stile::Output> {
    let needs = operations.first().context("unknown operation")?.needs;
    let bootargs = probe::arguments(operations, iterations);
    let files = VmFiles { kernel: request.probe, initrd: None, bootargs: &bootargs, domains: &[], disks: &[] };
    // Direct IPIs, the gate and the timer that notifies are disabled by default. These operations are measured one by one.
    let techniques = match operations.first().map(|operation| operation.name) {
        Some("ipi_direct") => Techniques { ipi: IpiAccess::Direct, ..request.techniques },
        Some("ipi_gate") => Techniques { ipi: IpiAccess::Gate, ..request.techniques },
        Some(FIRE_DIRECT) => Techniques { ipi: IpiAccess::Direct, timer: TimerAccess::Direct, ..request.techniques },
        _ => request.techniques,
    };
    under_stile::run(hypervisor, &config(&Request { techniques, ..*request }, needs), &files, Vec::new(), request.plugin)
}

/// Runs the probe with one operation; returns `None` if VMs of Stile don't support it.
fn run(request: &Request<'_>, hypervisor: &Hypervisor, operation: Operation, iterations: u32) -> Result<Option<Run>> {
    let output = run_all(request, hypervisor, &[operation], iterations)?;
    let line = probe::lines(&output.console)?.into_iter().find(|line| line.operation == operation.name);
    let line = line.with_context(|| format!("the probe did not measure {}", operation.name))?;
    let Some((instructions, iterations)) = line.instructions.zip(line.iterations) else { return Ok(None) };
    let exits = output.exits()?;
    let mut sections = output.counts.map(|counts| counts.sections).unwrap_or_default();
    ensure!(sections.len() == usize::from(request.plugin.is_some()), "{} sections were counted for one figure", sections.len());
    let mut vmx = output.vmx;
    ensure!(vmx.len() == usize::from(request.platform.counts_vmx), "{} sections were counted for one figure", vmx.len());
    Ok(Some(Run { instructions, iterations, exits, section: sections.pop(), vmx: vmx.pop() }))
}

/// Number of exits that a run has more than another, by reason; negative if it has fewer.
struct Reasons(BTreeMap<String, i64>);

impl Reasons {
    fn more(twice: &BTreeMap<String, u64>, once: &BTreeMap<String, u64>) -> Self {
        let count = |of: &BTreeMap<String, u64>, reason| of.get(reason).copied().unwrap_or(0) as i64;
        let names = twice.keys().chain(once.keys());
        Self(names.map(|reason| (reason.clone(), count(twice, reason) - count(once, reason))).collect())
    }

    fn sum(&self) -> i64 {
        self.0.values().sum()
    }

    /// Returns the exits per operation, by reason. Reasons without a difference are dropped.
    fn of_each(self, operations: u64) -> BTreeMap<String, f64> {
        self.0.into_iter().filter(|(_, more)| *more != 0).map(|(reason, more)| (reason, more as f64 / operations as f64)).collect()
    }
}

/// One VM with the CPUs that operations need.
fn config(request: &Request<'_>, needs: Needs) -> MachineConfig {
    let vm = VmConfig { gic: request.gic, ..probe::vm(needs, request.techniques) };
    let arch = request.platform.arch;
    if request.techniques.interrupts == Interrupts::Direct {
        // With dedicated CPUs, and one more for Stile's interrupts.
        let vm = VmConfig { pinned: true, cpus: CpuSet::first_few(needs.cpus() as usize), ..vm };
        return under_stile::machine(arch, vm, needs.cpus() + 1, request.cpu);
    }
    MachineConfig { gic: request.gic, ..under_stile::machine(arch, vm, needs.cpus(), request.cpu) }
}
