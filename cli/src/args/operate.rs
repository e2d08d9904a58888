//! Commands for the VMs of a machine that runs.

use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCandidates;

use crate::complete;
use crate::control::protocol::Clock;

/// `stile start`, `restart`, `pause` and `resume`.
#[derive(Debug, Args)]
pub struct VmArgs {
    /// The machine, and after a slash the VM; NAME alone if it has only one.
    #[arg(value_name = "NAME/VM", add = ArgValueCandidates::new(complete::vms))]
    pub vm: String,
    /// Print a JSON object: machine, vm and its new state.
    #[arg(long)]
    pub json: bool,
}

/// `stile stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// The VM.
    #[command(flatten)]
    pub target: VmArgs,
    /// Seconds from the press of the power button until the power is turned off.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub grace: u32,
    /// Turn the power off immediately.
    #[arg(long)]
    pub force: bool,
}

/// `stile create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The machine.
    #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::machines))]
    pub machine: String,
    /// A configuration with one [[vm]]; its settings of the machine are ignored.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print a JSON object: machine, vm, its state, and how many bytes were sent.
    #[arg(long)]
    pub json: bool,
}

/// `stile destroy`.
#[derive(Debug, Args)]
pub struct DestroyArgs {
    /// The VM.
    #[command(flatten)]
    pub target: VmArgs,
    /// Turn the power off before.
    #[arg(long)]
    pub force: bool,
}

/// `stile save`.
#[derive(Debug, Args)]
pub struct SaveArgs {
    /// The VM.
    #[command(flatten)]
    pub target: VmArgs,
    /// The file for the snapshot; one that is there is replaced once the snapshot is complete.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `stile restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The machine.
    #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::machines))]
    pub machine: String,
    /// The file with the snapshot.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Whether the VM's clocks advance by the time since it was saved, or continue where they stopped.
    #[arg(long, value_name = "CLOCK", value_enum, default_value = "real")]
    pub clock: Clock,
    /// Let the VM keep `ipi = "direct"`, by which it can disturb others: the file comes from somebody that they trust.
    #[arg(long)]
    pub trusted: bool,
    /// Print a JSON object: machine, vm and its state.
    #[arg(long)]
    pub json: bool,
}

/// `stile migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The VM.
    #[command(flatten)]
    pub target: VmArgs,
    /// The machine that the VM moves to, on this computer.
    #[arg(value_name = "OTHER", add = ArgValueCandidates::new(complete::machines))]
    pub to: String,
    /// Whether the VM's clocks advance by the time since it was saved, or continue where they stopped.
    #[arg(long, value_name = "CLOCK", value_enum, default_value = "real")]
    pub clock: Clock,
}
