//! Samples of a running machine.

use anyhow::{Result, bail};

use super::client::Connection;
use super::protocol::{Reply, Request};
use super::sample::Sample;
use crate::exit;

/// A source of samples.
pub struct Source {
    /// The machine.
    pub connection: Connection,
    /// Only this VM is wanted.
    pub vm: Option<String>,
}

impl Source {
    /// Takes a sample.
    ///
    /// # Errors
    /// The machine has ended or does not answer; the VM does not exist.
    pub fn sample(&mut self) -> Result<Sample> {
        self.connection.send(&Request::Sample)?;
        let mut sample = match self.connection.receive()? {
            Reply::Sample(sample) => sample,
            Reply::Refused { message } => bail!("{}: {message}", self.connection.name),
            other => bail!("{}: unexpected answer: {other:?}", self.connection.name),
        };
        if let Some(wanted) = &self.vm {
            let names: Vec<String> = sample.vms.iter().map(|vm| vm.name.clone()).collect();
            sample.vms.retain(|vm| vm.name == *wanted);
            sample.budgets.retain(|usage| usage.vm == *wanted);
            if sample.vms.is_empty() {
                return Err(exit::usage(format!("there is no VM called {wanted}; the VMs are {}", names.join(", "))));
            }
        }
        Ok(sample)
    }
}
