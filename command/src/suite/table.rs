//! The scenarios.

use anyhow::Result;
use rustix::process::Signal;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario, by_turns};
use super::test::Test;
use super::{guests, nested, nested_pc, topology};
use stile::exit;
use stile::programs::Programs;

/// The kernels, and the start of each one's `uname -r`; empty if it changes with Debian's archive.
const KERNELS: [(&str, &str); 3] = [("debian:6.1", "6.1."), ("debian:6.12", "6.12."), ("debian", "")];

/// CPU models: with everything, with VHE, and Armv8.0.
const CPUS: [&str; 3] = ["max", "cortex-a76", "cortex-a57"];

/// All tests that are scenarios, with the guests for Arm and for the PC.
///
/// # Errors
/// A guest is missing.
pub fn all(arm: &Programs, pc: &Programs) -> Result<Vec<Test>> {
    let mut scenarios = without_guests();
    scenarios.extend(guests::on_arm(arm)?);
    scenarios.extend(guests::on_pc(pc)?);
    let mut tests: Vec<Test> = scenarios.into_iter().map(Test::scenario).collect();
    tests.extend(guests::late(arm)?);
    tests.extend(nested::probes());
    tests.extend(nested_pc::probes());
    tests.extend(nested_pc::stile(pc.path("pc")?));
    Ok(tests)
}

/// The scenarios that need no guests but Debian's.
pub fn without_guests() -> Vec<Scenario> {
    let mut scenarios = boots();
    scenarios.extend([
        installer(),
        clusters("boot/two-clusters", 18),
        clusters("boot/32-vcpus", 32),
        hot_plug(),
        topology::arm(),
        one_cpu(),
        two_cpus(),
        reboot(),
        stop_on_reset(),
        exact_output(),
        timeout(),
    ]);
    scenarios.extend(nested::starts());
    scenarios.extend(nested_pc::starts());
    scenarios.extend(usage());
    scenarios
}

/// Every kernel on every CPU model, with four vCPUs, to a shell.
fn boots() -> Vec<Scenario> {
    let one = |(kernel, release): (&str, &str), cpu: &str| {
        let arguments = format!("--kernel {kernel} --cpu {cpu} --vcpus 4 --exits");
        let scenario = Scenario::new(format!("boot/{kernel}/{cpu}"), &arguments).with("--exec", "nproc; uname -r");
        let expect = Expect { output: vec!["4\n".into(), release.into()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
        Scenario { expect, ..scenario }
    };
    KERNELS.into_iter().flat_map(|kernel| CPUS.map(|cpu| one(kernel, cpu))).collect()
}

/// Debian's installer shows its first question, the language.
fn installer() -> Scenario {
    let expect = Expect { status: exit::LEFT, output: vec!["Select a language".into()], signal: Some(Signal::INT), ..Expect::default() };
    Scenario { timeout: 900, expect, ..Scenario::new("boot/debian-installer", "--kernel debian-installer --memory 1G --vcpus 2") }
}

/// Two clusters of vCPUs, each vCPU on a separate CPU.
fn clusters(name: &str, vcpus: u32) -> Scenario {
    let scenario = Scenario::new(name, &format!("--vcpus {vcpus} --smp {vcpus} --exits")).with("--exec", "nproc");
    let expect = Expect { output: vec![format!("{vcpus}\n")], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { expect, ..scenario }
}

/// Linux turns vCPUs off and on again that compete for fewer CPUs, while some of them compute.
fn hot_plug() -> Scenario {
    let turn = |on| format!("for n in 1 3; do echo {on} >cpu$n/online; done");
    let load = "for n in 1 2 3 4; do while :; do :; done & done";
    let exec = format!("cd /sys/devices/system/cpu; {load}; {}; few=$(nproc); {}; echo $few $(nproc)", turn(0), turn(1));
    let scenario = Scenario::new("life/hot-plug", "--vcpus 4 --smp 2 --exits").with("--exec", exec);
    let expect = Expect { output: vec!["2 4\n".into()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { expect, ..scenario }
}

/// Two VMs that compute and print, on a machine with `cpus` CPUs.
fn two_vms(name: &str, cpus: u32) -> Scenario {
    let vm = |name: &str| {
        // Each turn is longer than some time slices.
        let exec = "while :; do i=0; while [ $i -lt 4000 ]; do i=$((i+1)); done; echo turn; \
                    set -- $(head -n 1 /proc/stat); [ $9 -eq 0 ] || echo stolen; done";
        format!("[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\nvcpus = 1\nmemory = \"256M\"\nexec = \"{exec}\"\n")
    };
    let config = format!("[machine]\ncpus = {cpus}\n\n{}\n{}", vm("one"), vm("two"));
    Scenario { config: Some(config), expect: by_turns(), ..Scenario::new(name, "--exits") }
}

/// Each sees the time that the other one had.
fn one_cpu() -> Scenario {
    let mut scenario = two_vms("share/two-vms-on-one-cpu", 1);
    scenario.expect.output.extend(["one | stolen", "two | stolen"].map(String::from));
    scenario
}

fn two_cpus() -> Scenario {
    two_vms("share/two-vms-on-two-cpus", 2)
}

/// A guest reboots and starts again.
fn reboot() -> Scenario {
    let expect = Expect {
        status: exit::LEFT,
        output: vec!["~ # ".into(), "reboot -f".into(), "~ # ".into()],
        signal: Some(Signal::INT),
        ..Expect::default()
    };
    Scenario { input: Some(("~ # ", "reboot -f\n")), expect, ..Scenario::new("life/reboot", "--vcpus 2 --append quiet") }
}

/// A guest reboots while `on_reset` stops it instead: its command has no status then.
fn stop_on_reset() -> Scenario {
    let scenario = Scenario::new("life/stop-on-reset", "--on-reset stop").with("--exec", "reboot -f; sleep 60");
    let notes = vec!["vm0 ended by a reset".into()];
    Scenario { expect: Expect { status: exit::GUEST, notes, ..Expect::default() }, ..scenario }
}

/// A command's output is complete, the console accepts bulk input, and the command's status is the run's.
fn exact_output() -> Scenario {
    let exec = "seq 1 20000 | md5sum; seq 1 3000; ls -d /proc; printf end; exit 42";
    let output = vec!["e071f707df7bbeee2a6a1eb48011ddd0".into(), "\n1\n2\n3\n".into(), "\n2999\n3000\n/proc\nend".into()];
    let expect = Expect { status: 42, output, ..Expect::default() };
    Scenario { expect, ..Scenario::new("command/output", "").with("--exec", exec) }
}

/// A run that takes too long is ended.
fn timeout() -> Scenario {
    let scenario = Scenario::new("command/timeout", "").with("--exec", "echo started; sleep 1000");
    let expect = Expect { status: exit::TIMEOUT, output: vec!["started".into()], notes: vec!["time-out".into()], ..Expect::default() };
    // The boot takes 6 s, and 25 beside four other emulators on two CPUs.
    Scenario { timeout: 90, expect, ..scenario }
}

/// Mistakes are reported before anything starts.
fn usage() -> Vec<Scenario> {
    let refused = |name: &str, config: &str, notes: &[&str]| {
        let notes = notes.iter().map(|note| (*note).to_owned()).collect();
        let expect = Expect { status: exit::USAGE, notes, ..Expect::default() };
        Scenario { config: Some(config.to_owned()), expect, ..Scenario::new(format!("usage/{name}"), "") }
    };
    vec![
        refused("unknown-word", "[[vm]]\nkernel = \"debian\"\nvpcus = 2\n", &["machine.toml:3:1", "vcpus"]),
        refused("too-many-vcpus", "[[vm]]\nkernel = \"debian\"\nvcpus = 999\n", &["machine.toml:3:9", "256"]),
        refused("not-toml", "[[vm\n", &["machine.toml:1"]),
    ]
}
