//! The hypervisors in the VM.

use anyhow::{Context, Result, ensure};

use super::l0::{L0, Output, Request};
use super::operations::SYSCALL;
use crate::host::{client_archive, client_boot_arguments};
use crate::operation::Operation;
use crate::probe;
use crate::under_stile::Until;
use stile::config::{DebianKernel, DomainConfig, KernelSource, VmConfig};
use stile::debian::{self, Freshness};
use stile::image::VmFiles;
use stile::l2::vm::vm;

/// Iterations of each operation in a round: few, so that some round has no timer tick of L1.
const ITERATIONS: u32 = 128;

/// The memory of an L1 in bytes.
const MEMORY: u64 = 512 << 20;

/// L1's name.
const NAME: &str = "l1";

/// Xen's command line: where its console is, and that it need not clear free memory.
const XEN_PARAMETERS: &str = "console=dtuart bootscrub=0";

/// A hypervisor in the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum L1 {
    /// KVM of Debian's newest kernel, which has HCR_EL2.E2H set.
    Kvm,
    /// KVM without VHE: HCR_EL2.E2H is clear, and the kernel is at EL1.
    KvmNvhe,
    /// Xen of Debian 13, which starts the probe as a dom0less domain.
    Xen,
}

impl L1 {
    /// All of them, in the order of the tables.
    pub const ALL: [Self; 3] = [Self::Kvm, Self::KvmNvhe, Self::Xen];

    /// Its name on the command line and in figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::KvmNvhe => "kvm-nvhe",
            Self::Xen => "xen",
        }
    }

    /// Its name in pages.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::KvmNvhe => "KVM nVHE",
            Self::Xen => "Xen",
        }
    }

    /// L0s that it runs under. With HCR_EL2.E2H clear, which takes FEAT_NV2, KVM as L0 hangs.
    pub const fn hosts(self) -> &'static [L0] {
        match self {
            Self::Kvm => &L0::ALL,
            Self::KvmNvhe | Self::Xen => &[L0::Nv2],
        }
    }

    /// Whether an operation can be measured with this hypervisor: Xen has no user-space programs.
    pub fn has(self, operation: &Operation) -> bool {
        self != Self::Xen || operation.name != SYSCALL.name
    }

    /// Number of times that each of its VMs runs: the minimum over the rounds is used for each operation, which excludes L1's timer ticks.
    /// Under KVM each round contains a tick; Xen has none.
    const fn rounds(self, host: L0) -> usize {
        match (self, host) {
            (Self::Xen, _) => 1,
            (_, L0::Kvm) => 2,
            (_, L0::Nv2 | L0::Nv) => 6,
        }
    }

    /// Boots the hypervisor on `cpus` CPUs and runs the probe, with operations that it [`has`](Self::has).
    ///
    /// # Errors
    /// See [`L0::run`].
    pub fn run(self, host: L0, request: &Request<'_>, cpus: u8, operations: &[Operation]) -> Result<Output> {
        match self {
            Self::Kvm => kvm(host, request, cpus, operations, "loglevel=4", self.rounds(host)),
            Self::KvmNvhe => kvm(host, request, cpus, operations, "loglevel=4 kvm-arm.mode=nvhe", self.rounds(host)),
            Self::Xen => xen(host, request, cpus, operations),
        }
    }
}

fn kvm(host: L0, request: &Request<'_>, cpus: u8, operations: &[Operation], parameters: &str, rounds: usize) -> Result<Output> {
    let in_l2: Vec<_> = operations.iter().filter(|operation| operation.name != SYSCALL.name).copied().collect();
    let (initrd, mut names) = client_archive(&request.tools.probe, &in_l2, ITERATIONS)?;
    if in_l2.len() < operations.len() {
        names.push(format!("syscalls={ITERATIONS}"));
    }
    let (kernel, bootargs) = (debian_kernel()?, client_boot_arguments(parameters, &vec![names; rounds].concat()));
    let files = VmFiles { kernel: &kernel, initrd: Some(&initrd), bootargs: &bootargs, domains: &[], disks: &[] };
    host.run(request.tools, request.cpu, debian(cpus.into(), MEMORY), &files, Until::ItEnds)
}

fn xen(host: L0, request: &Request<'_>, cpus: u8, operations: &[Operation]) -> Result<Output> {
    let path = debian::xen(Freshness::Weekly)?;
    let xen = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let domain = DomainConfig {
        kernel: "probe".into(),
        append: probe::arguments(operations, ITERATIONS),
        memory: probe::MEMORY,
        vcpus: cpus.into(),
    };
    let domains = [request.tools.probe.clone()];
    let config = VmConfig { kernel: KernelSource::Debian(DebianKernel::Xen), domains: vec![domain], ..debian(cpus.into(), MEMORY) };
    let files = VmFiles { kernel: &xen, initrd: None, bootargs: XEN_PARAMETERS, domains: &domains, disks: &[] };
    // The domain's end is not Xen's.
    let is_over = |console: &[u8]| probe::is_over(console, operations);
    let output = host.run(request.tools, request.cpu, config, &files, Until::Said(&is_over))?;
    ensure!(is_over(&output.console), "Xen ended before the probe did; the end of its output:\n{}", probe::end(&output.console));
    Ok(output)
}

/// Debian's newest kernel.
///
/// # Errors
/// It can't be fetched or read.
pub fn debian_kernel() -> Result<Vec<u8>> {
    let kernel = debian::kernel(DebianKernel::Newest, Freshness::Weekly)?.kernel;
    std::fs::read(&kernel).with_context(|| format!("reading {}", kernel.display()))
}

/// The VM of a Debian with `vcpus` vCPUs and `memory` bytes, without virtual EL2.
pub fn debian(vcpus: u16, memory: u64) -> VmConfig {
    vm(NAME, KernelSource::Debian(DebianKernel::Newest), memory, vcpus)
}
