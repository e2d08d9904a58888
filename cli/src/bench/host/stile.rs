//! The probe under Stile.

use anyhow::{Context, Result, ensure};

use super::{Figure, Outside, Request};
use crate::bench::counts::Section;
use crate::bench::operation::Operation;
use crate::bench::{probe, under_stile};
use crate::config::{InitrdSource, KernelSource, MachineConfig, VmConfig};
use crate::image::{Hypervisor, VmFiles};
use stile_blob::OnReset;

/// Measures each operation in two runs, the second one with twice as many of them: per operation is what the second one has more. The
/// ledger and the emulator must agree on exits.
pub fn measure(request: &Request<'_>) -> Result<Vec<Figure>> {
    let hypervisor = under_stile::hypervisor()?;
    let mut figures = Vec::new();
    for operation in request.operations {
        (request.progress)(format!("stile, {}", operation.name));
        let once = run(request, &hypervisor, *operation, request.iterations)?;
        let twice = run(request, &hypervisor, *operation, 2 * request.iterations)?;
        let more = twice.iterations.saturating_sub(once.iterations);
        ensure!(more > 0, "{}: twice as many iterations are no more", operation.name);
        let exits = twice.exits.saturating_sub(once.exits);
        let sections = twice.section.zip(once.section);
        if let Some((twice, once)) = &sections {
            let counted = twice.exits.saturating_sub(once.exits);
            ensure!(counted == exits, "{}: {exits} exits by the ledger, and {counted} by the emulator", operation.name);
        }
        figures.push(Figure {
            operation: operation.name.to_owned(),
            instructions: twice.instructions,
            exits: Some(exits as f64 / more as f64),
            outside: sections.map(|(twice, once)| Outside::of_each(&twice.outside.without(&once.outside), more)),
            iterations: twice.iterations,
        });
    }
    Ok(figures)
}

/// What came of one run.
#[derive(Debug)]
struct Run {
    instructions: f64,
    iterations: u64,
    /// All exits of the VM by its ledger, from its start to its end.
    exits: u64,
    /// What the emulator counted while the operation was measured.
    section: Option<Section>,
}

fn run(request: &Request<'_>, hypervisor: &Hypervisor, operation: Operation, iterations: u32) -> Result<Run> {
    let config = config(request, operation);
    let bootargs = probe::arguments(&[operation], iterations);
    let files = VmFiles { kernel: request.probe, initrd: None, bootargs: &bootargs, domains: &[] };
    let output = under_stile::run(hypervisor, &config, &files, Vec::new(), request.plugin)?;
    let line = probe::lines(&output.console)?.into_iter().find(|line| line.operation == operation.name);
    let (instructions, iterations) = line
        .and_then(|line| line.instructions.zip(line.iterations))
        .with_context(|| format!("the probe did not measure {}", operation.name))?;
    let mut sections = output.counts.map(|counts| counts.sections).unwrap_or_default();
    ensure!(sections.len() == usize::from(request.plugin.is_some()), "{} sections were counted for one figure", sections.len());
    Ok(Run { instructions, iterations, exits: output.account.taken, section: sections.pop() })
}

/// One VM with the CPUs that the operation needs.
fn config(request: &Request<'_>, operation: Operation) -> MachineConfig {
    let vm = VmConfig {
        name: "probe".into(),
        kernel: KernelSource::File("probe".into()),
        initrd: InitrdSource::None,
        append: String::new(),
        memory: probe::MEMORY,
        vcpus: operation.needs.vcpus(),
        cpus: 0,
        pinned: false,
        on_reset: OnReset::Stop,
        exec: None,
        domains: Vec::new(),
        techniques: request.techniques,
    };
    under_stile::machine(vm, operation.needs.cpus(), request.cpu)
}
