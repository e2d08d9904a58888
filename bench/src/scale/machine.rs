//! Runs of a machine with the probe's VM and busy ones.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use stile_blob::Techniques;
use stile_board::{CpuId, CpuSet};

use super::figure::Figure;
use crate::counts::Plugin;
use crate::operation::{Needs, Operation};
use crate::probe;
use crate::under_stile::{self, Until};
use stile::config::{Arch, MachineConfig, VmConfig};
use stile::image::{Hypervisor, VmFiles};

/// The machine's time slice. The emulator runs all CPUs in turn, until the next timer of any of them expires or they
/// wait for each other: with a short slice it changes CPUs often.
const SLICE: Duration = Duration::from_millis(1);

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
const BUSY: &str = "only=vcpu_switch endless";
/// Boot arguments of a VM that ends immediately.
const ENDS: &str = "only=nothing";

/// Programs needed for a run.
#[derive(Debug)]
pub struct Tools {
    /// The probe's program.
    pub probe: Vec<u8>,
    /// Path of the emulator's plugin.
    pub plugin: PathBuf,
    /// Stile.
    pub hypervisor: Hypervisor,
}

/// Measures operations that need the same CPUs on a machine of `cpus` CPUs.
///
/// # Errors
/// The emulator fails, or a count is missing.
pub fn measure(tools: &Tools, cpu: &str, cpus: u32, needs: Needs, operations: &[Operation]) -> Result<Vec<Figure>> {
    let config = machine(cpu, cpus, needs);
    let measured = probe::arguments(operations, iterations(needs, cpus));
    let arguments = |index| match index {
        0 => &measured[..],
        _ if is_quiet(cpus, needs) => ENDS,
        _ => BUSY,
    };
    let files = |index| VmFiles { kernel: &tools.probe, initrd: None, bootargs: arguments(index), domains: &[] };
    let files: Vec<_> = (0..config.vms.len()).map(files).collect();
    let plugin = Plugin { path: &tools.plugin, sharing: true };
    let is_over = |console: &[u8]| probe::is_over(console, operations);
    let output = under_stile::run_vms(&tools.hypervisor, &config, &files, Vec::new(), Some(plugin), Until::Said(&is_over))?;
    let lines = probe::lines(&output.console)?;
    let sections = output.counts.context("the emulator's plugin counted nothing")?.sections;
    let measured: Vec<_> = lines.iter().filter_map(|line| Some((line, line.iterations?))).collect();
    ensure!(sections.len() == measured.len(), "{} sections were counted for {} figures", sections.len(), measured.len());
    let figure = |((line, iterations), section): (&(&probe::Line, u64), &crate::counts::Section)| {
        let sharing = section.sharing.as_ref().context("the emulator's plugin counted nothing of what CPUs share")?;
        Ok(Figure::new(cpu, cpus, &line.operation, sharing, *iterations))
    };
    measured.iter().zip(&sections).map(figure).collect()
}

/// Whether the probe's VM has all CPUs.
fn is_quiet(cpus: u32, needs: Needs) -> bool {
    cpus == needs.cpus()
}

/// A machine with the probe's VM on the first CPUs, and a busy VM on each other CPU. It always has several VMs, so that
/// shares are accounted on machines of all sizes: if the probe has all CPUs, the other VM ends immediately.
fn machine(cpu: &str, cpus: u32, needs: Needs) -> MachineConfig {
    let own = probe::vm(needs, Techniques::default());
    let own = VmConfig { cpus: CpuSet::first_few(needs.cpus() as usize), pinned: needs == Needs::Two, ..own };
    let mut machine = MachineConfig { slice: SLICE, ..under_stile::machine(Arch::Aarch64, own, cpus, cpu) };
    let other = |place: u32, needs| {
        let vm = probe::vm(needs, Techniques::default());
        VmConfig { name: format!("{}-{place}", vm.name), cpus: CpuId::wrapping(place as usize).into(), ..vm }
    };
    if is_quiet(cpus, needs) {
        machine.vms.push(other(0, Needs::One));
    }
    machine.vms.extend((needs.cpus()..cpus).map(|place| other(place, Needs::Shared)));
    machine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_is_the_probes_or_a_busy_vms() {
        for (needs, cpus) in [(Needs::One, 64), (Needs::Two, 64), (Needs::Shared, 4), (Needs::Two, 3)] {
            let machine = machine("max", cpus, needs);
            let all = machine.vms.iter().fold(CpuSet::EMPTY, |all, vm| {
                assert!(all.and(&vm.cpus).is_empty(), "{needs:?} on {cpus}: {}", vm.name);
                all.or(&vm.cpus)
            });
            assert_eq!(all, CpuSet::first_few(cpus as usize));
            assert!(machine.vms.len() <= stile_board::MAX_VMS);
        }
    }

    #[test]
    fn there_are_always_several_vms() {
        assert_eq!(machine("max", 1, Needs::One).vms.len(), 2);
        assert_eq!(machine("max", 2, Needs::Two).vms.len(), 2);
        assert_eq!(machine("max", 2, Needs::Shared).vms.len(), 2);
    }
}
