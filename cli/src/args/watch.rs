//! Commands that watch a machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCandidates;

use super::values::amount;
use crate::complete;
use crate::top::Order;

/// `stile top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The machine, and after a slash the VM; all VMs by default.
    #[arg(value_name = "NAME[/VM]", add = ArgValueCandidates::new(complete::machines_and_vms))]
    pub target: String,
    /// Print the figures of one interval, and end.
    #[arg(long)]
    pub once: bool,
    /// Print JSON, an array a line for each interval.
    #[arg(long)]
    pub json: bool,
    /// Show vCPUs instead of VMs.
    #[arg(long)]
    pub vcpus: bool,
    /// The order.
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    pub sort: Order,
    /// Show only VMs whose name contains this text, and of others the rows whose reason or sub-reason does.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
    /// The interval in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = amount)]
    pub interval: f64,
}

/// `stile trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The machine, and after a slash the VM; all VMs by default.
    #[arg(value_name = "NAME[/VM]", add = ArgValueCandidates::new(complete::machines_and_vms))]
    pub target: String,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Duration of the recording, in seconds of this computer: an emulated machine's time may pass faster or slower.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = amount)]
    pub seconds: f64,
    /// Write only this VM's events.
    #[arg(long, value_name = "VM")]
    pub vm: Option<String>,
    /// Write only exits with this text in their reason or sub-reason.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// The file's format.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub format: crate::trace::Format,
    /// Print a JSON object instead of text: recorded, dropped and lost events.
    #[arg(long)]
    pub json: bool,
}

/// `stile report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A running machine, and after a slash the VM, which is recorded; or a file of `stile trace --format json`.
    #[arg(value_name = "NAME[/VM]|FILE")]
    pub source: PathBuf,
    /// The file to write.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Duration of a recording, in seconds of this computer [default: 1].
    #[arg(long, value_name = "SECONDS", value_parser = amount)]
    pub seconds: Option<f64>,
    /// Record only this VM's events.
    #[arg(long, value_name = "VM")]
    pub vm: Option<String>,
    /// Print the numbers of exits as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `stile metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// The machine, and after a slash the VM; all VMs by default.
    #[arg(value_name = "NAME[/VM]", add = ArgValueCandidates::new(complete::machines_and_vms))]
    pub target: String,
    /// The address and port of the HTTP server; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
    pub listen: SocketAddr,
    /// Print the metrics, and end.
    #[arg(long, conflicts_with = "listen")]
    pub once: bool,
    /// Print the server's address as a JSON object: machine, address and url. The figures as JSON: `stile top --json`.
    #[arg(long, conflicts_with = "once")]
    pub json: bool,
}
