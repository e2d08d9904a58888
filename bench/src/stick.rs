//! `stile image --bench`: a stick that describes the machine on which it starts, and measures the probe's operations there.

use std::fs;

use anyhow::{Context, Result};
use stile_blob::Techniques;

use super::operation::Needs;
use super::{probe, under_stile};
use stile::args::ImageArgs;
use stile::config::{Arch, KernelSource, VmConfig};
use stile::{exit, l2, stick};

/// Name of its VM, and so of its console.
const NAME: &str = "bench";

/// Iterations of an operation: a counter of 25 MHz then resolves 0.04 ns of each, and an IPI between two vCPUs that have to share a CPU
/// ends within a slice.
const ITERATIONS: u32 = 1024;

/// Writes the image, and prints how to use it.
///
/// # Errors
/// Flags of a machine; a failed build; an image that can't be written.
pub fn image(args: &ImageArgs) -> Result<u8> {
    let arch = args.machine.arch.as_deref().map_or(Ok(Arch::Aarch64), Arch::named).map_err(exit::usage)?;
    let files = tempfile::tempdir().context("making a temporary directory")?;
    let kernel = files.path().join("probe");
    fs::write(&kernel, probe::build(arch)?).context("writing the probe")?;
    // Pinned, so that no figure has a migration in it: on two CPUs, if the machine has as many.
    let vm = VmConfig {
        append: format!("counters n={ITERATIONS}"),
        pinned: true,
        techniques: Techniques { counters: true, ..Techniques::default() },
        gic: if args.machine.gic == Some(2) { stile_blob::Gic::V2 } else { stile_blob::Gic::V3 },
        ..l2::vm::vm(NAME, KernelSource::File(kernel), probe::MEMORY, Needs::Two.vcpus())
    };
    let mut machine = under_stile::machine(arch, vm, Needs::Two.cpus(), arch.default_cpu_model());
    machine.gic = machine.vms[0].gic;
    stick::write_image(args, machine)
}
