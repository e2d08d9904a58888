//! UEFI firmware: under guests, and under Stile.

use anyhow::Result;

use super::disk::Contents;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use stile::programs::Programs;

/// Commands of UEFI's shell at each start: variables outlast a reset, also one in the middle of a command to the flash (Read Status).
const SCRIPT: &str = "if \"%stile%\" eq \"kept\" then\n  echo the variable is %stile%\n  reset -s\nendif\nset stile kept\nmm 4000000 700070 -w 4 -MMIO -n\nreset\n";

/// Lines on the screen of a machine whose VMs run.
const SCREEN: [&str; 2] = ["Stile ", "The VMs start."];

/// All of them.
///
/// # Errors
/// A guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let cpus = stick("starts-stile", "off", "psci", "stile", programs)?;
    let screen = stick("starts-stile-by-acpi", "on", "uart", "stile rx", programs)?;
    let screen = Scenario { input: Some(("send a line", "hello, world\n")), screen: Some(("send a line", &SCREEN)), ..screen };
    let mut gic = stick("gic-by-acpi", "on", "gic", "stile only=binary_point", programs)?;
    gic.expect.output.insert(0, "PASS binary_point_out_of_range".into());
    let gicv2 = stick("gicv2-by-acpi", "on", "gic", "stile only=binary_point", programs)?.with("--gic", "2");
    Ok(vec![variables(), cpus, screen, gic, gicv2])
}

/// A guest starts from firmware, sets a variable, and finds it after a reset.
fn variables() -> Scenario {
    let arguments = "--kernel debian-edk2 --memory 256M --vcpus 2 --disk {disk},format=raw --exits";
    let output = ["UEFI Interactive Shell", "set stile kept", "UEFI Interactive Shell", "the variable is kept"];
    let notes = ["PSCI SYSTEM_RESET           1 ", "PSCI SYSTEM_OFF             1 ", "flash ", NO_DIFFERENCE];
    let expect = Expect { output: output.map(String::from).to_vec(), notes: notes.map(String::from).to_vec(), ..Expect::default() };
    Scenario { disk: Some(Contents::Script(SCRIPT)), expect, ..Scenario::new("firmware/variables", arguments) }
}

/// Firmware starts Stile from a disk, with a device tree or with ACPI tables; its CPUs and a guest's work as they do without. Its frame buffer
/// shows the log of the boot while the guest waits for a line.
fn stick(name: &str, acpi: &str, program: &str, append: &str, programs: &Programs) -> Result<Scenario> {
    let arguments = format!("--uefi --machine-option acpi={acpi} --vcpus 4 --smp 2 --memory 64M --exits");
    let scenario = Scenario::new(format!("firmware/{name}"), &arguments).with("--kernel", programs.path(program)?).with("--append", append);
    Ok(Scenario { expect: passed(), ..scenario })
}
