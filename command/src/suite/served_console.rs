//! The test of a console that the VM `service` serves, whose output goes to a file of this machine.

use std::fs;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// Its name in the suite.
pub const NAME: &str = "served/console";
/// Its name for a PC with AMD-V.
pub const NAME_ON_PC: &str = "pc/amd/devices/served-console";

/// The test on Arm.
pub fn test() -> Result<(), String> {
    of_vms(NAME, "")
}

/// The test on a PC.
pub fn test_on_pc() -> Result<(), String> {
    of_vms(NAME_ON_PC, "arch = \"x86_64\"\ncpu = \"max\"\n")
}

/// Two VMs write to their consoles, one of them by its kernel, too. `machine`: lines of the configuration.
fn of_vms(name: &str, machine: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    fs::write(dir.path().join("b.log"), "of an earlier run\n").map_err(|error| format!("b.log: {error}"))?;
    let vm = |name: &str, kernel: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nmemory = \"256M\"\nexec = \"seq 2000 > /dev/hvc0; echo of {name} > /dev/hvc0\"\n\
             [[vm.served]]\ndevice = \"console\"\nfolder = {:?}\n",
            dir.path()
        )
    };
    let config = ["[machine]\n", machine, "cpus = 2\n\n", &vm("a", "debian"), &vm("b", "debian:6.1")].concat();
    let expect = Expect { notes: vec![NO_DIFFERENCE.into(); 3], absent: vec!["is lost", "started again"], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new(name, "--exits") }.run()?;
    let numbers: String = (1..=2000).map(|number| format!("{number}\n")).collect();
    for (name, before) in [("a", ""), ("b", "of an earlier run\n")] {
        let found = fs::read_to_string(dir.path().join(format!("{name}.log"))).map_err(|error| format!("{name}.log: {error}"))?;
        // A terminal's line ends with a carriage return, too.
        if found.replace('\r', "") != format!("{before}{numbers}of {name}\n") {
            return Err(format!("{name}.log has {} bytes, and ends with {:?}", found.len(), found.lines().last()));
        }
    }
    Ok(())
}
