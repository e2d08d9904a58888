//! CPU models that the emulators know.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::qemu::PROGRAM;
use super::{amd, bochs};
use crate::child;
use crate::config::{self, Arch};

/// 32-bit models of QEMU's `virt` board, on which Stile does not run.
const OF_32_BITS: [&str; 4] = ["cortex-a15", "cortex-a7", "cortex-a8", "cortex-a9"];

/// Checks a CPU model, with QEMU's properties after it, if the emulator is there.
///
/// # Errors
/// The emulator does not know it: a sentence with the models that it knows.
pub fn check_model(arch: Arch, model: &str) -> Result<(), String> {
    let name = model.split(',').next().unwrap_or_default();
    let Some(known) = known(arch, name) else { return Ok(()) };
    if !known.iter().any(|known| known == name) {
        return Err(unknown(name, &usable(arch, name, known)));
    }
    if arch == Arch::Aarch64 && name != model { check_properties(model) } else { Ok(()) }
}

/// The models of the emulator that runs an architecture's model `name`; `None` if it is not there yet.
fn known(arch: Arch, name: &str) -> Option<Vec<String>> {
    let known = match arch {
        Arch::Aarch64 => arm_models(&output(PROGRAM, &["-M", "virt", "-cpu", "help"])?),
        Arch::X86_64 if arch.has_amd_v(name) => models_of_qemu(&output(amd::PROGRAM, &["-cpu", "help"])?).map(str::to_owned).collect(),
        Arch::X86_64 => models_of_bochs(&output(bochs::cached()?.program.to_str()?, &["-help", "cpu"])?),
    };
    // Another version may print the list in another way.
    (!known.is_empty()).then_some(known)
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    // Bochs prints its list on standard error.
    Some([output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
}

/// The models in QEMU's list.
fn models_of_qemu(help: &str) -> impl Iterator<Item = &str> {
    help.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
}

/// The 64-bit Arm models in QEMU's list, which has also those of 32 bits, and of microcontrollers.
fn arm_models(help: &str) -> Vec<String> {
    let is_64_bit = |name: &&str| {
        ["cortex-a", "cortex-x", "neoverse-", "a64fx"].iter().any(|family| name.starts_with(family)) && !OF_32_BITS.contains(name)
            || *name == "max"
    };
    models_of_qemu(help).filter(is_64_bit).map(str::to_owned).collect()
}

/// The models in Bochs' list.
fn models_of_bochs(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| !line.starts_with("Supported CPU models")).skip(2);
    list.map(str::trim).take_while(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The models that have what Stile needs. The others are accepted: Stile says at its start what they lack.
fn usable(arch: Arch, name: &str, mut known: Vec<String>) -> Vec<String> {
    let usable: &[&str] = if arch.has_amd_v(name) { &amd::MODELS } else { &bochs::USABLE };
    known.retain(|model| arch == Arch::Aarch64 || usable.contains(&model.as_str()));
    known
}

fn unknown(name: &str, known: &[String]) -> String {
    let similar = config::similar(name, known.iter().map(String::as_str)).map(|similar| format!("; did you mean {similar}?"));
    format!("the emulator has no 64-bit CPU model called {name}; expected one of {}{}", known.join(", "), similar.unwrap_or_default())
}

/// Lets QEMU make a machine with the model, which ends at once.
fn check_properties(model: &str) -> Result<(), String> {
    let machine = ["-M", "virt,virtualization=on,gic-version=3", "-m", "64M", "-nodefaults", "-display", "none", "-S"];
    let monitor = ["-monitor", "stdio", "-cpu", model];
    let mut command = Command::new(PROGRAM);
    let command = child::end_with_parent(command.args(machine).args(monitor), Signal::KILL);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let output = started.and_then(|mut emulator| {
        // It may have refused already.
        let _ = emulator.stdin.take().map(|mut monitor| monitor.write_all(b"quit\n"));
        emulator.wait_with_output()
    });
    match output {
        Ok(output) if !output.status.success() => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            let why = why.lines().next().unwrap_or("it fails").trim_start_matches(PROGRAM).trim_start_matches(": ").to_owned();
            Err(format!("the emulator does not accept the CPU model {model}: {why}"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_models_on_which_stile_can_run_are_known() {
        let help =
            "Available CPUs:\n  a64fx\n  arm1026\n  cortex-a15\n  cortex-a57\n  cortex-m3\n  max\n  neoverse-n1\n  pxa250 (deprecated)\n";
        assert_eq!(arm_models(help), ["a64fx", "cortex-a57", "max", "neoverse-n1"]);
        let help = "Supported CPU models:\n\ni386\ncorei7_skylake_x\n\n00000000000i[SIM   ] quit_sim called with exit code 0\n";
        assert_eq!(models_of_bochs(help), ["i386", "corei7_skylake_x"]);
        assert!(arm_models("").is_empty() && models_of_bochs("").is_empty());
    }

    #[test]
    fn an_unknown_model_is_refused_with_those_that_are_known() {
        let known = ["cortex-a57", "max"].map(str::to_owned);
        let why = unknown("cortex-a75", &known);
        assert!(why.contains("expected one of cortex-a57, max; did you mean cortex-a57?"), "{why}");
        assert!(!unknown("quantum", &known).contains("did you mean"));
        let known = ["i386", "ryzen", "corei7_skylake_x"].map(str::to_owned).to_vec();
        assert_eq!(usable(Arch::X86_64, "corei7", known), ["corei7_skylake_x"]);
        let known = ["486", "EPYC", "max"].map(str::to_owned).to_vec();
        assert_eq!(usable(Arch::X86_64, "EPYC-Ro", known), ["EPYC", "max"]);
    }
}
