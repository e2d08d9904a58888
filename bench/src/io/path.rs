//! Paths of requests.

use anyhow::Result;

use super::load::{Destination, Load};
use super::run::{Job, Run};
use super::{kvm, native, stile};

/// A path of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Stile, and a device that the VM owns.
    Assigned,
    /// Stile, and a device that the service VM serves.
    Served,
    /// KVM, with a disk of QEMU's, or with cards of vhost-net on a bridge.
    Kvm,
    /// KVM, whose host does not poll.
    KvmWithoutPolling,
    /// No hypervisor.
    Native,
}

impl Path {
    /// The paths under Stile.
    pub const STILE: [Self; 2] = [Self::Assigned, Self::Served];

    /// The paths of peers, without Stile.
    const PEERS: [Self; 3] = [Self::Kvm, Self::KvmWithoutPolling, Self::Native];

    /// Its name in tables and budgets, and as a peer on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Assigned => "stile-assigned",
            Self::Served => "stile-served",
            Self::Kvm => "kvm",
            Self::KvmWithoutPolling => "kvm-without-polling",
            Self::Native => "native",
        }
    }

    /// The paths under Stile, and those of the named peers: all without names.
    ///
    /// # Errors
    /// Unknown name.
    pub fn against(names: &[String]) -> Result<Vec<Self>, String> {
        let names_one = |name: &&String| Self::PEERS.iter().any(|peer| peer.name() == **name);
        if let Some(name) = names.iter().find(|name| *name != "none" && !names_one(name)) {
            return Err(format!("--io has no peer called {name}; expected kvm, kvm-without-polling, native or none"));
        }
        let wanted = |peer: &Self| names.is_empty() || names.iter().any(|name| name == peer.name());
        Ok(Self::STILE.into_iter().chain(Self::PEERS.into_iter().filter(wanted)).collect())
    }

    /// Whether a load's requests can take this path: those between VMs need a hypervisor.
    pub fn is_for(self, load: &Load) -> bool {
        self != Self::Native || load.to == Destination::Disk
    }

    /// Runs a load.
    ///
    /// # Errors
    /// The run fails, or its guest does not do its work.
    pub fn run(self, job: &Job<'_>) -> Result<Run> {
        match self {
            Self::Assigned => stile::run(job, false),
            Self::Served => stile::run(job, true),
            Self::Kvm => kvm::run(job, true),
            Self::KvmWithoutPolling => kvm::run(job, false),
            Self::Native => native::run(job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_chosen_by_name() {
        assert_eq!(Path::against(&[]).unwrap(), [Path::Assigned, Path::Served, Path::Kvm, Path::KvmWithoutPolling, Path::Native]);
        assert_eq!(Path::against(&["native".to_owned()]).unwrap(), [Path::Assigned, Path::Served, Path::Native]);
        assert_eq!(Path::against(&["kvm".to_owned()]).unwrap(), [Path::Assigned, Path::Served, Path::Kvm]);
        assert_eq!(Path::against(&["none".to_owned()]).unwrap(), Path::STILE);
        assert!(Path::against(&["xen".to_owned()]).unwrap_err().contains("native or none"));
    }
}
