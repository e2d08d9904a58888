//! `stile connect`: the consoles of a board that runs Stile, over its serial line.

use anyhow::Result;
use stile_board::MAX_VMS;

use crate::args::ConnectArgs;
use crate::budget::Budget;
use crate::config::{Arch, Flags, KernelSource, MachineConfig};
use crate::scratch::EndBySignal;
use crate::serial::Serial;
use crate::session::{self, Guest, Request, Source};

/// Shows consoles until Stile ends or the user leaves, and returns the exit status, as `stile run` does.
///
/// # Errors
/// The configuration has a mistake, or the line can't be opened.
pub fn connect(args: &ConnectArgs, until_signals: EndBySignal) -> Result<u8> {
    let arch = Arch::named(&args.arch).map_err(crate::exit::usage)?;
    let (arch, guests) = match &args.config {
        Some(path) => {
            let config = MachineConfig::load(Some(path), &Flags::default())?;
            (config.arch, guests(&config))
        }
        None => (arch, (0..MAX_VMS).map(|vm| guest(format!("vm{vm}"), Vec::new())).collect()),
    };
    let serial = Serial::open(&args.device, args.baud)?;
    let signals = session::catch_signals()?;
    drop(until_signals);
    let request = Request {
        source: Source::Serial { serial, name: args.device.display().to_string() },
        arch,
        guests,
        claim: session::claim(args.session.name.as_deref())?,
        logs: args.session.log.clone(),
        timeout: args.session.timeout,
        exits: args.session.exits,
        quiet: args.session.quiet,
        detached: false,
        disk_errors: None,
    };
    session::run(request, signals)
}

/// The VMs of a machine, and those of Stiles in its VMs. Their systems are unknown: the marks in
/// their output differ from image to image (crate::initramfs).
fn guests(config: &MachineConfig) -> Vec<Guest> {
    let inner = |kernel: &KernelSource| match kernel {
        KernelSource::Stile(machine) => guests(machine),
        KernelSource::File(_) | KernelSource::Debian(_) | KernelSource::Disk => Vec::new(),
    };
    config.vms.iter().map(|vm| Guest { budget: vm.budget, ..guest(vm.name.clone(), inner(&vm.kernel)) }).collect()
}

fn guest(name: String, inner: Vec<Guest>) -> Guest {
    Guest { name, system: None, budget: Budget::default(), inner }
}
