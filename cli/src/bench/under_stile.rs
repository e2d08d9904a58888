//! A run of Stile with one VM, which ends by itself.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use stile_ledger::report::Account;
use stile_wire::{Channel, Decoder, Event, Item};

use super::{counts, emulate};
use crate::config::{Arch, MachineConfig, VmConfig};
use crate::emulator::Board;
use crate::hypervisor;
use crate::image::{self, Hypervisor, Seed, VmFiles};
use crate::session::Exits;

/// Stile's default slice.
const SLICE: Duration = Duration::from_millis(5);

/// Builds the hypervisor, and reads it.
///
/// # Errors
/// It doesn't compile, or can't be read.
pub fn hypervisor() -> Result<Hypervisor> {
    let elf = hypervisor::build()?;
    let bytes = std::fs::read(&elf).with_context(|| format!("reading {}", elf.display()))?;
    Hypervisor::from_elf(&bytes).with_context(|| format!("reading {}", elf.display()))
}

/// A machine with so many CPUs of a model.
pub fn machine(vm: VmConfig, cpus: u32, cpu: &str) -> MachineConfig {
    MachineConfig { arch: Arch::Aarch64, cpus, memory: None, cpu_model: cpu.to_owned(), slice: SLICE, vms: vec![vm] }
}

/// What came of a run.
#[derive(Debug)]
pub struct Output {
    /// The VM's console.
    pub console: Vec<u8>,
    /// The VM's exits by its ledger, from its start to its end.
    pub account: Account,
    /// What the emulator counted, if anything was to be.
    pub counts: Option<counts::Output>,
}

/// Runs a machine of [`machine`], with further arguments for the emulator, and counts with the plugin if there is one.
///
/// # Errors
/// The files are not what they should be, the emulator fails, or Stile does not end well.
pub fn run(
    hypervisor: &Hypervisor,
    config: &MachineConfig,
    files: &VmFiles<'_>,
    extra: Vec<String>,
    plugin: Option<&Path>,
) -> Result<Output> {
    let plans = config.vms.iter().map(|vm| image::plan(vm, files, Seed::Fixed)).collect::<Result<Vec<_>, _>>()?;
    let image = image::assemble(hypervisor, config, &plans, true)?;
    let board = Board {
        cpu: config.cpu_model.clone(),
        cpus: config.cpus,
        memory: config.physical_memory(image.bytes.len() as u64).map_err(anyhow::Error::msg)?,
        machine: Vec::new(),
        icount: true,
        extra,
    };
    let output = emulate::run(&board, &image.bytes, plugin)?;
    let (console, account) = decode(&output.line)?;
    Ok(Output { console, account, counts: output.counts })
}

/// The VM's console and its exits, from what came over the serial line.
fn decode(line: &[u8]) -> Result<(Vec<u8>, Account)> {
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
    Ok((console, exits.report().machine()))
}
