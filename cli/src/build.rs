//! `stile build`: writes the image that `run` starts into a file.

use std::fs;
use std::io::Write;

use anyhow::{Context, Result};
use serde_json::json;

use crate::args::{BuildArgs, MachineArgs};
use crate::config::{Arch, MachineConfig, units};
use crate::emulator::bochs;
use crate::image::Seed;
use crate::machine::{self, Machine, Options};
use crate::{cleanup, exit, out, replaced};

/// Reads the configuration of a machine that is not emulated by this command.
///
/// # Errors
/// A mistake in the configuration, or a setting that only emulated machines support.
pub fn configure(args: &MachineArgs) -> Result<MachineConfig> {
    let config = machine::configure(args)?;
    if config.vms.iter().any(|vm| vm.emulated_functions() != 0) {
        let what =
            "disks, networks and shared folders are devices of the machine that `stile run` emulates: assign a board's own by [[vm.pci]]";
        return Err(exit::usage(what));
    }
    Ok(config)
}

/// Makes the machine of [`configure`]. `text`: see [`Options::text`].
///
/// # Errors
/// A failed fetch or build.
pub fn machine(config: MachineConfig, text: &str) -> Result<Machine> {
    machine::make(config, &Options { report_exits: false, seed: Seed::Random, terminal: ("linux", (0, 0), true), text })
}

/// Makes the image, and prints how to start it.
///
/// # Errors
/// A mistake in the configuration; a failed fetch, build or write.
pub fn build(args: &BuildArgs) -> Result<u8> {
    replaced::check(&args.output)?;
    let machine = machine(configure(&args.machine)?, "")?;
    let path = args.output.display();
    match machine.config.arch {
        Arch::Aarch64 => replaced::write(&args.output, |file| Ok(file.write_all(&machine.image.bytes)?))?,
        Arch::X86_64 => {
            let (mut image, _cleanup) = cleanup::removing(tempfile::NamedTempFile::new).context("making the image's file")?;
            image.write_all(&machine.image.bytes).context("writing the image")?;
            bochs::write_iso(image.path(), &bochs::Boot::default(), None, &args.output)?;
        }
    }
    let (bytes, cpus, memory) = (fs::metadata(&args.output)?.len(), machine.config.cpus, machine.memory);
    if args.json {
        out::json(&json!({"output": args.output, "bytes": bytes, "cpus": cpus, "memory": memory}))?;
        return Ok(exit::OK);
    }
    out::line(format_args!(
        "{path}: {}, for a machine with {} and {} of memory",
        units::rounded_size(bytes),
        units::plural(cpus as usize, "CPU"),
        units::rounded_size(memory)
    ))?;
    Ok(exit::OK)
}
