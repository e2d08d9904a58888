//! What the probe can run under: Stile, its peers, and nothing at all.

mod kvm;
mod native;
mod stile;
mod xen;

use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use stile_blob::Techniques;

use super::counts::Counts;
use super::emulate::Output;
use super::operation::Operation;
use super::probe;
pub use kvm::{Boot, Kvm, boot_arguments as client_boot_arguments, client_archive};

/// Stile's name.
pub const STILE: &str = "stile";

/// Something that the probe runs under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Stile.
    Stile,
    /// No hypervisor: the least that an operation can cost.
    Native,
    /// KVM.
    Kvm(Kvm),
    /// Xen.
    Xen,
}

impl Host {
    /// Those that Stile is compared with.
    pub const PEERS: [Self; 6] =
        [Self::Native, Self::Kvm(Kvm::Vhe), Self::Kvm(Kvm::Nvhe), Self::Kvm(Kvm::Protected), Self::Kvm(Kvm::V6_12), Self::Xen];

    /// Its name on the command line and in the terminal's tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stile => STILE,
            Self::Native => "native",
            Self::Kvm(kvm) => kvm.name(),
            Self::Xen => "xen",
        }
    }

    /// Its name in pages and pictures.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Stile => "Stile",
            Self::Native => "no hypervisor",
            Self::Kvm(kvm) => kvm.title(),
            Self::Xen => "Xen",
        }
    }

    /// Whether there is no such host on a CPU without FEAT_VHE. (The newest kernel's protected mode stops in the boot there, in the
    /// emulator at least.)
    pub const fn needs_vhe(self) -> bool {
        matches!(self, Self::Kvm(Kvm::Vhe | Kvm::Protected | Kvm::V6_12))
    }

    /// Measures operations: one that the host does not have is left out.
    ///
    /// # Errors
    /// Something can't be built, fetched or run.
    pub fn measure(self, request: &Request<'_>) -> Result<Vec<Figure>> {
        match self {
            Self::Stile => stile::measure(request),
            Self::Native => native::measure(request),
            Self::Kvm(kvm) => kvm::measure(kvm, request),
            Self::Xen => xen::measure(request),
        }
    }
}

/// What to measure.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The probe's flat image.
    pub probe: &'a [u8],
    /// The emulated CPUs' model.
    pub cpu: &'a str,
    /// The operations.
    pub operations: &'a [Operation],
    /// How often each runs; some run less often.
    pub iterations: u32,
    /// The plugin that counts exits and what runs outside of the guest; nothing without it.
    pub plugin: Option<&'a Path>,
    /// The techniques of the VM, under Stile.
    pub techniques: Techniques,
    /// Told before each run: which host, and what is measured.
    pub progress: &'a dyn Fn(String),
}

/// What an operation costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The operation's name.
    pub operation: String,
    /// Instructions, without the loop's.
    pub instructions: f64,
    /// Exits, where they are counted.
    pub exits: Option<f64>,
    /// What ran outside of the guest, where it is counted.
    #[serde(flatten)]
    pub outside: Option<Outside>,
    /// How many were measured.
    pub iterations: u64,
}

/// What one operation makes run outside of the guest that measures it: at EL2, and in a host's EL1 and EL0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Outside {
    /// Instructions.
    #[serde(rename = "instructions_outside")]
    pub instructions: f64,
    /// MRS.
    pub sysreg_reads: f64,
    /// MSR.
    pub sysreg_writes: f64,
    /// DSB, DMB, ISB and SB.
    pub barriers: f64,
    /// TLBI, AT, DC and IC.
    pub tlb_ops: f64,
    /// Instructions that load; one of a pair of registers is one.
    pub loads: f64,
    /// Instructions that store.
    pub stores: f64,
}

impl Outside {
    /// What one of so many operations makes run.
    pub fn of_each(counts: &Counts, operations: u64) -> Self {
        let each = |count: u64| count as f64 / operations as f64;
        Self {
            instructions: each(counts.instructions),
            sysreg_reads: each(counts.sysreg_reads),
            sysreg_writes: each(counts.sysreg_writes),
            barriers: each(counts.barriers),
            tlb_ops: each(counts.tlb_ops),
            loads: each(counts.loads),
            stores: each(counts.stores),
        }
    }
}

/// The figures of the operations that the probe measured. It marks a section for each, in the order of its lines.
///
/// # Errors
/// The probe failed, or there are not as many sections as figures.
fn figures(output: &Output, console: &[u8], operations: &[Operation]) -> Result<Vec<Figure>> {
    let lines = probe::lines(console)?;
    let measured: Vec<_> = lines.iter().filter_map(|line| Some((line, line.instructions?, line.iterations?))).collect();
    let sections = output.counts.as_ref().map(|counts| counts.sections.as_slice());
    if let Some(sections) = sections {
        ensure!(sections.len() == measured.len(), "{} sections were counted for {} figures", sections.len(), measured.len());
    }
    let figure = |operation: &Operation| {
        let (index, (_, instructions, iterations)) =
            measured.iter().enumerate().find(|(_, (line, ..))| line.operation == operation.name)?;
        let section = sections.and_then(|sections| sections.get(index));
        Some(Figure {
            operation: operation.name.to_owned(),
            instructions: *instructions,
            exits: section.map(|section| section.exits as f64 / *iterations as f64),
            outside: section.map(|section| Outside::of_each(&section.outside, *iterations)),
            iterations: *iterations,
        })
    };
    Ok(operations.iter().filter_map(figure).collect())
}

/// All hosts, Stile first.
pub fn all() -> impl Iterator<Item = Host> {
    [Host::Stile].into_iter().chain(Host::PEERS)
}

/// The host of this name.
pub fn by_name(name: &str) -> Option<Host> {
    all().find(|host| host.name() == name)
}

/// Which peers the words of `--against` name.
///
/// # Errors
/// A word that names none: a sentence that lists those that there are.
pub fn choose(words: &[String]) -> Result<Vec<Host>, String> {
    if words.is_empty() {
        return Ok(Host::PEERS.to_vec());
    }
    let mut hosts = Vec::new();
    for word in words.iter().filter(|word| *word != "none") {
        let host = Host::PEERS.into_iter().find(|host| host.name() == word).ok_or_else(|| {
            let known: Vec<_> = Host::PEERS.iter().map(|host| host.name()).collect();
            format!("there is no peer called {word}; expected none or some of {}", known.join(", "))
        })?;
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_chosen_by_name() {
        assert_eq!(choose(&[]).unwrap(), Host::PEERS);
        assert_eq!(choose(&["none".to_owned()]).unwrap(), []);
        assert_eq!(choose(&["native".to_owned(), "native".to_owned()]).unwrap(), [Host::Native]);
        assert!(choose(&["vmware".to_owned()]).unwrap_err().contains("native"));
    }
}
