//! `stile run`: starts Stile and its VMs on the emulator.

use std::fs;
use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};
use stile_blob::Gic;

use crate::args::RunArgs;
use crate::config::{Arch, DebianKernel, MachineConfig};
use crate::debian::{self, Freshness};
use crate::detach;
use crate::disk::functions::Functions;
use crate::emulator::{self, AmdPc, Board, Boot, Pc};
use crate::exit;
use crate::image::Seed;
use crate::machine::{self, Machine, Options};
use crate::scratch::EndBySignal;
use crate::session::{self, Request, Source};
use crate::stick;

/// Memory of the emulated machine for UEFI firmware, in bytes.
const UEFI_MEMORY: u64 = 128 << 20;

/// Runs a machine, and returns the exit status. `until_signals` lets signals end the command until the
/// machine runs: from then on, they end the machine first.
///
/// # Errors
/// A mistake in the configuration; a failed fetch, build or start.
pub fn run(args: &RunArgs, until_signals: EndBySignal) -> Result<u8> {
    let detached = detach::detached();
    if args.detach && detached.is_none() {
        return detach::detach(args.session.name.as_deref(), args.json);
    }
    let terminal = std::env::var("TERM").ok().filter(|name| !name.is_empty());
    let keyboard = std::io::stdin().is_terminal();
    let size = if keyboard { crossterm::terminal::size().unwrap_or((0, 0)) } else { (0, 0) };
    let options = Options {
        report_exits: args.session.exits.is_some(),
        seed: if args.icount { Seed::Fixed } else { Seed::Random },
        terminal: (terminal.as_deref().unwrap_or("linux"), size, keyboard),
        text: "",
    };
    let config = machine::configure(&args.machine)?;
    check(args, &config)?;
    let mut functions = Functions::new(&config)?;
    let Machine { config, image, guests, memory } = machine::make(config, &options)?;
    // After reading the configuration, so that its mistakes are reported on any machine.
    emulator::ensure_for_model(config.arch, &config.cpu_model)?;
    let signals = session::catch_signals()?;
    drop(until_signals);
    let mut file = tempfile::Builder::new().prefix("stile-").suffix(".img").tempfile().context("making the image's file")?;
    let firmware = match args.uefi {
        true => {
            stick::write(file.as_file_mut(), stick::Contents { program: &image.bytes, ..Default::default() })
                .context("writing the image")?;
            Some(debian::kernel(DebianKernel::Edk2, Freshness::Weekly)?.kernel)
        }
        false => {
            file.write_all(&image.bytes).context("writing the image")?;
            None
        }
    };
    // Firmware loads and relocates the image, and needs memory itself.
    let memory = if firmware.is_some() { memory + 2 * image.bytes.len() as u64 + UEFI_MEMORY } else { memory };
    drop(image);
    let disk_errors = functions.report_errors()?;
    let has_iommu = config.has_functions();
    let nodes = config.node_cpus();
    let (cpu, cpus) = (config.cpu_model, config.cpus);
    let machine = match config.arch {
        Arch::Aarch64 => {
            let gic = (config.gic == Gic::V2).then(|| "gic-version=2".to_owned());
            let (machine, extra) =
                (gic.into_iter().chain(args.machine_option.clone()).collect(), [&functions.arguments[..], &args.qemu_arg[..]].concat());
            emulator::Machine::Arm(Board { cpu, cpus, nodes, memory, machine, icount: args.icount, smmu: has_iommu, firmware, extra })
        }
        Arch::X86_64 if config.arch.has_amd_v(&cpu) => {
            let (machine, extra) = (args.machine_option.clone(), [&functions.arguments[..], &args.qemu_arg[..]].concat());
            emulator::Machine::AmdPc(AmdPc { cpu, cpus, memory, machine, icount: args.icount, iommu: has_iommu, extra })
        }
        // It counts instructions in any case.
        Arch::X86_64 => {
            emulator::Machine::Pc(Pc { cpu, cpus, memory, boot: Boot::default(), extra: args.machine_option.clone(), counts: None })
        }
    };
    let claim = session::claim(detached.as_deref().or(args.session.name.as_deref()))?;
    // Only clients of the control socket save VMs.
    let memory = match claim {
        Some(_) => machine.share_memory(&args.qemu_arg).context("making the machine's memory")?,
        None => None,
    };
    let request = Request {
        arch: machine.arch(),
        source: Source::Emulator { machine, image: file.path().to_owned(), memory },
        guests,
        claim,
        logs: args.session.log.clone(),
        timeout: args.session.timeout,
        exits: args.session.exits,
        quiet: args.session.quiet,
        detached: detached.is_some(),
        disk_errors,
    };
    session::run(request, signals)
}

/// Checks what would fail after minutes of fetching and building.
///
/// # Errors
/// An option is not for this architecture, the name is taken, or the logs' directory can't be made.
fn check(args: &RunArgs, config: &MachineConfig) -> Result<()> {
    let arch = config.arch;
    if arch == Arch::X86_64 && !arch.has_amd_v(&config.cpu_model) && !args.qemu_arg.is_empty() {
        return Err(exit::usage("--qemu-arg: Bochs emulates x86_64, not QEMU; expected lines of its configuration, by --machine-option"));
    }
    if arch == Arch::X86_64 && args.uefi {
        return Err(exit::usage("--uefi: Stile does not start from UEFI firmware on x86_64 yet"));
    }
    if let Some(dir) = &args.session.log {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    // Released at once: clients would wait until the machine runs. A detached machine's name was checked before.
    if args.session.name.is_some() && !args.detach {
        drop(session::claim(args.session.name.as_deref())?);
    }
    Ok(())
}
