//! A run, and its counts.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use stile_board::map;
use stile_ledger::x86_64::key;

use crate::full::system::{self, System};
use crate::full::work::Work;
use crate::{counts, vmx};
use stile::config::{Arch, KernelSource, VmConfig};
use stile::l2;

/// One measured run: guest, amount of work and emulated machine.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The architecture.
    pub arch: Arch,
    /// Work of the guest.
    pub work: &'a Work,
    /// Amount of work.
    pub units: u32,
    /// The guest's files.
    pub system: &'a System,
    /// The emulated CPUs' model.
    pub cpu: &'a str,
    /// The emulator's plugin that counts; the emulated PC has none.
    pub plugin: Option<&'a Path>,
}

/// Cost of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Exits by reason.
    pub exits: BTreeMap<String, u64>,
    /// Instructions of all CPUs, the hypervisor's included.
    pub instructions: u64,
    /// Instructions of the hypervisor.
    pub hypervisor: u64,
}

/// Returns the name of a reason of the plugin: for an abort, the device at its address.
fn named(reason: &str) -> String {
    let address = reason.split_once(" abort 0x").and_then(|(_, address)| u64::from_str_radix(address, 16).ok());
    let name = match address {
        Some(map::RAM_BASE..) => "second-stage fault",
        Some(map::PL011_BASE) => "UART",
        Some(map::PL031_BASE) => "clock",
        Some(map::GICD_BASE..map::PL011_BASE) => "GIC",
        _ => reason,
    };
    name.to_owned()
}

/// The guest as a VM, with each vCPU pinned to a physical CPU.
pub(super) fn vm(job: &Job<'_>) -> VmConfig {
    VmConfig { pinned: true, ..l2::vm::vm("guest", KernelSource::File("kernel".into()), system::MEMORY, job.work.vcpus) }
}

impl Counts {
    /// Returns the counts of the plugin. VMs are those with a second stage of translation; a host's kernel at EL1 has none.
    ///
    /// # Errors
    /// The plugin counted no run.
    pub fn of(counted: Option<&counts::Output>) -> Result<Self> {
        let run = counted.and_then(|counts| counts.run.as_ref()).context("the emulator's plugin counted no run")?;
        let mut exits: BTreeMap<String, u64> = BTreeMap::new();
        let mut hypervisor = run.el2.instructions + run.host_el0.instructions;
        let mut instructions = hypervisor;
        for regime in &run.regimes {
            instructions += regime.el1.instructions + regime.el0.instructions;
            if regime.table.is_none() {
                hypervisor += regime.el1.instructions + regime.el0.instructions;
                continue;
            }
            for (reason, count) in &regime.reasons {
                *exits.entry(named(reason)).or_default() += count;
            }
        }
        Ok(Self { exits, instructions, hypervisor })
    }

    /// Returns the counts of the emulated PC between the guest's two marks.
    pub(super) fn of_section(sections: &[vmx::Section]) -> Result<Self> {
        let [section] = sections else { bail!("the guest marked {} measurements instead of one", sections.len()) };
        let named = |(reason, count): (&u16, &u64)| (key::exit_reason((*reason).into()).to_string(), *count);
        Ok(Self {
            exits: section.by_reason().iter().map(named).collect(),
            instructions: section.all_instructions(),
            hypervisor: section.instructions(),
        })
    }
}

/// Whether the guest's console reports the end of the work.
///
/// # Errors
/// It does not: with the end of its output.
pub(super) fn confirm(job: &Job<'_>, console: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(console);
    let done = job.work.is_boot() || text.contains(&system::confirmation(job.work, job.units));
    ensure!(done, "the guest did not do its work; the end of its output:\n{}", end(&text));
    Ok(())
}

/// Returns the units of work that a guest reports on this console to have done: the most, if several do.
///
/// # Errors
/// None of them has done any: with the end of the output.
pub fn units_done(work: &Work, console: &[u8]) -> Result<u32> {
    let text = String::from_utf8_lossy(console);
    let reported = |line: &str| line.split_once("work: did ")?.1.trim_end().strip_suffix(work.name)?.strip_suffix(" of ")?.parse().ok();
    let most = text.lines().filter_map(reported).max();
    most.filter(|units| *units > 0).with_context(|| format!("the guest did not do its work; the end of its output:\n{}", end(&text)))
}

/// The last lines of a text.
fn end(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_reports_the_work() {
        let work = super::super::super::choose(Arch::Aarch64, &["cpu".to_owned()])[0];
        assert_eq!(units_done(work, b"work: did 0 of cpu\r\nclient: work: did 17 of cpu\r\nwork: did 20 of redis\r\n").unwrap(), 17);
        assert!(units_done(work, b"work: did 0 of cpu\nwork: cpu failed with 1\n").unwrap_err().to_string().contains("failed with 1"));
    }

    #[test]
    fn aborts_are_named_after_devices() {
        let names = ["IRQ", "data abort 0x9000000", "data abort 0x80a0000", "data abort 0x40790000", "instruction abort 0x42000000"];
        assert_eq!(names.map(named), ["IRQ", "UART", "GIC", "second-stage fault", "second-stage fault"]);
        assert_eq!(named("data abort 0xa000000"), "data abort 0xa000000");
    }
}
