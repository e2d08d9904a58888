//! A guest's run under each kind of host, and its counts.

mod job;
mod kvm;
mod native;
mod stile;

use anyhow::{Result, bail};
use stile_blob::Techniques;

use crate::host::Host;
pub use job::{Counts, Job, units_done};

/// Runs the guest from power-on to power-off.
///
/// # Errors
/// A file can't be built or fetched, the run fails, the guest does not confirm its work, or real work is not measured under
/// this host.
pub fn run(host: Host, job: &Job<'_>) -> Result<Counts> {
    match host {
        Host::Stile => stile::run(job, Techniques::default()),
        Host::Without(technique) if technique.is_of_interrupts() => {
            stile::run(job, technique.switched_off(job.arch, Techniques::default()))
        }
        Host::Native => native::run(job),
        Host::Kvm(kvm) => kvm::run(kvm, job),
        Host::Xen | Host::Without(_) => bail!("real work is not measured under {}", host.name()),
    }
}
