//! A run of Stile with one VM that ends itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use stile_ledger::report::Account;
use stile_wire::{Channel, Command, Decoder, Encoder, Event, Item};

use super::counts::{self, Plugin};
use super::emulate::{self, Next};
use super::platform::{self, Start};
use super::vmx;
use stile::config::{Arch, MachineConfig, VmConfig};
use stile::image::{self, Hypervisor, Seed, VmFiles};
use stile::session::{Exits, catalogue};

/// Stile's default slice.
const SLICE: Duration = Duration::from_millis(5);

/// A machine with `cpus` CPUs of a model.
pub fn machine(arch: Arch, vm: VmConfig, cpus: u32, cpu: &str) -> MachineConfig {
    let mitigations = stile_blob::Mitigations::default();
    let gic = stile_blob::Gic::default();
    MachineConfig { arch, cpus, nodes: 1, memory: None, cpu_model: cpu.to_owned(), slice: SLICE, mitigations, gic, vms: vec![vm] }
}

/// Output of a run.
#[derive(Debug)]
pub struct Output {
    arch: Arch,
    /// The VM's console.
    pub console: Vec<u8>,
    /// The VM's exits by its ledger, from its start to its end.
    pub account: Account,
    /// Counts of the plugin, if there is one.
    pub counts: Option<counts::Output>,
    /// Counts of the emulated PC.
    pub vmx: Vec<vmx::Section>,
}

/// End of a VM's run.
#[derive(Clone, Copy)]
pub enum Until<'a> {
    /// Until the VM ends itself.
    ItEnds,
    /// Until this function returns true for the console's complete output. Then the VM is ended.
    Said(&'a dyn Fn(&[u8]) -> bool),
}

/// Runs a machine of [`machine`], with further arguments for the emulator, and counts with the plugin if there is one.
///
/// # Errors
/// Malformed files, a failure of the emulator, or an abnormal end of Stile.
pub fn run(
    hypervisor: &Hypervisor,
    config: &MachineConfig,
    files: &VmFiles<'_>,
    extra: Vec<String>,
    plugin: Option<&Path>,
) -> Result<Output> {
    run_until(hypervisor, config, files, extra, plugin, Until::ItEnds)
}

/// Runs a VM that need not end itself.
///
/// # Errors
/// As of [`run`].
pub fn run_until(
    hypervisor: &Hypervisor,
    config: &MachineConfig,
    files: &VmFiles<'_>,
    extra: Vec<String>,
    plugin: Option<&Path>,
    until: Until<'_>,
) -> Result<Output> {
    let files = vec![*files; config.vms.len()];
    run_vms(hypervisor, config, &files, extra, plugin.map(Plugin::new), until)
}

/// Runs VMs with a set of files each. The first VM determines the end of the run; if it ends itself, all VMs must.
///
/// # Errors
/// As of [`run`].
pub fn run_vms(
    hypervisor: &Hypervisor,
    config: &MachineConfig,
    files: &[VmFiles<'_>],
    extra: Vec<String>,
    plugin: Option<Plugin<'_>>,
    until: Until<'_>,
) -> Result<Output> {
    let plan = |(vm, files)| image::plan_for(config.arch, vm, files, Seed::Fixed);
    let plans = config.vms.iter().zip(files).map(plan).collect::<Result<Vec<_>, _>>()?;
    let image = image::assemble(hypervisor, config, &plans, true, "")?;
    let memory = config.physical_memory(image.bytes.len() as u64).map_err(anyhow::Error::msg)?;
    let start = Start { cpu: &config.cpu_model, cpus: config.cpus, memory };
    let machine = platform::of_machine(config.arch, &config.cpu_model).hypervisors(&start, config.gic, extra);
    let mut is_told = false;
    let output = emulate::run_until(&machine, &image.bytes, plugin, |line| match until {
        Until::Said(is_over) if !is_told && is_over(&console_of(line)) => {
            is_told = true;
            Next::Send(command(&Command::Shutdown))
        }
        _ => Next::GoOn,
    })?;
    let (console, exits) = decode(config.arch, &output.line)?;
    let account = exits.report().machine();
    Ok(Output { arch: config.arch, console, account, counts: output.counts, vmx: output.vmx })
}

impl Output {
    /// The exits by reason.
    ///
    /// # Errors
    /// Exits without a row of the ledger.
    pub fn exits(&self) -> Result<BTreeMap<String, u64>> {
        exits_of(self.arch, &self.account)
    }
}

/// The exits of an account by reason.
///
/// # Errors
/// Exits without a row of the ledger.
pub fn exits_of(arch: Arch, account: &Account) -> Result<BTreeMap<String, u64>> {
    ensure!(account.difference() == 0, "{} exits are not in the ledger", account.difference());
    let reasons = account.reasons(catalogue(arch));
    let rows = reasons.iter().flat_map(|reason| reason.subs.iter().map(|sub| (row_name(reason.name, &sub.name), sub.row.count)));
    Ok(rows.collect())
}

/// The name of a row among the rows of all reasons.
fn row_name(reason: &str, sub: &str) -> String {
    if sub == "other" { reason.to_owned() } else { format!("{reason}: {sub}") }
}

/// Encodes a command for the serial line.
fn command(command: &Command) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::new().command(command, &mut |byte| bytes.push(byte));
    bytes
}

/// Returns the VM's console output in the bytes received from the serial line.
fn console_of(line: &[u8]) -> Vec<u8> {
    let mut decoder = Decoder::new();
    let byte = |byte: &u8| match decoder.push(*byte)? {
        Item::Byte(channel, byte) if channel.vm() == Some(0) => Some(byte),
        _ => None,
    };
    line.iter().filter_map(byte).collect()
}

/// Extracts the first VM's console, and the exits of all VMs, from the output of the serial line.
///
/// # Errors
/// Stile did not end well.
pub fn decode(arch: Arch, line: &[u8]) -> Result<(Vec<u8>, Exits)> {
    let mut decoder = Decoder::new();
    let (mut console, mut log) = (Vec::new(), Vec::new());
    let (mut exits, mut status) = (Exits::new(arch), None);
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
    Ok((console, exits))
}
