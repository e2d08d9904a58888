//! Values that a shell completes at run time: the machines that run, and their VMs.

use std::time::Duration;

use clap_complete::engine::CompletionCandidate;

use crate::control::client::Connection;
use crate::control::directory::Directory;

/// Time-out for a machine's answer: the shell waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The machines that run; none if the directory of control sockets can't be read.
pub fn machines() -> Vec<CompletionCandidate> {
    let machines = Directory::open().and_then(|directory| directory.machines()).unwrap_or_default();
    machines.into_iter().map(CompletionCandidate::new).collect()
}

/// The VMs of the machines that run, as NAME/VM. A machine that does not answer is left out.
pub fn vms() -> Vec<CompletionCandidate> {
    let Ok(directory) = Directory::open() else { return Vec::new() };
    let machines = directory.machines().unwrap_or_default();
    let statuses =
        machines.iter().filter_map(|name| Connection::open_within(&directory, name, PATIENCE).and_then(|mut it| it.status()).ok());
    let vms = statuses.flat_map(|machine| machine.vms.into_iter().map(move |vm| (machine.name.clone(), vm)));
    vms.map(|(machine, vm)| CompletionCandidate::new(format!("{machine}/{}", vm.name)).help(Some(vm.state.name().into()))).collect()
}

/// Machines, and their VMs.
pub fn machines_and_vms() -> Vec<CompletionCandidate> {
    machines().into_iter().chain(vms()).collect()
}
