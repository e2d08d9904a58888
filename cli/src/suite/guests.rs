//! The scenarios with bare-metal test guests (the folder `guests`): each prints `PASS` and `FAIL` lines, and ends with its status.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::nested;
use super::scenario::{Expect, Scenario};
use super::table::NO_DIFFERENCE;
use crate::config::{Arch, ablation};
use crate::session::SAME_MEMORY;
use crate::{cargo, exit};

/// What a guest prints at its end if all its tests passed.
const PASSED: &str = "EXIT: STATUS=0";

/// The suites, and the boot arguments that make them run everything.
const SUITES: [(&str, &str); 6] =
    [("gic", "stile"), ("timer", "stile only=all_cpus"), ("psci", "stile"), ("smp", "stile"), ("regs", "stile"), ("uart", "stile rx")];

/// What of them runs at an EL2 of its own, too, with what is only for there.
const AT_EL2: [(&str, &str); 5] =
    [("gic", "stile"), ("timer", "stile only=all_cpus"), ("psci", "stile"), ("smp", "stile"), ("nested", "stile")];

/// What runs as L2, under a KVM that is L1. (Without Stile, too, that KVM fails some of the other tests: it accepts reserved bits of
/// CPU_SUSPEND's argument, and has no latch for an SPI's level.)
const AS_L2: [(&str, &str); 4] = [("psci", "only=on_"), ("timer", ""), ("gic", "only=sgi"), ("smp", "")];

/// What runs as L2, under a Stile that is L1.
const UNDER_STILE: [(&str, &str); 3] = [("psci", "stile"), ("smp", "stile"), ("regs", "stile")];

/// CPU models, with physical CPUs, that each suite runs on with four vCPUs.
const MACHINES: [(&str, u32); 4] = [("max", 4), ("max", 1), ("cortex-a76", 2), ("cortex-a57", 2)];

/// The guests' programs, by name.
struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    fn build() -> Result<Self> {
        let repository = cargo::repository();
        let mut command = cargo::cargo("build", &repository.join("guests"));
        command.args(["--release", "--package", "suites"]).env("CARGO_TARGET_DIR", repository.join("target/guests"));
        Ok(Self(cargo::build(command, "the test guests")?.into_iter().collect()))
    }

    fn path(&self, name: &str) -> Result<String> {
        let path = self.0.get(name).with_context(|| format!("there is no test guest called {name}"))?;
        Ok(path.display().to_string())
    }
}

/// All of them. Builds the guests.
///
/// # Errors
/// The guests don't compile, or one is missing.
pub fn guests() -> Result<Vec<Scenario>> {
    let programs = Programs::build()?;
    let mut scenarios = Vec::new();
    for (suite, append) in SUITES {
        for (cpu, smp) in MACHINES {
            scenarios.push(one_suite(suite, append, cpu, smp, programs.path(suite)?));
        }
    }
    for (suite, append) in AT_EL2 {
        let mut scenario = one_suite(suite, append, "max", 2, programs.path(suite)?);
        scenario.name = format!("guest/{suite}/el2");
        scenario.expect.notes.push(SAME_MEMORY.into());
        scenario.arguments.push("--nested".into());
        scenarios.push(scenario);
    }
    scenarios.push(trapped_waits(&programs)?);
    let as_l2 = AS_L2.map(|(suite, append)| Ok((suite, programs.path(suite)?, append)));
    scenarios.push(nested::suites(&as_l2.into_iter().collect::<Result<Vec<_>>>()?)?);
    let under_stile = UNDER_STILE.map(|(suite, append)| Ok((suite, programs.path(suite)?, append)));
    scenarios.extend(nested::stile(&under_stile.into_iter().collect::<Result<Vec<_>>>()?)?);
    for cpu in ["max", "cortex-a57"] {
        scenarios.push(ablated(cpu, &programs)?);
    }
    scenarios.extend([reboot(programs.path("reboot")?), crash(programs.path("crash")?), idle(programs.path("idle")?)]);
    for cpu in ["max", "cortex-a76", "cortex-a57"] {
        scenarios.push(timers(cpu, programs.path("timer")?));
    }
    scenarios.push(counted_by_emulator(programs.path("psci")?));
    for cpus in [1, 2] {
        scenarios.push(hostile_neighbour(cpus, "hostile", 4, &programs)?);
        scenarios.push(greedy_neighbour(cpus, &programs)?);
    }
    scenarios.push(panic_report(&programs)?);
    scenarios.push(hostile_neighbour(1, "nested", 2, &programs)?);
    scenarios.push(el2_ends_first(&programs)?);
    scenarios.extend(pc()?);
    Ok(scenarios)
}

/// The suite for x86-64, with the CPU models and physical CPUs that it runs on.
fn pc() -> Result<Vec<Scenario>> {
    let repository = cargo::repository();
    let mut command = cargo::cargo_for(Arch::X86_64, "build", &repository.join("guests/pc"));
    command.arg("--release").env("CARGO_TARGET_DIR", repository.join("target/guests/pc"));
    let programs = cargo::build(command, "the test guest for x86-64")?;
    let (_, path) = programs.into_iter().find(|(name, _)| name == "pc").context("there is no test guest for x86-64")?;
    let machines = [("corei7_skylake_x", 1, 1), ("corei7_skylake_x", 3, 2), ("corei7_haswell_4770", 2, 1)];
    let suites = machines.map(|(cpu, vcpus, smp)| {
        let arguments = format!("--arch x86_64 --memory 64M --cpu {cpu} --vcpus {vcpus} --smp {smp} --exits");
        let scenario = Scenario::new(format!("pc/suite/{cpu}-{vcpus}-on-{smp}"), &arguments).with("--kernel", path.display().to_string());
        // With several CPUs a tick is not an instruction, from which the guest tells whether there was an exit.
        let exitless = if vcpus == 1 { vec!["lapic_id_read", "task_priority_write", "self_ipi"] } else { vec![] };
        Scenario { expect: exits_of_apic(&exitless), ..scenario }
    });
    let statuses = [(0, exit::OK, "exits counted"), (3, exit::GUEST, "ended itself with status 3")].map(|(status, ends, note)| {
        let arguments = format!("--arch x86_64 --memory 64M --exits --append exit={status}");
        let scenario = Scenario::new(format!("pc/exit-status/{status}"), &arguments).with("--kernel", path.display().to_string());
        Scenario { expect: Expect { status: ends, notes: vec![note.into()], ..Expect::default() }, ..scenario }
    });
    let levels = [("registers", &["lapic_id_read", "task_priority_write"][..]), ("off", &[])];
    let levels = levels.map(|(level, exitless)| {
        let vm = format!("kernel = \"{}\"\nmemory = \"64M\"\nvcpus = 2\n", path.display());
        Scenario {
            config: Some(pc_config(1, &apic(level), &vm)),
            expect: exits_of_apic(exitless),
            ..Scenario::new(format!("pc/apic/{level}"), "--exits")
        }
    });
    // Code that changes, on one vCPU and by another: what is remembered of it must change, too.
    let caches = ["verify", "protect"].map(|scheme| {
        let vm = format!("kernel = \"{}\"\nvcpus = 2\nmemory = \"64M\"\n", path.display());
        let config = pc_config(2, &format!("apic_virtualization = \"off\"\ndecode_cache = \"{scheme}\""), &vm);
        let expect = Expect { notes: vec![NO_DIFFERENCE.into(), "instructions decoded for vm0: ".into()], ..passed() };
        Scenario { config: Some(config), expect, ..Scenario::new(format!("pc/decode-cache/{scheme}"), "--exits") }
    });
    let machines = [("corei7_skylake_x", 1, 1), ("corei7_haswell_4770", 2, 1), ("corei7_skylake_x", 2, 2)];
    let boots = machines.map(|(cpu, vcpus, smp)| {
        let arguments = format!("--arch x86_64 --kernel debian:6.1 --memory 256M --cpu {cpu} --vcpus {vcpus} --smp {smp} --exits");
        let scenario = Scenario::new(format!("pc/debian:6.1/{cpu}-{vcpus}-on-{smp}"), &arguments).with("--exec", "uname -r; nproc; exit 7");
        Scenario { expect: debian(vcpus), ..scenario }
    });
    let vm = "kernel = \"debian:6.1\"\nmemory = \"256M\"\nvcpus = 2\non_reset = \"stop\"\nexec = \"uname -r; nproc; exit 7\"\n";
    let by_hand = Scenario {
        config: Some(pc_config(2, &apic("off"), vm)),
        expect: debian(2),
        ..Scenario::new("pc/debian:6.1/apic-off-2-on-2", "--exits")
    };
    Ok(suites.into_iter().chain(levels).chain(statuses).chain(caches).chain(boots).chain([by_hand, two_pcs()]).collect())
}

/// Two Debians that compute and print on one CPU, in turns.
fn two_pcs() -> Scenario {
    let exec = "for turn in 1 2 3 4 5; do i=0; while [ $i -lt 4000 ]; do i=$((i+1)); done; echo turn $turn; done";
    let vm = |name| format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nexec = \"{exec}\"\n");
    let config = format!("[machine]\narch = \"x86_64\"\n{}{}", vm("one"), vm("two"));
    let expect = Expect {
        output: vec!["turn 5".into(), "turn 5".into()],
        notes: vec![NO_DIFFERENCE.into(); 2],
        interleaved: Some(("one | turn", "two | turn")),
        ..Expect::default()
    };
    Scenario { config: Some(config), expect, ..Scenario::new("pc/two-debians", "--exits") }
}

/// A PC with one VM, and its techniques.
fn pc_config(cpus: u32, techniques: &str, vm: &str) -> String {
    format!("[machine]\narch = \"x86_64\"\ncpus = {cpus}\n\n[[vm]]\n{vm}[vm.techniques]\n{techniques}\n")
}

/// Local APICs are virtualized so far and no further.
fn apic(level: &str) -> String {
    format!("apic_virtualization = \"{level}\"")
}

/// What the suite for x86-64 prints of operations on the local APIC: those that do not exit, in both modes.
fn exits_of_apic(exitless: &[&str]) -> Expect {
    let each = |mode| exitless.iter().map(move |operation| format!("{mode} {operation}: no exit"));
    let passed = passed();
    let output = each("xapic").chain(each("x2apic")).chain(passed.output).collect();
    Expect { output, ..passed }
}

fn debian(vcpus: u32) -> Expect {
    let output = vec!["6.1.0-".into(), format!("\n{vcpus}\n")];
    Expect { status: 7, output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() }
}

fn one_suite(suite: &str, append: &str, cpu: &str, smp: u32, kernel: String) -> Scenario {
    let arguments = format!("--vcpus 4 --memory 64M --cpu {cpu} --smp {smp} --exits");
    let scenario = Scenario::new(format!("guest/{suite}/{cpu}-{smp}"), &arguments).with("--kernel", kernel);
    let scenario = scenario.with("--append", append);
    Scenario { input: Some(("send a line", "hello, world\n")), expect: passed(), ..scenario }
}

/// A hypervisor with a guest that waits, where Stile has waits trap.
fn trapped_waits(programs: &Programs) -> Result<Scenario> {
    let config = format!(
        "[[vm]]\nkernel = \"{}\"\nnested = true\nvcpus = 2\nmemory = \"64M\"\nappend = \"stile only=l2\"\n\
         [vm.techniques]\nwfi_passthrough = false\n",
        programs.path("nested")?
    );
    Ok(Scenario { config: Some(config), expect: passed(), ..Scenario::new("guest/nested/el2-trapped-waits", "--exits") })
}

/// Suites at once, each in a VM that ablates everything: what moves at every exit must be as it was.
fn ablated(cpu: &str, programs: &Programs) -> Result<Scenario> {
    let ablated = ["gic", "timer", "smp", "regs"];
    let mut config = format!("[machine]\ncpu = \"{cpu}\"\ncpus = 2\n");
    for (suite, append) in SUITES.into_iter().filter(|(suite, _)| ablated.contains(suite)) {
        config += &format!(
            "\n[[vm]]\nname = \"{suite}\"\nkernel = \"{}\"\nappend = \"{append}\"\nvcpus = 4\nmemory = \"64M\"\n\
             [vm.techniques]\nablate = [{}]\n",
            programs.path(suite)?,
            ablation::list(),
        );
    }
    let count = ablated.len();
    let expect = Expect { output: vec![PASSED.into(); count], notes: vec![NO_DIFFERENCE.into(); count], ..passed() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(format!("guest/ablated/{cpu}"), "--exits") })
}

fn passed() -> Expect {
    Expect { output: vec![PASSED.into()], notes: vec![NO_DIFFERENCE.into()], absent: vec!["FAIL "], ..Expect::default() }
}

/// The timer suite on one CPU. Deadlines are near, and the machine's other work must not make them pass unseen: virtual time counts
/// instructions. (With several CPUs that would be slow: they would spin in turn.)
fn timers(cpu: &str, kernel: String) -> Scenario {
    let arguments = format!("--memory 64M --cpu {cpu} --smp 1 --icount --exits --append stile");
    let scenario = Scenario::new(format!("guest/timer/{cpu}-icount"), &arguments).with("--kernel", kernel);
    Scenario { expect: passed(), ..scenario }
}

/// The ledger's sum is the number of exceptions to EL2 that the emulator logs, to the last one.
fn counted_by_emulator(kernel: String) -> Scenario {
    let scenario =
        Scenario::new("ledger/counted-by-emulator", "--vcpus 4 --memory 64M --smp 2 --exits --append stile").with("--kernel", kernel);
    Scenario { expect: Expect { counted_by_emulator: true, ..passed() }, ..scenario }
}

/// A reset by the guest itself, in an awkward state: it comes back as after power-on. (RAM that nothing is loaded into is kept; so it knows.)
fn reboot(kernel: String) -> Scenario {
    let scenario = Scenario::new("life/guest-reset", "--vcpus 4 --memory 64M --exits").with("--kernel", kernel);
    let expect = Expect { output: vec!["boot 1".into(), "boot 2".into(), PASSED.into()], ..passed() };
    Scenario { expect, ..scenario }
}

/// A guest that can't go on ends its run, and it is said which and where.
fn crash(kernel: String) -> Scenario {
    let scenario = Scenario::new("life/crash", "--memory 64M").with("--kernel", kernel);
    let expect = Expect { status: exit::GUEST, notes: vec!["vm0 crashed".into()], ..Expect::default() };
    Scenario { expect, ..scenario }
}

/// A guest that waits for ever is ended by the time-out.
fn idle(kernel: String) -> Scenario {
    let scenario = Scenario::new("life/idle-until-timeout", "--memory 64M").with("--kernel", kernel);
    let expect = Expect { status: exit::TIMEOUT, notes: vec!["time-out".into()], ..Expect::default() };
    Scenario { timeout: 20, expect, ..scenario }
}

/// Two VMs on so many CPUs: `other` with its vCPUs, and one that computes checksums over its memory.
fn with_checksum(cpus: u32, other: (&str, u32), programs: &Programs) -> Result<String> {
    let (name, vcpus) = other;
    let nested = name == "nested";
    Ok(format!(
        "[machine]\ncpus = {cpus}\n\n\
         [[vm]]\nname = \"{name}\"\nkernel = \"{}\"\nappend = \"stile\"\nnested = {nested}\nvcpus = {vcpus}\n\
         memory = \"64M\"\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nvcpus = 1\nmemory = \"64M\"\n",
        programs.path(name)?,
        programs.path("checksum")?,
    ))
}

/// One VM does all it can to break out, by itself or as a hypervisor; what the other computes must stay right.
fn hostile_neighbour(cpus: u32, program: &str, vcpus: u32, programs: &Programs) -> Result<Scenario> {
    let config = with_checksum(cpus, (program, vcpus), programs)?;
    let expect = Expect {
        // Both must come to their end, in whichever order.
        output: vec![PASSED.into(), PASSED.into()],
        ..passed()
    };
    Ok(Scenario { config: Some(config), timeout: 900, expect, ..Scenario::new(format!("isolation/{program}-on-{cpus}"), "--exits") })
}

/// A VM with an EL2 of its own turns off; the other one has its CPU from then on, and nothing of that EL2.
fn el2_ends_first(programs: &Programs) -> Result<Scenario> {
    let config = with_checksum(1, ("nested", 1), programs)?.replace("\"stile\"", "\"stile only=hypercall\"");
    let end = |name: &str| format!("{name} | {PASSED}");
    let expect = Expect { output: vec![end("nested   "), end("neighbour")], ..passed() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("isolation/nested-ends-first", "--exits") })
}

/// One VM never yields; the other must come to its end.
fn greedy_neighbour(cpus: u32, programs: &Programs) -> Result<Scenario> {
    let config = with_checksum(cpus, ("spin", 2), programs)?;
    let expect =
        Expect { status: exit::LEFT, output: vec![PASSED.into()], absent: vec!["FAIL "], signal: Some(Signal::INT), ..Expect::default() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(format!("isolation/never-yields-on-{cpus}"), "") })
}

/// The operator has Stile panic while a vCPU runs: it says where, and the run ends with its status.
fn panic_report(programs: &Programs) -> Result<Scenario> {
    let config = with_checksum(1, ("spin", 1), programs)?;
    let notes = ["panic: the operator asked for it", "CPU 0, vCPU 0 of ", "guest pc", "backtrace:", "handler::interrupt::"];
    let expect = Expect {
        status: exit::HYPERVISOR,
        output: vec![PASSED.into()],
        notes: notes.map(str::to_owned).into(),
        signal: Some(Signal::QUIT),
        ..Expect::default()
    };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("life/panic-report", "") })
}
