//! The probe under Xen on a PC with AMD-V: as its first domain, which Xen starts by PVH in a virtual machine.

use std::io::Write;

use anyhow::{Context, Result, ensure};

use super::super::{Figure, Request, figure};
use crate::counts::Plugin;
use crate::emulate::{self, Next};
use crate::operation::Needs;
use crate::platform::Platform;
use crate::probe;
use stile::config::{Arch, DebianKernel};
use stile::debian::{self, Freshness};
use stile::emulator::{AmdPc, Machine};
use stile::image;

/// The machine's memory, in bytes.
const MEMORY: u64 = 8 * probe::MEMORY;

/// Measures in two runs: with one virtual CPU, and with two that have a physical CPU each.
pub fn measure(request: &Request<'_>) -> Result<Vec<Figure>> {
    let xen = debian::kernel_for(Arch::X86_64, DebianKernel::Xen, Freshness::Weekly)?.kernel;
    let xen = std::fs::read(&xen).with_context(|| format!("reading {}", xen.display()))?;
    let (xen, _) = image::unpack(&xen)?;
    let mut file = tempfile::NamedTempFile::new().context("making the probe's file")?;
    file.write_all(request.probe).context("writing the probe")?;
    let mut figures = Vec::new();
    for (needs, operations) in Platform::groups(request.operations) {
        // Xen's first domain has all CPUs, and its vCPUs are pinned to them.
        if needs == Needs::Shared {
            continue;
        }
        (request.progress)(format!("xen, {} vCPUs on {} CPUs", needs.vcpus(), needs.cpus()));
        // In the list of modules a comma is written twice.
        let module = format!("{} {}", file.path().display(), probe::arguments(&operations, request.iterations)).replace(',', ",,");
        let pc = AmdPc {
            cpu: request.cpu.to_owned(),
            cpus: needs.cpus(),
            memory: MEMORY,
            machine: Vec::new(),
            icount: false,
            iommu: false,
            extra: vec!["-initrd".into(), module, "-append".into(), options(needs)],
        };
        // The machine does not turn off when the domain ends.
        let next = |output: &[u8]| if probe::is_over(output, &operations) { Next::End } else { Next::GoOn };
        let output = emulate::run_until(&Machine::AmdPc(pc), &xen, request.plugin.map(Plugin::new), next)?;
        let line = &output.line;
        ensure!(probe::is_over(line, &operations), "Xen ended before the probe did; the end of its output:\n{}", probe::end(line));
        let found = figure::figures(output.counts.as_ref(), &output.vmx, line, &operations)?;
        figures.extend(found.into_iter().map(Figure::outside_only));
    }
    Ok(figures)
}

/// Xen's command line ("Xen Hypervisor Command Line Options"), which begins with a name: no mitigations, as for the other hosts; HLT of idle
/// CPUs, because QEMU raises #GP for Xen's MWAIT. The domain has no device that needs an IOMMU.
fn options(needs: Needs) -> String {
    let (memory, vcpus) = (probe::MEMORY >> 20, needs.vcpus());
    let domain = format!("dom0=pvh dom0-iommu=none dom0_mem={memory}M,max:{memory}M dom0_max_vcpus={vcpus} dom0_vcpus_pin");
    format!("xen console=com1 bootscrub=0 spec-ctrl=no cpuidle=no {domain}")
}
