//! What L1 runs under.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use stile_blob::{Nested, OnReset, Techniques};

use super::figure::Figure;
use crate::bench::counts::{self, Section};
use crate::bench::emulate::REPEATABLE;
use crate::bench::host::{Boot, Kvm, client_archive, client_boot_arguments};
use crate::bench::operation::Operation;
use crate::bench::{client, linux, probe, under_stile};
use crate::config::{Arch, DebianKernel, InitrdSource, KernelSource, VmConfig};
use crate::debian::{self, Freshness};
use crate::image::{self, Hypervisor, Seed, VmFiles};

/// The memory of L1 in bytes, and that of a host kernel under it.
const MEMORY: u64 = 512 << 20;
const HOST_MEMORY: u64 = MEMORY + (1 << 30);

/// L1's name.
const NAME: &str = "l1";

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

/// What to measure.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The probe's flat image.
    pub probe: &'a [u8],
    /// The emulated CPUs' model.
    pub cpu: &'a str,
    /// The operations.
    pub operations: &'a [Operation],
    /// How often each runs in a round; some run less often.
    pub iterations: u32,
    /// Stile.
    pub hypervisor: &'a Hypervisor,
    /// The plugin that counts.
    pub plugin: &'a Path,
    /// Told before each run: which host, and how many CPUs.
    pub progress: &'a dyn Fn(String),
}

/// What came of a run.
struct Output {
    console: Vec<u8>,
    counts: counts::Output,
}

impl L0 {
    /// All of them, in the order of the tables.
    pub const ALL: [Self; 3] = [Self::Nv2, Self::Nv, Self::Kvm];

    /// Its name in tables and in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nv2 => "stile-nv2",
            Self::Nv => "stile-nv",
            Self::Kvm => "kvm",
        }
    }

    /// How often L1 runs each of its VMs: of each operation the round counts that took the fewest instructions. A tick of L1's is in the
    /// others. Under KVM one is in all of them.
    const fn rounds(self) -> usize {
        match self {
            Self::Nv2 | Self::Nv => 6,
            Self::Kvm => 2,
        }
    }

    /// Its name in pages.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Nv2 => "Stile, `nv2`",
            Self::Nv => "Stile, `nv`",
            Self::Kvm => "KVM 7.3.4",
        }
    }

    /// Measures those operations that need so many CPUs, in a boot of L1.
    ///
    /// # Errors
    /// Something can't be built, fetched or run; the account of Stile and that of the emulator differ.
    pub fn measure(self, request: &Request<'_>, cpus: u8) -> Result<Vec<Figure>> {
        let operations: Vec<_> = request.operations.iter().filter(|operation| operation.needs.cpus() == u32::from(cpus)).copied().collect();
        if operations.is_empty() {
            return Ok(Vec::new());
        }
        (request.progress)(format!("{}, {cpus} CPUs", self.name()));
        let (initrd, names) = client_archive(request.probe, &operations, request.iterations)?;
        let output = self.boot(request, cpus, &initrd, &vec![names; self.rounds()].concat())?;
        self.figures(request.cpu, &output, &operations)
    }

    /// Of each operation, the round with the fewest instructions.
    fn figures(self, cpu: &str, output: &Output, operations: &[Operation]) -> Result<Vec<Figure>> {
        let lines = probe::lines(&output.console)?;
        let measured: Vec<_> =
            lines.iter().filter_map(|line| Some((line.operation.as_str(), line.instructions?, line.iterations?))).collect();
        let sections: &[Section] = &output.counts.sections;
        ensure!(sections.len() == measured.len(), "{} sections were counted for {} figures", sections.len(), measured.len());
        let least = |operation: &Operation| {
            let rounds = measured.iter().zip(sections).filter(|((name, ..), _)| *name == operation.name);
            let least = rounds.min_by(|((_, one, _), _), ((_, other, _), _)| one.total_cmp(other));
            let ((_, instructions, iterations), section) =
                least.with_context(|| format!("the probe did not measure {}", operation.name))?;
            Ok(Figure::new(self.name(), cpu, operation.name, *instructions, *iterations, section))
        };
        operations.iter().map(least).collect()
    }

    /// The kernel of L1.
    ///
    /// # Errors
    /// It can't be fetched or read.
    pub fn kernel() -> Result<Vec<u8>> {
        let kernel = debian::kernel(DebianKernel::Newest, Freshness::Weekly)?.kernel;
        std::fs::read(&kernel).with_context(|| format!("reading {}", kernel.display()))
    }

    /// Its boot arguments, for the VMs of these names.
    pub fn bootargs(names: &[String]) -> String {
        client_boot_arguments("loglevel=4", names)
    }

    /// Boots L1, which runs its VMs and turns the machine off.
    fn boot(self, request: &Request<'_>, cpus: u8, initrd: &[u8], names: &[String]) -> Result<Output> {
        let (kernel, bootargs) = (Self::kernel()?, Self::bootargs(names));
        let files = VmFiles { kernel: &kernel, initrd: Some(initrd), bootargs: &bootargs, domains: &[] };
        match self {
            Self::Nv2 => under_stile(request, l1(cpus, Nested::Nv2, MEMORY), &files),
            Self::Nv => under_stile(request, l1(cpus, Nested::Nv, MEMORY), &files),
            Self::Kvm => under_kvm(request, l1(cpus, Nested::Nv2, MEMORY), &files),
        }
    }
}

/// L1 as a VM with so many bytes of memory.
pub fn l1(vcpus: u8, nested: Nested, memory: u64) -> VmConfig {
    VmConfig {
        name: NAME.into(),
        kernel: KernelSource::Debian(DebianKernel::Newest),
        initrd: InitrdSource::None,
        append: String::new(),
        memory,
        vcpus,
        cpus: 0,
        pinned: false,
        on_reset: OnReset::Stop,
        exec: None,
        domains: Vec::new(),
        techniques: Techniques { nested, ..Techniques::default() },
    }
}

fn under_stile(request: &Request<'_>, l1: VmConfig, files: &VmFiles<'_>) -> Result<Output> {
    let config = under_stile::machine(Arch::Aarch64, l1.clone(), l1.vcpus.into(), request.cpu);
    let repeatable = REPEATABLE.map(str::to_owned).to_vec();
    let output = under_stile::run(request.hypervisor, &config, files, repeatable, Some(request.plugin))?;
    let counts = output.counts.context("the emulator's plugin counted nothing")?;
    let run = counts.run.as_ref().context("the emulator's plugin counted no run")?;
    // L1 and each of its VMs has a second stage of its own.
    let counted: u64 = run.worlds.iter().map(|world| world.exits).sum();
    let (taken, difference) = (output.account.taken, output.account.difference());
    ensure!(difference == 0, "{difference} exits are not in the ledger");
    ensure!(counted == taken, "{taken} exits by the ledger, and {counted} by the emulator");
    Ok(Output { console: output.console, counts })
}

fn under_kvm(request: &Request<'_>, l1: VmConfig, files: &VmFiles<'_>) -> Result<Output> {
    let plan = image::plan(&l1, files, Seed::Fixed)?;
    let initrd = client::planned(&linux::build(client::PROGRAM)?, &l1, &plan);
    let boot = Boot {
        cpu: request.cpu,
        cpus: l1.vcpus.into(),
        memory: HOST_MEMORY,
        initrd: &initrd,
        names: &[l1.name],
        plugin: Some(request.plugin),
    };
    let output = Kvm::Nested.boot(&boot)?;
    Ok(Output { console: output.line, counts: output.counts.context("the emulator's plugin counted nothing")? })
}

/// Which hosts the words of `--against` leave beside Stile with FEAT_NV2.
///
/// # Errors
/// A word that names none: a sentence that lists those that there are.
pub fn choose(words: &[String]) -> Result<Vec<L0>, String> {
    if words.is_empty() {
        return Ok(L0::ALL.to_vec());
    }
    let known = || L0::ALL.map(L0::name)[1..].join(", ");
    if let Some(unknown) = words.iter().find(|word| *word != "none" && !L0::ALL[1..].iter().any(|host| host.name() == **word)) {
        return Err(format!("L1 runs under no host called {unknown}; expected none or some of {}", known()));
    }
    Ok(L0::ALL.into_iter().filter(|host| *host == L0::Nv2 || words.iter().any(|word| word == host.name())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_chosen_by_name() {
        assert_eq!(choose(&[]).unwrap(), L0::ALL);
        assert_eq!(choose(&["none".to_owned()]).unwrap(), [L0::Nv2]);
        assert_eq!(choose(&["kvm".to_owned()]).unwrap(), [L0::Nv2, L0::Kvm]);
        assert!(choose(&["xen".to_owned()]).unwrap_err().contains("stile-nv, kvm"));
    }
}
