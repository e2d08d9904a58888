//! `stile build`: writes the image that `run` starts into a file.

use std::fs;
use std::io::Write;

use anyhow::{Context, Result};
use serde_json::json;

use crate::args::{BuildArgs, MachineArgs};
use crate::config::{Arch, MachineConfig, VmConfig, units};
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
    match emulated_device(&config) {
        Some(device) => Err(exit::usage(format!(
            "{device}: only the machine that `stile run` emulates has such a device; expected none for an image, but a PCI function of \
             the board ([[vm.pci]]), or a device that a VM with one serves ([[vm.served]])"
        ))),
        None => Ok(config),
    }
}

/// The first device of a VM that only the emulated machine has, with the VM's name. Devices of the VM `service`, which `stile run` adds to
/// serve others, are described as the devices of its clients for which it has them.
fn emulated_device(config: &MachineConfig) -> Option<String> {
    let of_vm = |vm: &VmConfig| {
        let disk = vm.disks.iter().chain(&vm.served_disks).next().map(|drive| format!("the disk {}", drive.file.display()));
        let folder = || vm.all_folders().next().map(|folder| format!("the shared folder {}", folder.path.display()));
        let network = || vm.networks.iter().chain(&vm.served_networks).next().map(|_| "its network".to_owned());
        let console = || vm.console.as_ref().map(|file| format!("the file {} of its console", file.display()));
        let sockets = || vm.forwards.first().map(|(port, _)| format!("the port {port} of this computer for its sockets"));
        let device = disk.or_else(folder).or_else(network).or_else(console).or_else(sockets);
        device.map(|device| format!("{}: {device}", vm.name))
    };
    // That VM is the last one.
    config.vms.iter().find_map(of_vm).filter(|_| config.vms.iter().any(|vm| vm.emulated_functions() != 0))
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Flags;

    #[test]
    fn devices_of_the_emulated_machine_are_named() {
        let device = |more: &str| {
            let text = format!("[[vm]]\nname = \"first\"\nkernel = \"debian\"\n[[vm]]\nname = \"web\"\nkernel = \"debian:6.1\"\n{more}");
            emulated_device(&MachineConfig::from_text("machine.toml", &text, Path::new(""), &Flags::default()).unwrap())
        };
        assert_eq!(device(""), None);
        assert_eq!(device("[[vm.pci]]\nfunction = \"00:03.0\"\n"), None);
        for served in ["", "served = true\n"] {
            let disk = device(&format!("[[vm.disk]]\nfile = \"web.img\"\nformat = \"raw\"\n{served}"));
            assert_eq!(disk.as_deref(), Some("web: the disk web.img"), "{served}");
            assert_eq!(device(&format!("[[vm.net]]\n{served}")).as_deref(), Some("web: its network"), "{served}");
        }
        let console = device("[[vm.served]]\ndevice = \"console\"\nfolder = \"/tmp\"\n");
        assert_eq!(console.as_deref(), Some("web: the file /tmp/web.log of its console"));
        let sockets = |more: &str| format!("[[vm.served]]\ndevice = \"vsock\"\n{more}");
        assert_eq!(device(&sockets("")), None, "no device of the emulated machine is behind them");
        let forwarded =
            [sockets(""), "[[vm]]\nname = \"last\"\nkernel = \"debian\"\n".into(), sockets("forward = [\"2222:22\"]\n")].concat();
        assert_eq!(device(&forwarded).as_deref(), Some("last: the port 2222 of this computer for its sockets"));
        assert_eq!(device("[[vm.share]]\npath = \".\"\ntag = \"here\"\n").as_deref(), Some("web: the shared folder ."));
    }
}
