//! `stile run`: starts Stile and its VMs on the emulator.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};

use crate::args::{MachineArgs, RunArgs};
use crate::config::Arch;
use crate::detach;
use crate::disk::{self, functions::Functions};
use crate::emulator::{self, Board, Boot, Pc};
use crate::exit;
use crate::image::Seed;
use crate::initramfs::Marks;
use crate::machine::{self, Machine, Options};
use crate::out;
use crate::scratch::EndBySignal;
use crate::session::{self, Request, Source, System};

/// Runs a machine, and returns the exit status. `until_signals` lets signals end the command until the
/// machine runs: from then on, they end the machine first.
///
/// # Errors
/// The configuration has a mistake; something can't be fetched, built or started.
pub fn run(args: &RunArgs, until_signals: EndBySignal) -> Result<u8> {
    let detached = detach::detached();
    if args.detach && detached.is_none() {
        return detach::detach(args.session.name.as_deref());
    }
    let terminal = std::env::var("TERM").ok().filter(|name| !name.is_empty());
    let keyboard = std::io::stdin().is_terminal();
    let size = if keyboard { crossterm::terminal::size().unwrap_or((0, 0)) } else { (0, 0) };
    let options = Options {
        report_exits: args.session.exits.is_some(),
        seed: if args.icount { Seed::Fixed } else { Seed::Random },
        terminal: (terminal.as_deref().unwrap_or("linux"), size, keyboard),
    };
    let Devices { machine: machine_args, emulator: device_args, system } = devices(args, &options)?;
    let Machine { config, image, mut guests, memory } = machine::prepare(&machine_args, &options)?;
    if let (Some(system), [guest]) = (system, &mut guests[..]) {
        guest.system = Some(system);
    }
    if config.arch == Arch::X86_64 && !args.qemu_arg.is_empty() {
        return Err(exit::usage("--qemu-arg: Bochs emulates x86_64, not QEMU; expected lines of its configuration, by --machine-option"));
    }
    // After reading the configuration, so that its mistakes are reported on any machine.
    emulator::ensure(config.arch)?;
    let signals = session::catch_signals()?;
    drop(until_signals);
    let mut file = tempfile::Builder::new().prefix("stile-").suffix(".img").tempfile().context("making the image's file")?;
    file.write_all(&image.bytes).context("writing the image")?;
    drop(image);
    let smmu = config.has_functions();
    let (cpu, cpus) = (config.cpu_model, config.cpus);
    let machine = match config.arch {
        Arch::Aarch64 => {
            let (machine, extra) = (args.machine_option.clone(), [&device_args[..], &args.qemu_arg[..]].concat());
            emulator::Machine::Arm(Board { cpu, cpus, memory, machine, icount: args.icount, smmu, extra })
        }
        // It counts instructions in any case.
        Arch::X86_64 => {
            emulator::Machine::Pc(Pc { cpu, cpus, memory, boot: Boot::default(), extra: args.machine_option.clone(), counts: None })
        }
    };
    let request = Request {
        arch: machine.arch(),
        source: Source::Emulator { machine, image: file.path().to_owned() },
        guests,
        claim: session::claim(detached.as_deref().or(args.session.name.as_deref()))?,
        logs: args.session.log.clone(),
        timeout: args.session.timeout,
        exits: args.session.exits,
        quiet: args.session.quiet,
        detached: detached.is_some(),
    };
    session::run(request, signals)
}

/// Changes to a machine made by disks and networks.
struct Devices {
    /// The machine, with its functions and with the kernel that starts a disk's system.
    machine: MachineArgs,
    /// The emulator's arguments that add the functions.
    emulator: Vec<String>,
    /// The system on the disk, if it runs a command.
    system: Option<System>,
}

fn devices(args: &RunArgs, options: &Options<'_>) -> Result<Devices> {
    let mut machine = args.machine.clone();
    if args.disk.is_empty() && args.net.is_empty() {
        return Ok(Devices { machine, emulator: Vec::new(), system: None });
    }
    let functions = Functions::new(&args.disk, &args.net)?;
    let flags = std::iter::repeat_n("--disk", args.disk.len()).chain(std::iter::repeat("--net"));
    machine.functions = functions.addresses.into_iter().zip(flags).collect();
    let mut system = None;
    if let (Some(drive), None, None) = (args.disk.first(), &machine.kernel, &machine.config) {
        // A directory that ends with this command.
        let directory = tempfile::env::temp_dir();
        let boot = disk::system::boot(drive, functions.formats[0], &directory)?;
        let mut parameters = boot.parameters;
        if let Some(append) = &machine.append {
            parameters = format!("{parameters} {append}");
        }
        if let Some(command) = machine.exec.take() {
            let marks = Marks::new(machine::number(options.seed)?);
            let parameter = disk::system::command(&command, &marks, !args.net.is_empty(), &parameters)?;
            parameters = format!("{parameters} {parameter}");
            system = Some(System { marks, command: true, size: options.terminal.1 });
            machine.on_reset.get_or_insert_with(|| "stop".into());
        }
        machine.append = Some(parameters);
        machine.kernel = Some(boot.kernel.display().to_string());
        if let Some(initrd) = boot.initrd {
            machine.initrd.get_or_insert_with(|| initrd.display().to_string());
        }
        if !args.session.quiet {
            out::note(format_args!("stile: starting {}", boot.about));
        }
    }
    Ok(Devices { machine, emulator: functions.arguments, system })
}
