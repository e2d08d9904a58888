//! `stile disk`.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};

use super::values::ARCHITECTURES;
use crate::config::Arch;
use crate::control::name;
use crate::disk::values;

/// `stile disk`.
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// The command.
    #[command(subcommand)]
    pub command: DiskCommand,
}

/// The commands for disks.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Build a disk with Debian for arm64 or amd64 from signed packages, without root's rights.
    ///
    /// The packages are configured in a small VM on the emulator, which takes two to six minutes. On the console root is logged in; over
    /// the network root logs in with the keys of ~/.ssh, if the packages include openssh-server.
    Create(DiskCreateArgs),
}

/// `stile disk create`.
#[derive(Debug, Args)]
pub struct DiskCreateArgs {
    /// The image to write, in the format qcow2: it must not exist.
    #[arg(value_name = "FILE.qcow2")]
    pub file: PathBuf,
    /// The architecture of the machines that start it: aarch64 or x86_64 (with AMD-V: --cpu max).
    #[arg(long, value_name = "ARCH", default_value_t, hide_possible_values = true,
        value_parser = ARCHITECTURES.try_map(|name| Arch::named(&name)))]
    pub arch: Arch,
    /// Further packages of Debian, such as openssh-server,redis; their dependencies are included.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::package_name)]
    pub packages: Vec<String>,
    /// The disk's size. The image is as large as its contents, and grows up to this.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = values::size)]
    pub size: u64,
    /// A public key that may log in as root, instead of those in ~/.ssh; can be given several times.
    #[arg(long, value_name = "FILE")]
    pub ssh_key: Vec<PathBuf>,
    /// The system's host name; by default the file's name up to its first dot.
    #[arg(long, value_name = "NAME", value_parser = name::check)]
    pub hostname: Option<String>,
    /// Print a JSON object: output, packages, bytes of the image, and the size of the disk.
    #[arg(long)]
    pub json: bool,
}
