//! Attacks on a machine of sixteen CPUs, on all of which a hostile VM runs at once, beside one that computes. (Bochs has
//! no timers for a sixteenth CPU.)

use anyhow::Result;
use rustix::process::Signal;

use super::scenario::{Expect, Scenario, passed};
use stile::config::Arch;
use stile::exit;
use stile::programs::{PASSED, Programs};

/// A machine.
struct Machine {
    cpus: u32,
    model: &'static str,
    /// Prefix of its scenarios' names.
    folder: &'static str,
    /// Boot arguments of the guest `hostile`.
    hostile: &'static str,
    /// Arguments of its run. On Arm virtual time counts instructions, and the emulator runs all CPUs in turn: threads of more CPUs than the
    /// host has would wait for each other's locks while others have the host.
    arguments: &'static str,
}

const ARM: Machine = Machine { cpus: 16, model: "max", folder: "isolation", hostile: "stile", arguments: "--icount --exits" };
const VMX: Machine = Machine { cpus: 15, model: "corei7_skylake_x", folder: "pc/isolation", hostile: "last=debug", arguments: "--exits" };
const AMD_V: Machine = Machine { cpus: 16, model: "max", folder: "pc/amd/isolation", hostile: "seed=2", arguments: "--exits" };

/// All of them.
///
/// # Errors
/// A guest is missing.
pub(super) fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let machines: &[Machine] = match programs.arch {
        Arch::Aarch64 => &[ARM],
        Arch::X86_64 => &[VMX, AMD_V],
    };
    let scenarios = machines.iter().flat_map(|machine| [hostile(machine, programs), storm(machine, programs)]);
    scenarios.collect()
}

/// A VM tries to break out.
fn hostile(machine: &Machine, programs: &Programs) -> Result<Scenario> {
    let config = config(machine, "hostile", machine.hostile, "", programs)?;
    // Both must end, in either order.
    let expect = Expect { output: vec![PASSED.into(), PASSED.into()], ..passed() };
    let name = format!("{}/hostile-on-{}-cpus", machine.folder, machine.cpus);
    Ok(Scenario { config: Some(config), timeout: 3600, expect, ..Scenario::new(name, machine.arguments) })
}

/// Another endless attack on each vCPU: the neighbour completes.
fn storm(machine: &Machine, programs: &Programs) -> Result<Scenario> {
    let config = config(machine, "storm", "attack=mixed", "append = \"rounds=10\"", programs)?;
    let expect =
        Expect { status: exit::LEFT, output: vec![PASSED.into()], absent: vec!["FAIL "], signal: Some(Signal::INT), ..Expect::default() };
    let name = format!("{}/storms-on-{}-cpus", machine.folder, machine.cpus);
    Ok(Scenario { config: Some(config), timeout: 1800, expect, ..Scenario::new(name, "--exits") })
}

fn config(machine: &Machine, attacker: &str, append: &str, neighbour: &str, programs: &Programs) -> Result<String> {
    let &Machine { cpus, model, .. } = machine;
    let (arch, kernel, checksum) = (programs.arch.name(), programs.path(attacker)?, programs.path("checksum")?);
    Ok(format!(
        "[machine]\narch = \"{arch}\"\ncpu = \"{model}\"\ncpus = {cpus}\n\n\
         [[vm]]\nname = \"attacker\"\nkernel = \"{kernel}\"\nappend = \"{append}\"\nvcpus = {cpus}\nmemory = \"64M\"\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{checksum}\"\nmemory = \"64M\"\n{neighbour}\n"
    ))
}
