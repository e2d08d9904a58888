//! The guest under Stile: exits are what its ledger counts.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use stile_ledger::aarch64::CATALOGUE;
use stile_wire::{Channel, Decoder, Event, Item};

use super::{Counts, Job, confirm};
use crate::bench::emulate;
use crate::bench::full::system;
use crate::config::{Arch, MachineConfig};
use crate::emulator::Board;
use crate::hypervisor;
use crate::image::{self, Hypervisor, Seed, VmFiles};
use crate::session::Exits;

/// Stile's default slice.
const SLICE: std::time::Duration = std::time::Duration::from_millis(5);

/// Runs it.
pub fn run(job: &Job<'_>) -> Result<Counts> {
    let elf = hypervisor::build()?;
    let bytes = std::fs::read(&elf).with_context(|| format!("reading {}", elf.display()))?;
    let hypervisor = Hypervisor::from_elf(&bytes).with_context(|| format!("reading {}", elf.display()))?;
    let config = machine(job);
    let bootargs = system::bootargs(job.work, job.units);
    let files = VmFiles { kernel: &job.system.kernel, initrd: Some(&job.system.initrd), bootargs: &bootargs };
    let plans = config.vms.iter().map(|vm| image::plan(vm, &files, Seed::Fixed)).collect::<Result<Vec<_>, _>>()?;
    let image = image::assemble(&hypervisor, &config, &plans, true)?;
    let board = Board {
        cpu: config.cpu_model.clone(),
        cpus: config.cpus,
        memory: config.physical_memory(image.bytes.len() as u64).map_err(anyhow::Error::msg)?,
        machine: Vec::new(),
        icount: true,
        extra: emulate::REPEATABLE.map(str::to_owned).to_vec(),
    };
    let output = emulate::run(&board, &image.bytes, Some(job.plugin))?;
    let exits = decode(job, &output.line)?;
    let counts = Counts::of(&output)?;
    let (taken, counted) = (counts.exits.values().sum::<u64>(), exits.values().sum::<u64>());
    ensure!(taken == counted, "the ledger has {counted} exits, and the emulator's plugin {taken}");
    // The ledger's reasons are finer.
    Ok(Counts { exits, ..counts })
}

/// One VM; each of its CPUs has a physical one for itself.
fn machine(job: &Job<'_>) -> MachineConfig {
    MachineConfig {
        arch: Arch::Aarch64,
        cpus: job.work.vcpus.into(),
        memory: None,
        cpu_model: job.cpu.to_owned(),
        slice: SLICE,
        vms: vec![super::vm(job)],
    }
}

/// Exits by reason, from what came over the serial line.
fn decode(job: &Job<'_>, line: &[u8]) -> Result<BTreeMap<String, u64>> {
    let mut decoder = Decoder::new();
    let (mut console, mut log) = (Vec::new(), Vec::new());
    let (mut exits, mut status) = (Exits::default(), None);
    for &byte in line {
        let Some(item) = decoder.push(byte) else { continue };
        match item.event() {
            Some(Ok(Event::End { status: end })) => status = Some(end),
            Some(Ok(event)) => exits.take(&event),
            Some(Err(_)) => {}
            None => match item {
                Item::Byte(Channel::LOG, byte) => log.push(byte),
                Item::Byte(channel, byte) if channel.vm() == Some(0) => console.push(byte),
                _ => {}
            },
        }
    }
    ensure!(status == Some(0), "Stile did not end well; its log:\n{}", String::from_utf8_lossy(&log).trim_end());
    confirm(job, &console)?;
    let account = exits.report().machine();
    ensure!(account.difference() == 0, "the ledger does not add up: difference {}", account.difference());
    let rows = account.reasons(&CATALOGUE);
    let subs = rows.iter().flat_map(|reason| reason.subs.iter().map(|sub| (name(reason.name, &sub.name), sub.row.count)));
    Ok(subs.collect())
}

/// A row's name among the rows of all reasons.
fn name(reason: &str, sub: &str) -> String {
    if sub == "other" { reason.to_owned() } else { sub.to_owned() }
}
