//! A run of a load, and its counts.

use std::collections::BTreeMap;
use std::path::Path;

use stile_blob::IpiAccess;

use super::guest::Guest;
use super::load::{Load, SERVER};
use crate::full::{Counts, system};
use stile::config::Arch;

/// Arguments of the emulator. Its clock would otherwise jump to the guest's next timer whenever all CPUs wait for a disk, and timers would
/// fire for requests.
pub const WAIT: [&str; 2] = ["-icount", "sleep=on"];

/// A run.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The load.
    pub load: &'static Load,
    /// Its guest's files.
    pub guest: &'a Guest,
    /// The file of the guest's disk, which no other run uses.
    pub disk: &'a Path,
    /// Minimum number of requests that the load makes.
    pub requests: u32,
    /// The emulated CPUs' model.
    pub cpu: &'a str,
    /// The emulator's plugin that counts.
    pub plugin: &'a Path,
}

impl Job<'_> {
    /// The guest's command line.
    pub fn bootargs(&self) -> String {
        self.bootargs_for(self.requests)
    }

    /// The command line of the VM that answers the guest.
    pub fn server_bootargs(&self) -> String {
        self.bootargs_for(SERVER)
    }

    fn bootargs_for(&self, requests: u32) -> String {
        system::bootargs(Arch::Aarch64, &self.load.work, requests, IpiAccess::Trapped)
    }
}

/// Counts of a run.
#[derive(Debug)]
pub struct Run {
    /// Number of requests, as the client reports it.
    pub requests: u32,
    /// Those of all VMs and of Stile. Exits are without those of timers.
    pub counts: Counts,
    /// Exits by reason of the VM that makes the requests, if it is a VM, without those of its timer.
    pub client: Option<BTreeMap<String, u64>>,
}
