//! Hosts of L1.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use stile_blob::Nested;

use crate::counts;
use crate::emulate::REPEATABLE;
use crate::host::{Boot, Kvm};
use crate::operation::Operation;
use crate::probe;
use crate::under_stile::{self, Until};
use stile::config::{Arch, VmConfig};
use stile::emulator;
use stile::image::{self, Hypervisor, Seed, VmFiles};
use stile::l2::client::{self, Planned};
use stile::l2::linux;

/// Memory that a host kernel under L1 keeps for itself, in bytes.
const HOST_MEMORY: u64 = 1 << 30;

/// A hypervisor under L1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum L0 {
    /// Stile, with FEAT_NV2.
    Nv2,
    /// Stile, with FEAT_NV alone.
    Nv,
    /// KVM of Debian's newest kernel.
    Kvm,
}

/// Programs that measurements use.
pub struct Tools {
    /// The probe's flat image.
    pub probe: Vec<u8>,
    /// The plugin that counts.
    pub plugin: PathBuf,
    /// Stile.
    pub hypervisor: Hypervisor,
}

impl Tools {
    /// Builds the programs.
    ///
    /// # Errors
    /// A compilation fails, or the emulator is missing.
    pub fn new() -> Result<Self> {
        emulator::installed()?;
        Ok(Self { probe: probe::build(Arch::Aarch64)?, plugin: counts::build()?, hypervisor: stile::hypervisor::make(Arch::Aarch64)? })
    }
}

/// A requested measurement.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Programs for it.
    pub tools: &'a Tools,
    /// The emulated CPUs' model.
    pub cpu: &'a str,
    /// The operations.
    pub operations: &'a [Operation],
    /// Receives the setup and the number of CPUs before each run.
    pub progress: &'a dyn Fn(String),
}

/// Output of a run.
pub struct Output {
    /// L1's console.
    pub console: Vec<u8>,
    /// Counts of the plugin.
    pub counts: counts::Output,
}

impl L0 {
    /// All hosts, in the order of the tables.
    pub const ALL: [Self; 3] = [Self::Nv2, Self::Nv, Self::Kvm];

    /// Its name in tables and in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nv2 => "stile-nv2",
            Self::Nv => "stile-nv",
            Self::Kvm => "kvm",
        }
    }

    /// Its name in pages.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Nv2 => "Stile, `nv2`",
            Self::Nv => "Stile, `nv`",
            Self::Kvm => "KVM",
        }
    }

    /// Its emulation of a VM's EL2.
    const fn nested(self) -> Nested {
        match self {
            Self::Nv2 | Self::Kvm => Nested::Nv2,
            Self::Nv => Nested::Nv,
        }
    }

    /// Runs L1 until it turns its machine off, or, under Stile only, until its output is complete.
    ///
    /// # Errors
    /// Something can't be built, fetched or run; the account of Stile and that of the emulator differ.
    pub fn run(self, tools: &Tools, cpu: &str, mut l1: VmConfig, files: &VmFiles<'_>, until: Until<'_>) -> Result<Output> {
        l1.techniques.nested = self.nested();
        match self {
            Self::Nv2 | Self::Nv => under_stile(tools, cpu, l1, files, until),
            Self::Kvm => under_kvm(&tools.plugin, cpu, &l1, files),
        }
    }
}

fn under_stile(tools: &Tools, cpu: &str, l1: VmConfig, files: &VmFiles<'_>, until: Until<'_>) -> Result<Output> {
    let cpus = l1.vcpus.into();
    let config = under_stile::machine(Arch::Aarch64, l1, cpus, cpu);
    let repeatable = REPEATABLE.map(str::to_owned).to_vec();
    let output = under_stile::run_until(&tools.hypervisor, &config, files, repeatable, Some(&tools.plugin), until)?;
    let counts = output.counts.context("the emulator's plugin counted nothing")?;
    let run = counts.run.as_ref().context("the emulator's plugin counted no run")?;
    // L1 and each of its VMs have separate second stages.
    let counted: u64 = run.regimes.iter().map(|regime| regime.exits).sum();
    let (taken, difference) = (output.account.taken, output.account.difference());
    ensure!(difference == 0, "{difference} exits are not in the ledger");
    ensure!(counted == taken, "{taken} exits by the ledger, and {counted} by the emulator");
    Ok(Output { console: output.console, counts })
}

fn under_kvm(plugin: &Path, cpu: &str, l1: &VmConfig, files: &VmFiles<'_>) -> Result<Output> {
    let plan = image::plan(l1, files, Seed::Fixed)?;
    let vms = [Planned { arch: Arch::Aarch64, config: l1.clone(), plan }];
    let initrd = client::planned(&linux::build(client::PROGRAM)?, client::archive, &vms).finish();
    let boot = Boot {
        cpu,
        cpus: l1.vcpus.into(),
        memory: l1.memory + HOST_MEMORY,
        initrd: &initrd,
        names: std::slice::from_ref(&l1.name),
        plugin: Some(plugin),
    };
    let output = Kvm::Nested.boot(&boot)?;
    Ok(Output { console: output.line, counts: output.counts.context("the emulator's plugin counted nothing")? })
}
