//! Runs of an L1 whose KVM runs the probe.

use anyhow::{Context, Result, ensure};
use stile_blob::Nested;

use super::figure::Figure;
use super::operations::{ENLIGHTENED, EPT_VIOLATION, KVM};
use crate::host::{self, Grouping};
use crate::operation::Operation;
use crate::probe;
use crate::under_stile::{self, Output};
use stile::config::{Arch, DebianKernel, KernelSource, VmConfig};
use stile::image::VmFiles;
use stile::l2::vm::vm;
use stile::programs::Programs;

/// Iterations of each operation in a round: few, so that a round without a timer tick of L1 is likely.
const ITERATIONS: u32 = 64;

/// Number of rounds, of which [`least`] chooses one.
const ROUNDS: usize = 8;

/// The memory of KVM's L1 in bytes, and of the test guest.
const MEMORY: u64 = 512 << 20;
const GUEST_MEMORY: u64 = 64 << 20;

/// The test guest.
const GUEST: &str = "vmx";

/// Measures operations: in a VM of this KVM's, and an EPT violation in one of the test guest `vmx`, whose tables do not change and which
/// has no enlightened VMCS.
///
/// # Errors
/// Something can't be built, fetched or run; the probe fails.
pub fn measure(l1: &str, cpu: &str, operations: &[Operation]) -> Result<Vec<Figure>> {
    let (by_guest, by_kvm): (Vec<Operation>, Vec<_>) = operations.iter().partition(|operation| **operation == EPT_VIOLATION);
    let mut figures = Vec::new();
    if !by_kvm.is_empty() {
        figures.extend(least(l1, cpu, &by_kvm, &run(l1, cpu, &by_kvm, ROUNDS)?)?);
    }
    if l1 == KVM && !by_guest.is_empty() {
        figures.extend(least(GUEST, cpu, &by_guest, &run_guest(cpu)?)?);
    }
    Ok(figures)
}

/// Returns each operation's round with the fewest exits and, of several, that with the fewest instructions. L1's tick costs an
/// exit, and a round with it can still have the fewest instructions.
fn least(l1: &str, cpu: &str, operations: &[Operation], output: &Output) -> Result<Vec<Figure>> {
    let lines = probe::lines(&output.console)?;
    let measured: Vec<_> = lines.iter().filter_map(|line| Some((line.operation.as_str(), line.instructions?, line.iterations?))).collect();
    ensure!(output.vmx.len() == measured.len(), "{} sections were counted for {} figures", output.vmx.len(), measured.len());
    let figure = |((name, instructions, iterations), section): (&(&str, f64, u64), _)| {
        Figure::new([l1, cpu, name], *instructions, *iterations, section)
    };
    let least = |operation: &Operation| {
        let rounds = measured.iter().zip(&output.vmx).filter(|((name, ..), _)| *name == operation.name).map(figure);
        rounds.min_by(Figure::cmp_cost).with_context(|| format!("{} was not measured", operation.name))
    };
    operations.iter().map(least).collect()
}

/// Runs the test guest `vmx`, which measures an EPT violation.
fn run_guest(cpu: &str) -> Result<Output> {
    let path = Programs::build(Arch::X86_64)?.path(GUEST)?;
    let program = std::fs::read(&path).with_context(|| format!("reading {path}"))?;
    let files = VmFiles { kernel: &program, initrd: None, bootargs: "only=cost", domains: &[], disks: &[] };
    under_stile(Nested::Nv2, cpu, vm("l1", KernelSource::File(path.into()), GUEST_MEMORY, 1), &files)
}

/// Boots L1, which runs the probe in a number of VMs, one after the other, and turns its machine off.
///
/// # Errors
/// Something can't be built, fetched or run; exits that are not in the ledger.
pub fn run(l1: &str, cpu: &str, operations: &[Operation], rounds: usize) -> Result<Output> {
    let (kernel, initrd, bootargs) = host::pc_host(&probe::build(Arch::X86_64)?, operations, ITERATIONS, rounds, Grouping::Alone)?;
    let kernel = std::fs::read(&kernel).with_context(|| format!("reading {}", kernel.display()))?;
    let files = VmFiles { kernel: &kernel, initrd: Some(&initrd), bootargs: &bootargs, domains: &[], disks: &[] };
    let nested = if l1 == ENLIGHTENED { Nested::Enlightened } else { Nested::Nv2 };
    under_stile(nested, cpu, vm("l1", KernelSource::Debian(DebianKernel::V6_1), MEMORY, 1), &files)
}

fn under_stile(nested: Nested, cpu: &str, mut l1: VmConfig, files: &VmFiles<'_>) -> Result<Output> {
    l1.techniques.nested = nested;
    let config = under_stile::machine(Arch::X86_64, l1, 1, cpu);
    under_stile::run(&stile::hypervisor::make(Arch::X86_64)?, &config, files, Vec::new(), None)
}
