//! Runs of a machine with the probe's VM and busy ones.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use stile_blob::{OnReset, Techniques};
use stile_board::{CpuId, CpuSet};

use super::figure::{Figure, Load, Machine};
use crate::counts::{self, OwnCpus, Plugin};
use crate::operation::{Needs, Operation, RESTART, is_broadcast};
use crate::platform::Platform;
use crate::probe;
use crate::under_stile::{self, Until};
use stile::config::{Arch, MachineConfig, VmConfig};
use stile::image::{Hypervisor, VmFiles};

/// The machine's time slice. The emulator runs all CPUs in turn, until the next timer of any of them expires or they
/// wait for each other: with a short slice it changes CPUs often.
const SLICE: Duration = Duration::from_millis(1);

/// Iterations of a restart, which copies the probe and waits for milliseconds.
const RESTARTS: u32 = 8;

/// Iterations of an operation; waiting ones run less often. Switches must take several turns of the emulator, so that
/// the other CPUs run meanwhile; turns are shorter with more CPUs. An IPI takes some turns itself.
const fn iterations(needs: Needs, cpus: u32) -> u32 {
    match needs {
        Needs::One => 1024,
        Needs::Two => 128,
        Needs::Shared => 32_768 / cpus,
    }
}

/// The boot arguments of a busy VM: its two vCPUs, on one CPU, hand it to each other forever.
pub const fn busy(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => "only=vcpu_switch endless",
        Arch::X86_64 => "only=ipi_hlt_shared endless",
    }
}

/// Boot arguments of a VM that ends immediately.
const ENDS: &str = "only=nothing";

/// Programs needed for a run.
#[derive(Debug)]
pub struct Tools<'a> {
    /// The operations' platform.
    pub platform: &'a Platform,
    /// The CPUs' model.
    pub cpu: &'a str,
    /// The probe's program.
    pub probe: Vec<u8>,
    /// Path of the emulator's plugin, if counting takes one.
    pub plugin: Option<PathBuf>,
    /// Stile.
    pub hypervisor: Hypervisor,
}

/// Measures operations that need the same CPUs.
///
/// # Errors
/// The emulator fails, or a count is missing.
pub fn measure(tools: &Tools<'_>, size: Machine, needs: Needs, operations: &[Operation]) -> Result<Vec<Figure>> {
    let &Tools { platform, cpu, .. } = tools;
    let is_broadcast = operations.iter().any(|&operation| is_broadcast(operation));
    let config = if is_broadcast { everyone(platform.arch, cpu, size.cpus) } else { machine(platform.arch, cpu, size, needs) };
    let iterations = if operations == [RESTART] { RESTARTS } else { iterations(needs, size.cpus) };
    let measured = probe::arguments(operations, iterations);
    let arguments = |index| match index {
        0 => &measured[..],
        _ if is_broadcast || is_quiet(size.cpus, needs) => ENDS,
        _ => busy(platform.arch),
    };
    let files = |index| VmFiles { kernel: &tools.probe, initrd: None, bootargs: arguments(index), domains: &[], disks: &[] };
    let files: Vec<_> = (0..config.vms.len()).map(files).collect();
    let plugin = tools.plugin.as_deref().map(|path| Plugin { path, sharing: true });
    let is_over = |console: &[u8]| probe::is_over(console, operations);
    let output = under_stile::run_vms(&tools.hypervisor, &config, &files, Vec::new(), plugin, Until::Said(&is_over))?;
    let of_plugin = output.counts.as_ref().map(of_plugin).unwrap_or_default();
    let sections: Vec<OwnCpus> = of_plugin.into_iter().chain(output.vmx.iter().map(|section| *section.sharing())).collect();
    // A broadcast's cost is that of each target.
    figures(cpu, size, &output.console, &sections, if is_broadcast { u64::from(size.cpus - 1) } else { 1 })
}

/// The plugin's counts of each section.
pub fn of_plugin(counts: &counts::Output) -> Vec<OwnCpus> {
    counts.sections.iter().filter_map(|section| section.sharing.as_ref()).map(OwnCpus::from).collect()
}

/// The figures of the operations that the probe measured, each in a section. `parts`: of one operation, each of which is
/// a figure's unit.
///
/// # Errors
/// The probe failed, or the numbers of sections and figures differ.
pub fn figures(cpu: &str, size: Machine, console: &[u8], sections: &[OwnCpus], parts: u64) -> Result<Vec<Figure>> {
    let lines = probe::lines(console)?;
    let measured: Vec<_> = lines.iter().filter_map(|line| Some((line, line.iterations?))).collect();
    ensure!(sections.len() == measured.len(), "{} sections were counted for {} figures", sections.len(), measured.len());
    let figure = |((line, iterations), counts): (&(&probe::Line, u64), &OwnCpus)| {
        Figure::new(cpu, size, &line.operation, counts, *iterations * parts)
    };
    Ok(measured.iter().zip(sections).map(figure).collect())
}

/// Whether the probe's VM has all CPUs.
fn is_quiet(cpus: u32, needs: Needs) -> bool {
    cpus == needs.cpus()
}

/// A machine with the probe's VM on the first CPUs, and busy VMs on others. It always has several VMs, so that shares are
/// accounted on machines of all sizes: if the probe has all CPUs, the other VM ends immediately.
fn machine(arch: Arch, cpu: &str, Machine { cpus, load }: Machine, needs: Needs) -> MachineConfig {
    let own = probe::vm(needs, Techniques::default());
    let own = VmConfig { cpus: CpuSet::first_few(needs.cpus() as usize), pinned: needs == Needs::Two, on_reset: OnReset::Restart, ..own };
    let mut machine = MachineConfig { slice: SLICE, ..under_stile::machine(arch, own, cpus, cpu) };
    match load {
        Load::OnOneCpu { vms } => machine.vms.extend((1..vms).map(|number| another(number, needs.cpus(), Needs::Shared))),
        Load::OnEachCpu if is_quiet(cpus, needs) => machine.vms.push(another(0, 0, Needs::One)),
        Load::OnEachCpu => machine.vms.extend((needs.cpus()..cpus).map(|place| another(place, place, Needs::Shared))),
    }
    machine
}

/// A machine with the probe's VM on all CPUs, and a VM that ends immediately.
fn everyone(arch: Arch, cpu: &str, cpus: u32) -> MachineConfig {
    let own = probe::vm(Needs::Two, Techniques::default());
    let own = VmConfig { vcpus: cpus as u16, cpus: CpuSet::first_few(cpus as usize), pinned: true, ..own };
    let mut machine = MachineConfig { slice: SLICE, ..under_stile::machine(arch, own, cpus, cpu) };
    machine.vms.push(another(0, 0, Needs::One));
    machine
}

/// A VM on a CPU.
fn another(number: u32, place: u32, needs: Needs) -> VmConfig {
    let vm = probe::vm(needs, Techniques::default());
    VmConfig { name: format!("{}-{number}", vm.name), cpus: CpuId::wrapping(place as usize).into(), ..vm }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn size(cpus: u32) -> Machine {
        Machine { cpus, load: Load::OnEachCpu }
    }

    #[test]
    fn each_cpu_is_the_probes_or_a_busy_vms() {
        for (needs, cpus) in [(Needs::One, 64), (Needs::Two, 64), (Needs::Shared, 4), (Needs::Two, 3)] {
            let machine = machine(Arch::Aarch64, "max", size(cpus), needs);
            let all = machine.vms.iter().fold(CpuSet::EMPTY, |all, vm| {
                assert!(all.and(&vm.cpus).is_empty(), "{needs:?} on {cpus}: {}", vm.name);
                all.or(&vm.cpus)
            });
            assert_eq!(all, CpuSet::first_few(cpus as usize));
            assert!(machine.vms.len() <= stile_board::MAX_VMS);
        }
    }

    #[test]
    fn vms_share_the_last_cpu() {
        let machine = machine(Arch::Aarch64, "max", Machine { cpus: 3, load: Load::OnOneCpu { vms: 64 } }, Needs::Two);
        assert_eq!(machine.vms.len(), 64);
        assert!(machine.vms.iter().skip(1).all(|vm| vm.cpus == CpuId::wrapping(2).into()));
    }

    #[test]
    fn there_are_always_several_vms() {
        for (cpus, needs) in [(1, Needs::One), (2, Needs::Two), (2, Needs::Shared)] {
            assert_eq!(machine(Arch::Aarch64, "max", size(cpus), needs).vms.len(), 2);
        }
        assert_eq!(everyone(Arch::Aarch64, "max", 64).vms.iter().map(|vm| vm.vcpus).collect::<Vec<_>>(), [64, 1]);
    }
}
