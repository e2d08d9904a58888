//! Paths of requests to a disk.

use anyhow::Result;

use super::run::{Job, Run};
use super::{native, stile};

/// A path of requests to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Stile, and a disk that the VM owns.
    Assigned,
    /// Stile, and a disk that the service VM serves.
    Served,
    /// No hypervisor.
    Native,
}

impl Path {
    /// The paths under Stile.
    pub const STILE: [Self; 2] = [Self::Assigned, Self::Served];

    /// Its name in tables and budgets, and as a peer on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Assigned => "stile-assigned",
            Self::Served => "stile-served",
            Self::Native => "native",
        }
    }

    /// The paths under Stile, and those of the named peers: all without names.
    ///
    /// # Errors
    /// Unknown name.
    pub fn against(names: &[String]) -> Result<Vec<Self>, String> {
        let native = Self::Native.name();
        if let Some(name) = names.iter().find(|name| *name != "none" && *name != native) {
            return Err(format!("there is no peer called {name}; expected {native} or none"));
        }
        let wanted = names.is_empty() || names.iter().any(|name| name == native);
        Ok(Self::STILE.into_iter().chain(wanted.then_some(Self::Native)).collect())
    }

    /// Runs a load.
    ///
    /// # Errors
    /// The run fails, or its guest does not do its work.
    pub fn run(self, job: &Job<'_>) -> Result<Run> {
        match self {
            Self::Assigned => stile::run(job, false),
            Self::Served => stile::run(job, true),
            Self::Native => native::run(job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_chosen_by_name() {
        let all = [Path::Assigned, Path::Served, Path::Native];
        assert_eq!(Path::against(&[]).unwrap(), all);
        assert_eq!(Path::against(&["native".to_owned()]).unwrap(), all);
        assert_eq!(Path::against(&["none".to_owned()]).unwrap(), Path::STILE);
        assert!(Path::against(&["xen".to_owned()]).unwrap_err().contains("native or none"));
    }
}
