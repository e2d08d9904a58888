//! `stile ps`: the machines that run.

use anyhow::Result;
use comfy_table::{Table, presets};

use crate::args::PsArgs;
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::protocol::{Status, VmStatus};
use crate::{exit, out};

/// Lists the machines that run, and their VMs. The status is [`exit::FAILURE`] if there are machines, and none answers.
///
/// # Errors
/// The directory of control sockets can't be read, or output can't be written.
pub fn ps(args: &PsArgs) -> Result<u8> {
    let directory = Directory::open()?;
    let (mut machines, mut silent) = (Vec::new(), false);
    for name in directory.machines()? {
        // Others are shown beside a machine that does not answer. One that ended meanwhile needs no message.
        match Connection::open(&directory, &name).and_then(|mut connection| connection.status()) {
            Ok(status) => machines.push(status),
            Err(error) if directory.machines()?.contains(&name) => {
                silent = true;
                out::note(format_args!("stile: {error:#}"));
            }
            Err(_) => {}
        }
    }
    if args.json {
        out::json(&machines)?;
    } else if machines.is_empty() && !silent {
        out::note("stile: no machine runs");
    } else if !machines.is_empty() {
        out::line(table(&machines))?;
    }
    Ok(if machines.is_empty() && silent { exit::FAILURE } else { exit::OK })
}

/// A row for each VM.
fn table(machines: &[Status]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["MACHINE", "ARCH", "PID", "UP", "VM", "STATE"]);
    for machine in machines {
        let up = up(machine.seconds);
        let mut first = [machine.name.clone(), machine.arch.name().to_owned(), machine.pid.to_string(), up];
        for vm in &machine.vms {
            let row = std::mem::take(&mut first).into_iter().chain([vm.name.clone(), state(vm)]);
            table.add_row(row);
        }
    }
    table.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Returns the state of a VM, with the served device for which it waits.
fn state(vm: &VmStatus) -> String {
    let state = vm.state.name();
    vm.waits_for.as_ref().map_or_else(|| state.to_owned(), |wait| format!("{state}, waits for {} ({})", wait.server, wait.device))
}

/// A time in its largest unit.
fn up(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Arch;
    use crate::control::protocol::{State, WaitsFor};

    #[test]
    fn each_vm_has_a_row() {
        let vm = |name: &str, state, waits_for| VmStatus { name: name.into(), state, waits_for };
        let wait = WaitsFor { server: "disks".into(), device: "block".into(), number: 1 };
        let vms = vec![vm("a", State::Running, None), vm("b", State::Off, None), vm("c", State::Running, Some(wait))];
        let shown = table(&[Status { name: "web".into(), pid: 42, arch: Arch::Aarch64, seconds: 150, vms }]);
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["web", "aarch64", "42", "2", "min", "a", "running"]);
        assert_eq!(rows[2], ["b", "off"]);
        assert_eq!(rows[3], ["c", "running,", "waits", "for", "disks", "(block)"]);
    }
}
