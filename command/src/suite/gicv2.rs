//! A machine with a GICv2, and VMs with one.

use anyhow::Result;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use super::snapshots;
use stile::exit;
use stile::programs::{PASSED, Programs};

/// The suites, and their boot arguments.
const SUITES: [(&str, &str); 6] =
    [("gic", "stile"), ("timer", "stile only=all_cpus"), ("psci", "stile"), ("smp", "stile"), ("regs", "stile"), ("hostile", "stile")];

/// CPU models, with VHE and without, and physical CPUs.
const MACHINES: [(&str, u32); 3] = [("cortex-a57", 2), ("max", 4), ("max", 1)];

/// Suites that run on all of them. The others do on the first.
const EVERYWHERE: [&str; 2] = ["gic", "smp"];

/// All of them.
///
/// # Errors
/// A guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for (suite, append) in SUITES {
        let machines = if EVERYWHERE.contains(&suite) { MACHINES.len() } else { 1 };
        for (cpu, smp) in MACHINES.into_iter().take(machines) {
            let arguments = format!("--gic 2 --vcpus 4 --memory 64M --cpu {cpu} --smp {smp} --exits");
            let scenario = Scenario::new(format!("gicv2/{suite}/{cpu}-{smp}"), &arguments).with("--kernel", programs.path(suite)?);
            scenarios.push(Scenario { expect: passed(), ..scenario.with("--append", append) });
        }
    }
    scenarios.push(one_cpu(programs.path("timer")?));
    scenarios.push(two_vms(programs)?);
    scenarios.extend([debian(1), debian(4)]);
    scenarios.extend(snapshots::with_gicv2(programs)?);
    scenarios.extend(refusals(&programs.path("psci")?));
    Ok(scenarios)
}

/// Timers whose lines are high at the end of their interrupts, on a machine where no other CPU's accesses to the GIC make QEMU signal them
/// again. Virtual time counts instructions, as for `guest/timer/max-icount`.
fn one_cpu(kernel: String) -> Scenario {
    let arguments = "--gic 2 --memory 64M --smp 1 --icount --exits --append stile";
    Scenario { expect: passed(), ..Scenario::new("gicv2/timer/max-icount", arguments).with("--kernel", kernel) }
}

/// Two VMs that share two CPUs: each finds its own interrupts when its vCPUs are loaded again.
fn two_vms(programs: &Programs) -> Result<Scenario> {
    let mut config = "[machine]\ngic = 2\ncpus = 2\n".to_owned();
    for (suite, append) in [("gic", "stile"), ("smp", "stile")] {
        let kernel = programs.path(suite)?;
        config += &format!("[[vm]]\nname = \"{suite}\"\nkernel = \"{kernel}\"\nappend = \"{append}\"\nvcpus = 4\nmemory = \"64M\"\n");
    }
    let expect = Expect { output: vec![PASSED.into(); 2], notes: vec![NO_DIFFERENCE.into(); 2], ..passed() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("gicv2/two-vms", "--exits") })
}

/// Debian finds a GICv2 and all its CPUs, and turns itself off.
fn debian(vcpus: u32) -> Scenario {
    let arguments = format!("--gic 2 --kernel debian:6.1 --vcpus {vcpus} --smp {vcpus} --memory 256M --exits");
    let scenario = Scenario::new(format!("gicv2/debian:6.1/{vcpus}"), &arguments);
    let scenario = scenario.with("--exec", "nproc; grep arch_timer /proc/interrupts; exit 7");
    let output = vec![vcpus.to_string(), "GIC-0  27 Level     arch_timer".into()];
    Scenario { expect: Expect { status: 7, output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() }, ..scenario }
}

/// VMs that were made for another interrupt controller than the machine's.
fn refusals(kernel: &str) -> [Scenario; 2] {
    let on = |name: &str, arguments: &str, why: &str| {
        let scenario = Scenario::new(format!("gicv2/refused/{name}"), arguments).with("--kernel", kernel);
        let expect = Expect { status: exit::LACKING, notes: vec![why.into()], ..Expect::default() };
        Scenario { expect, ..scenario }
    };
    [
        on("gicv3-vm", "--machine-option gic-version=2 --memory 64M", "a VM was made for a GICv3, and the machine has a GICv2"),
        on("gicv2-vm", "--gic 2 --machine-option gic-version=3 --memory 64M", "a VM was made for a GICv2, and the machine has a GICv3"),
    ]
}
