//! KVM beside Stile: the probe's VM, and VMs that keep all other CPUs busy, on a host of Debian's.

use std::path::PathBuf;

use anyhow::Result;

use super::figure::{Figure, Load, Machine};
use super::machine;
use crate::counts;
use crate::emulate::Next;
use crate::host::{Boot, Host, Kvm, ProbeVm, archive_of};
use crate::operation::{Needs, Operation};
use crate::platform::Platform;
use crate::probe;
use stile::l2::{client, linux};

/// The operations that are measured: those of Stile's that need no other techniques than KVM's.
const OPERATIONS: [&str; 6] = ["hyp_call", "mmio_read_vgic", "timer", "ipi", "wfi_wake", "vcpu_switch"];

/// Iterations; waiting operations run less often. The host's ticks, each of some thousand instructions, are spread over
/// them.
const ITERATIONS: u32 = 1024;

/// Virtual time from the start of the busy VMs to that of the probe's, in milliseconds: until they run.
const SETTLE_MS: u32 = 500;

/// Memory of a host, and of each of its VMs, in bytes.
const HOST: u64 = 1 << 30;

/// The modes of KVM that these words name; none without words. Only modes whose host is at EL2 can be counted: a host at EL1
/// has a second stage of its own, or none, while it works for a VM.
///
/// # Errors
/// Another word; the message lists the valid ones.
pub fn choose(platform: &Platform, words: &[String]) -> Result<Vec<Kvm>, String> {
    let all = platform.peers.iter().filter_map(|peer| match peer {
        Host::Kvm(kvm @ (Kvm::Vhe | Kvm::V6_12)) => Some(*kvm),
        _ => None,
    });
    let all: Vec<Kvm> = all.collect();
    if let Some(unknown) = words.iter().find(|word| *word != "none" && all.iter().all(|kvm| kvm.name() != **word)) {
        let known: Vec<_> = all.iter().map(|kvm| kvm.name()).collect();
        return Err(format!("--scale has no peer called {unknown}; expected {}", [&["none"], &known[..]].concat().join(" or ")));
    }
    Ok(all.into_iter().filter(|kvm| words.iter().any(|word| word == kvm.name())).collect())
}

/// The operations of a list that are measured under KVM.
pub fn supported(operations: &[Operation]) -> Vec<Operation> {
    operations.iter().filter(|operation| OPERATIONS.contains(&operation.name)).copied().collect()
}

/// Programs needed for a run, and the mode.
#[derive(Debug)]
pub struct Tools<'a> {
    kvm: Kvm,
    cpu: &'a str,
    client: Vec<u8>,
    probe: Vec<u8>,
    plugin: PathBuf,
    busy: &'static str,
}

impl<'a> Tools<'a> {
    /// Builds the programs.
    ///
    /// # Errors
    /// One doesn't compile.
    pub fn new(kvm: Kvm, platform: &Platform, cpu: &'a str) -> Result<Self> {
        let (arch, client) = (platform.arch, linux::build_for(platform.arch, client::PROGRAM)?);
        Ok(Self { kvm, cpu, client, probe: probe::build(arch)?, plugin: counts::build()?, busy: machine::busy(arch) })
    }

    /// Measures operations that need the same CPUs, on a machine whose other CPUs are busy.
    ///
    /// # Errors
    /// The kernel can't be fetched, the emulator fails, or a count is missing.
    pub fn measure(&self, cpus: u32, needs: Needs, operations: &[Operation]) -> Result<Vec<Figure>> {
        let own = ProbeVm { name: "probe".into(), vcpus: needs.vcpus(), bootargs: probe::arguments(operations, ITERATIONS) };
        let busy = ProbeVm { name: "busy".into(), vcpus: Needs::Shared.vcpus(), bootargs: self.busy.into() };
        let initrd = archive_of(&self.client, &self.probe, &[own, busy])?;
        let names = [group(cpus, needs)];
        let memory = HOST + u64::from(cpus) * probe::MEMORY;
        let boot = Boot { cpu: self.cpu, cpus, memory, initrd: &initrd, names: &names, plugin: Some(&self.plugin) };
        let output = self.kvm.boot_until(&boot, true, |line| if probe::is_over(line, operations) { Next::End } else { Next::GoOn })?;
        let sections = output.counts.as_ref().map(machine::of_plugin).unwrap_or_default();
        let size = Machine { cpus, load: Load::OnEachCpu };
        let figures = machine::figures(self.cpu, size, &output.line, &sections, 1)?;
        Ok(figures.into_iter().map(|figure| Figure { host: Some(self.kvm.name().into()), ..figure }).collect())
    }
}

/// The client's argument: a busy VM on each CPU that the probe's has not, and later the probe's.
fn group(cpus: u32, needs: Needs) -> String {
    let others = (needs.cpus()..cpus).map(|cpu| format!("busy@{cpu}"));
    let own = if needs == Needs::Shared { "probe@0" } else { "probe" };
    others.chain([format!("wait={SETTLE_MS}"), own.to_owned()]).collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform;
    use stile::config::Arch;

    #[test]
    fn each_cpu_is_the_probes_or_a_busy_vms() {
        assert_eq!(group(4, Needs::Two), "busy@2+busy@3+wait=500+probe");
        assert_eq!(group(2, Needs::Shared), "busy@1+wait=500+probe@0");
        assert_eq!(group(1, Needs::One), "wait=500+probe");
    }

    #[test]
    fn only_hosts_at_el2_are_measured() {
        let choose = |words: &[&str]| choose(platform::of(Arch::Aarch64), &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(choose(&[]), Ok(vec![]));
        assert_eq!(choose(&["none"]), Ok(vec![]));
        assert_eq!(choose(&["kvm-vhe"]), Ok(vec![Kvm::Vhe]));
        assert!(choose(&["kvm-nvhe"]).unwrap_err().contains("none or kvm-vhe or kvm-6.12"));
    }
}
