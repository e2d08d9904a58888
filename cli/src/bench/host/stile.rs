//! The probe under Stile.

use anyhow::{Context, Result, ensure};
use stile_wire::{Channel, Decoder, Event, Item};

use super::{Figure, Outside, Request};
use crate::bench::counts::Section;
use crate::bench::operation::Operation;
use crate::bench::{emulate, probe};
use crate::config::{Arch, InitrdSource, KernelSource, MachineConfig, VmConfig};
use crate::emulator::Board;
use crate::hypervisor;
use crate::image::{self, Hypervisor, Seed, VmFiles};
use stile_blob::OnReset;

/// Stile's default slice.
const SLICE: std::time::Duration = std::time::Duration::from_millis(5);

/// Measures each operation in two runs, the second one with twice as many of them: per operation is what the second one has more. The
/// ledger and the emulator must agree on exits.
pub fn measure(request: &Request<'_>) -> Result<Vec<Figure>> {
    let elf = hypervisor::build()?;
    let bytes = std::fs::read(&elf).with_context(|| format!("reading {}", elf.display()))?;
    let hypervisor = Hypervisor::from_elf(&bytes).with_context(|| format!("reading {}", elf.display()))?;
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
    let files = VmFiles { kernel: request.probe, initrd: None, bootargs: &bootargs };
    let plans = config.vms.iter().map(|vm| image::plan(vm, &files, Seed::Fixed)).collect::<Result<Vec<_>, _>>()?;
    let image = image::assemble(hypervisor, &config, &plans, true)?;
    let board = Board {
        cpu: config.cpu_model.clone(),
        cpus: config.cpus,
        memory: config.physical_memory(image.bytes.len() as u64).map_err(anyhow::Error::msg)?,
        machine: Vec::new(),
        icount: true,
        extra: Vec::new(),
    };
    let output = emulate::run(&board, &image.bytes, request.plugin)?;
    let (console, exits) = decode(&output.line)?;
    let line = probe::lines(&console)?.into_iter().find(|line| line.operation == operation.name);
    let (instructions, iterations) = line
        .and_then(|line| line.instructions.zip(line.iterations))
        .with_context(|| format!("the probe did not measure {}", operation.name))?;
    let mut sections = output.counts.map(|counts| counts.sections).unwrap_or_default();
    ensure!(sections.len() == usize::from(request.plugin.is_some()), "{} sections were counted for one figure", sections.len());
    Ok(Run { instructions, iterations, exits, section: sections.pop() })
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
        techniques: request.techniques,
    };
    MachineConfig {
        arch: Arch::Aarch64,
        cpus: operation.needs.cpus(),
        memory: None,
        cpu_model: request.cpu.to_owned(),
        slice: SLICE,
        vms: vec![vm],
    }
}

/// The VM's console, and how many exits the vectors counted.
fn decode(line: &[u8]) -> Result<(Vec<u8>, u64)> {
    let mut decoder = Decoder::new();
    let (mut console, mut log) = (Vec::new(), Vec::new());
    let (mut exits, mut status) = (0, None);
    for &byte in line {
        let Some(item) = decoder.push(byte) else { continue };
        match item.event() {
            Some(Ok(Event::LedgerTotal(total))) => exits += total.taken,
            Some(Ok(Event::End { status: end })) => status = Some(end),
            Some(_) => {}
            None => match item {
                Item::Byte(Channel::LOG, byte) => log.push(byte),
                Item::Byte(channel, byte) if channel.vm() == Some(0) => console.push(byte),
                _ => {}
            },
        }
    }
    ensure!(status == Some(0), "Stile did not end well; its log:\n{}", String::from_utf8_lossy(&log).trim_end());
    Ok((console, exits))
}
