//! The probe under Xen: as the only domain. On Arm Xen starts it itself ("dom0less") from the device tree.

mod pc;
mod tree;

use std::io::Write;

use anyhow::{Context, Result, ensure};

use super::{Figure, Request, figure};
use crate::counts::Plugin;
use crate::emulate::{self, Next};
use crate::platform::Platform;
use crate::probe;
use stile::config::Arch;
use stile::debian::{self, Freshness};
use stile::emulator::{self, Board};
use stile::image::domain::Domain;
use tree::Machine;

/// The machine's memory, in bytes.
const MEMORY: u64 = 4 * probe::MEMORY;

/// Address of the probe's image until Xen copies it. QEMU puts Xen at the start of RAM, and the device tree in its
/// middle.
const PROBE: u64 = stile_board::map::RAM_BASE + MEMORY / 4 * 3;

/// Measures in three runs: with one virtual CPU, with two that have a physical CPU each, and with two that share one.
pub fn measure(request: &Request<'_>) -> Result<Vec<Figure>> {
    match request.platform.arch {
        Arch::Aarch64 => measure_on_arm(request),
        Arch::X86_64 => pc::measure(request),
    }
}

fn measure_on_arm(request: &Request<'_>) -> Result<Vec<Figure>> {
    let xen = debian::xen(Freshness::Weekly)?;
    let xen = std::fs::read(&xen).with_context(|| format!("reading {}", xen.display()))?;
    let mut image = tempfile::NamedTempFile::new().context("making the probe's file")?;
    image.write_all(request.probe).context("writing the probe")?;
    let mut figures = Vec::new();
    for (needs, operations) in Platform::groups(request.operations) {
        (request.progress)(format!("xen, {} vCPUs on {} CPUs", needs.vcpus(), needs.cpus()));
        let bootargs = probe::arguments(&operations, request.iterations);
        let domain =
            Domain { vcpus: needs.vcpus(), memory: probe::MEMORY, image: PROBE..PROBE + request.probe.len() as u64, bootargs: &bootargs };
        let mut dtb = tempfile::NamedTempFile::new().context("making the device tree's file")?;
        dtb.write_all(&tree::build(&Machine { cpus: needs.cpus(), memory: MEMORY }, &domain)?).context("writing the device tree")?;
        let board = Board {
            cpu: request.cpu.to_owned(),
            cpus: needs.cpus(),
            nodes: Vec::new(),
            memory: MEMORY,
            machine: Vec::new(),
            smmu: false,
            firmware: None,
            icount: true,
            extra: vec![
                "-dtb".into(),
                dtb.path().display().to_string(),
                "-device".into(),
                // A comma in an option's value is written twice.
                format!("loader,file={},addr={PROBE:#x},force-raw=on", image.path().display().to_string().replace(',', ",,")),
            ],
        };
        // The domain's end is not the machine's.
        let next = |output: &[u8]| if probe::is_over(output, &operations) { Next::End } else { Next::GoOn };
        let output = emulate::run_until(&emulator::Machine::Arm(board), &xen, request.plugin.map(Plugin::new), next)?;
        let measured = figure::figures(output.counts.as_ref(), &output.vmx, &output.line, &operations)?;
        let line = &output.line;
        ensure!(probe::is_over(line, &operations), "Xen ended before the probe did; the end of its output:\n{}", probe::end(line));
        figures.extend(measured);
    }
    Ok(figures)
}
