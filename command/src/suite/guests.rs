//! The scenarios with bare-metal test guests (the folder `guests`): each prints `PASS` and `FAIL` lines, and ends with its status.

use anyhow::Result;
use rustix::process::Signal;
use stile_board::MAX_VCPUS;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use super::test::Test;
use super::{
    amd, devices, direct, firmware, gicv2, ipi, long, memory_disk, nested, operated, pc, served, share, sixteen, snapshots, start_up,
    switches, traced, waits,
};
use stile::config::{Arch, ablation};
use stile::exit;
use stile::programs::{PASSED, Programs};
use stile::session::SAME_MEMORY;

/// The suites, and the boot arguments that make them run everything.
const SUITES: [(&str, &str); 6] =
    [("gic", "stile"), ("timer", "stile only=all_cpus"), ("psci", "stile"), ("smp", "stile"), ("regs", "stile"), ("uart", "stile rx")];

/// Tests that also run at an EL2 of their own, and those only for there.
const AT_EL2: [(&str, &str); 5] =
    [("gic", "stile"), ("timer", "stile only=all_cpus"), ("psci", "stile"), ("smp", "stile"), ("nested", "stile")];

/// Tests that run as L2, under a KVM that is L1. (Without Stile, too, that KVM fails some of the other tests: it accepts reserved bits of
/// CPU_SUSPEND's argument, and has no latch for an SPI's level.)
const AS_L2: [(&str, &str); 4] = [("psci", "only=on_"), ("timer", ""), ("gic", "only=sgi"), ("smp", "")];

/// Tests that run as L2, under a Stile that is L1.
const UNDER_STILE: [(&str, &str); 3] = [("psci", "stile"), ("smp", "stile"), ("regs", "stile")];

/// CPU models, with physical CPUs, that each suite runs on with four vCPUs.
const MACHINES: [(&str, u32); 4] = [("max", 4), ("max", 1), ("cortex-a76", 2), ("cortex-a57", 2)];

/// Those with the guests for Arm.
///
/// # Errors
/// A guest is missing.
pub fn on_arm(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for (suite, append) in SUITES {
        for (cpu, smp) in MACHINES {
            let mut scenario = one_suite(suite, append, cpu, smp, programs.path(suite)?);
            if suite == "gic" {
                // Skipped if the VM could end QEMU by ICC_BPR1_EL1.
                scenario.expect.output.insert(0, "PASS binary_point_out_of_range".into());
            }
            scenarios.push(scenario);
        }
    }
    for (suite, append) in AT_EL2 {
        let mut scenario = one_suite(suite, append, "max", 2, programs.path(suite)?);
        scenario.name = format!("guest/{suite}/el2");
        scenario.expect.notes.push(SAME_MEMORY.into());
        scenario.arguments.push("--nested".into());
        scenarios.push(scenario);
    }
    scenarios.extend(mitigated(programs)?);
    // A CPU with VHE and the erratum of speculative AT; of the others `cortex-a57` has that.
    scenarios.push(one_suite("smp", "stile", "cortex-a55", 2, programs.path("smp")?));
    scenarios.push(trap_by_trap(programs)?);
    scenarios.push(trapped_waits(programs)?);
    for cpu in ["max", "cortex-a57"] {
        scenarios.push(ablated(cpu, programs)?);
    }
    scenarios.extend(reboots(&programs.path("reboot")?));
    scenarios.extend([reset_in_l2(programs.path("nested")?), idle(programs.path("idle")?)]);
    for cpu in ["max", "cortex-a76", "cortex-a57"] {
        scenarios.push(timers(cpu, programs.path("timer")?));
    }
    scenarios.push(counted_by_emulator(programs.path("psci")?));
    scenarios.extend(neighbours(programs)?);
    scenarios.push(hostile_neighbour(1, Other::new("nested", 2, "stile vms=100"), programs)?);
    scenarios.push(el2_ends_first(programs)?);
    scenarios.push(full_shadows(programs)?);
    scenarios.push(interrupt_floods(programs)?);
    scenarios.extend([bounded_exits(programs.path("hostile")?), numa(&programs.path("psci")?)]);
    scenarios.extend([share::fair(programs)?, share::beside_sender(programs)?, share::capped(programs)?]);
    scenarios.extend([many_vcpus(programs, 64)?, many_vcpus(programs, 256)?, share::most_vms(programs)?]);
    scenarios.push(most_vcpus(programs)?);
    scenarios.push(many_cpus(programs)?);
    scenarios.extend(devices::all(programs)?);
    scenarios.push(memory_disk::in_memory(Arch::Aarch64));
    scenarios.extend(served::all(programs)?);
    scenarios.extend(firmware::all(programs)?);
    scenarios.extend(start_up::all(programs)?);
    scenarios.extend(waits::all(programs)?);
    scenarios.extend(operated::all(programs)?);
    scenarios.extend(snapshots::all(programs)?);
    scenarios.extend(traced::all(programs)?);
    scenarios.extend(direct::all(programs)?);
    scenarios.extend(gicv2::all(programs)?);
    scenarios.extend(sixteen::all(programs)?);
    scenarios.extend(switches::on_arm(programs)?);
    Ok(scenarios)
}

/// Those with the guests for the PC.
///
/// # Errors
/// A guest is missing.
pub fn on_pc(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut scenarios = operated::all(programs)?;
    scenarios.extend(snapshots::all(programs)?);
    scenarios.extend(traced::all(programs)?);
    scenarios.extend(neighbours(programs)?);
    scenarios.extend([share::fair(programs)?, share::beside_kicks(programs)?]);
    scenarios.extend([many_vcpus(programs, 64)?, many_vcpus(programs, 256)?]);
    scenarios.extend(waits::all(programs)?);
    scenarios.extend(hostile_pcs(programs)?);
    scenarios.push(entry_failures(programs)?);
    scenarios.extend(pc::all(programs)?);
    scenarios.extend(amd::all(programs)?);
    scenarios.push(memory_disk::in_memory(Arch::X86_64));
    scenarios.extend(sixteen::all(programs)?);
    scenarios.extend(ipi::all(programs)?);
    scenarios.extend(switches::on_pc(programs)?);
    scenarios.extend(long::scenarios_on_pc(programs)?);
    Ok(scenarios)
}

/// Those, on Arm, that are made when they run: long ones, and guests under a hypervisor in a VM.
///
/// # Errors
/// A guest is missing.
pub fn late(programs: &Programs) -> Result<Vec<Test>> {
    let as_l2 = AS_L2.map(|(suite, append)| Ok((suite, programs.path(suite)?, append)));
    let under_stile = UNDER_STILE.map(|(suite, append)| Ok((suite, programs.path(suite)?, append)));
    let mut tests = vec![nested::suites(as_l2.into_iter().collect::<Result<Vec<_>>>()?)];
    tests.extend(nested::stile(under_stile.into_iter().collect::<Result<Vec<_>>>()?));
    tests.extend(long::scenarios(programs)?);
    Ok(tests)
}

/// Suites whose exits, from EL1 and from virtual EL2, use the vectors that clear the branch history.
fn mitigated(programs: &Programs) -> Result<Vec<Scenario>> {
    let one = |suite: &'static str, more: &[&str], name: &str| -> Result<Scenario> {
        let mut scenario = one_suite(suite, "stile", "max", 2, programs.path(suite)?);
        scenario.name = format!("guest/{suite}/{name}");
        scenario.arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        scenario.expect.notes.push("branch history cleared at exits by 32 branches".into());
        Ok(scenario)
    };
    Ok(vec![one("regs", &["--mitigations", "all"], "mitigated")?, one("psci", &["--mitigations", "all", "--nested"], "mitigated-el2")?])
}

/// Misbehaving VMs beside a neighbour.
fn neighbours(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut scenarios = vec![crash(programs)?, panic_report(programs)?, share::resetting_neighbour(programs)?, limited_resets(programs)?];
    // An emulated PC has no four CPUs to lose time with.
    let (vcpus, append) = if programs.arch == Arch::X86_64 { (2, "last=debug") } else { (4, "stile") };
    for cpus in [1, 2] {
        scenarios.push(hostile_neighbour(cpus, Other::new("hostile", vcpus, append), programs)?);
        scenarios.push(greedy_neighbour(&format!("never-yields-on-{cpus}"), cpus, Other::new("spin", 2, ""), programs)?);
    }
    Ok(scenarios)
}

/// The hostile guest with fewer processor features: with one vCPU, without APIC virtualization, and with each scheme of
/// the decode cache.
fn hostile_pcs(programs: &Programs) -> Result<Vec<Scenario>> {
    let ways = [
        ("alone", 1, "apic_virtualization = \"delivery\"\ndecode_cache = \"off\""),
        ("registers", 2, "apic_virtualization = \"registers\"\ndecode_cache = \"verify\""),
        ("protect", 2, "apic_virtualization = \"off\"\ndecode_cache = \"protect\""),
    ];
    let scenario = |(name, vcpus, techniques): (&str, u32, &'static str)| {
        let other = Other { techniques, ..Other::new("hostile", vcpus, "seed=2") };
        let scenario = hostile_neighbour(1, other, programs)?;
        Ok(Scenario { name: format!("pc/isolation/hostile-{name}"), ..scenario })
    };
    let mut scenarios = ways.into_iter().map(scenario).collect::<Result<Vec<_>>>()?;
    // A hypervisor that is hostile to the one below it.
    let of_l1 = hostile_neighbour(1, Other::new("vmx", 2, "only=hostile"), programs)?;
    scenarios.push(Scenario { name: "pc/isolation/hostile-l1".into(), ..of_l1 });
    // An interrupt window opens after each injection, with each way to deliver interrupts.
    for (name, techniques) in [("windows", ""), ("windows-apic-off", "apic_virtualization = \"off\"")] {
        scenarios.push(greedy_neighbour(name, 1, Other { techniques, ..Other::new("windows", 1, "") }, programs)?);
    }
    Ok(scenarios)
}

/// The suite of a hypervisor with FEAT_NV alone: each access to an EL2 register traps. `guest/nested/el2` starts more VMs.
fn trap_by_trap(programs: &Programs) -> Result<Scenario> {
    let mut trapping = one_suite("nested", "stile vms=100", "max", 2, programs.path("nested")?);
    trapping.name = "guest/nested/nv".into();
    trapping.arguments.push("--nested=nv".into());
    Ok(trapping)
}

fn one_suite(suite: &str, append: &str, cpu: &str, smp: u32, kernel: String) -> Scenario {
    let arguments = format!("--vcpus 4 --memory 64M --cpu {cpu} --smp {smp} --exits");
    let scenario = Scenario::new(format!("guest/{suite}/{cpu}-{smp}"), &arguments).with("--kernel", kernel);
    let scenario = scenario.with("--append", append);
    Scenario { input: Some(("send a line", "hello, world\n")), expect: passed(), ..scenario }
}

/// A VM of as many vCPUs as there may be, on two CPUs: redistributors in two regions, PSCI and SGIs.
fn most_vcpus(programs: &Programs) -> Result<Scenario> {
    let arguments = format!("--vcpus {MAX_VCPUS} --memory 16M --cpu max --smp 2 --exits");
    let scenario = Scenario::new(format!("guest/vcpus/{MAX_VCPUS}"), &arguments).with("--kernel", programs.path("vcpus")?);
    let scenario = scenario.with("--append", format!("stile vcpus={MAX_VCPUS}"));
    Ok(Scenario { expect: passed(), ..scenario })
}

/// A machine of many CPUs, with redistributors in two regions and affinities in several clusters; vCPUs on a few of them.
fn many_cpus(programs: &Programs) -> Result<Scenario> {
    let arguments = "--vcpus 4 --cpus 0,63-64,127 --memory 64M --cpu max --smp 128 --exits";
    let scenario = Scenario::new("guest/smp/128-cpus", arguments).with("--kernel", programs.path("smp")?);
    Ok(Scenario { expect: passed(), ..scenario.with("--append", "stile") })
}

/// A hypervisor with a waiting guest, while Stile traps waits.
fn trapped_waits(programs: &Programs) -> Result<Scenario> {
    let config = format!(
        "[[vm]]\nkernel = \"{}\"\nnested = true\nvcpus = 2\nmemory = \"64M\"\nappend = \"stile only=l2\"\n\
         [vm.techniques]\nwfi_passthrough = false\n",
        programs.path("nested")?
    );
    Ok(Scenario { config: Some(config), expect: passed(), ..Scenario::new("guest/nested/el2-trapped-waits", "--exits") })
}

/// Concurrent suites, each in a VM with all techniques ablated: state that moves at every exit must be preserved.
fn ablated(cpu: &str, programs: &Programs) -> Result<Scenario> {
    let ablated = ["gic", "timer", "smp", "regs"];
    let mut config = format!("[machine]\ncpu = \"{cpu}\"\ncpus = 2\n");
    for (suite, append) in SUITES.into_iter().filter(|(suite, _)| ablated.contains(suite)) {
        config += &format!(
            "\n[[vm]]\nname = \"{suite}\"\nkernel = \"{}\"\nappend = \"{append}\"\nvcpus = 4\nmemory = \"64M\"\n\
             [vm.techniques]\nbinary_point = \"own\"\nablate = [{}]\n",
            programs.path(suite)?,
            ablation::list(),
        );
    }
    let count = ablated.len();
    let expect = Expect { output: vec![PASSED.into(); count], notes: vec![NO_DIFFERENCE.into(); count], ..passed() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(format!("guest/ablated/{cpu}"), "--exits") })
}

/// Two VMs that the processor refuses to enter, by each kind of failure: they end alone, and exits counted are exits taken.
fn entry_failures(programs: &Programs) -> Result<Scenario> {
    let (crash, neighbour) = (programs.path("crash")?, programs.path("checksum")?);
    let vm = |name: &str, kernel: &str, append: &str| {
        format!("\n[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nappend = \"{append}\"\nmemory = \"64M\"\n")
    };
    let config = format!(
        "[machine]\narch = \"x86_64\"\n{}{}{}",
        vm("controls", &crash, "entry=controls"),
        vm("state", &crash, "entry=state"),
        vm("neighbour", &neighbour, "")
    );
    let crashed = [
        "controls: vCPU 0 can't go on: EntryFailed",
        "state: vCPU 0 can't go on: EntryFailed",
        "controls crashed: the processor refused the VM entry",
    ];
    let notes = crashed.into_iter().chain([NO_DIFFERENCE; 3]).map(String::from).collect();
    let expect = Expect { status: exit::GUEST, notes, ..passed() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("pc/life/entry-failures", "--exits") })
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

/// A reset by the guest in an awkward state, after which the state is that of power-on. (RAM without loaded files is preserved, which tells the
/// guest that it was reset.)
fn reboots(kernel: &str) -> [Scenario; 2] {
    // With a CPU of its own the first vCPU is never put with its timer's interrupt pending.
    [("life/guest-reset", "--vcpus 4"), ("life/guest-reset-on-1", "--vcpus 1 --smp 1")].map(|(name, cpus)| {
        let scenario = Scenario::new(name, &format!("{cpus} --memory 64M --exits")).with("--kernel", kernel);
        let expect = Expect { output: vec!["boot 1".into(), "boot 2".into(), PASSED.into()], ..passed() };
        Scenario { expect, ..scenario }
    })
}

/// Resets a VM while a vCPU that shares the CPU is preempted in L2.
fn reset_in_l2(kernel: String) -> Scenario {
    let scenario = Scenario::new("nested/reset-in-l2", "--nested --vcpus 2 --smp 1 --memory 64M --exits --append reset");
    let expect = Expect { output: vec!["boot 1".into(), "boot 2".into(), PASSED.into()], ..passed() };
    Scenario { expect, timeout: 400, ..scenario.with("--kernel", kernel) }
}

/// A guest that can't continue ends its run with a message that names the guest and the instruction.
fn crash(programs: &Programs) -> Result<Scenario> {
    let arguments = format!("--arch {} --memory 64M", programs.arch.name());
    let scenario = Scenario::new(programs.scenario("life/crash"), &arguments).with("--kernel", programs.path("crash")?);
    let expect = Expect { status: exit::GUEST, notes: vec!["vm0 crashed".into()], ..Expect::default() };
    Ok(Scenario { expect, ..scenario })
}

/// A guest that waits forever is ended by the time-out, and its exits are printed.
fn idle(kernel: String) -> Scenario {
    let scenario = Scenario::new("life/idle-until-timeout", "--memory 64M --exits").with("--kernel", kernel);
    let expect = Expect { status: exit::TIMEOUT, notes: vec!["time-out".into(), NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { timeout: 60, expect, ..scenario }
}

/// A VM beside one that computes.
#[derive(Clone, Copy)]
struct Other {
    program: &'static str,
    vcpus: u32,
    append: &'static str,
    techniques: &'static str,
}

impl Other {
    fn new(program: &'static str, vcpus: u32, append: &'static str) -> Self {
        Self { program, vcpus, append, techniques: "" }
    }
}

/// Two VMs on `cpus` CPUs: `other`, and one that computes checksums over its memory.
fn with_checksum(cpus: u32, other: Other, programs: &Programs) -> Result<String> {
    let Other { program, vcpus, append, techniques } = other;
    let nested = if matches!(program, "nested" | "vmx") { "nested = true\n" } else { "" };
    Ok(format!(
        "[machine]\narch = \"{}\"\ncpus = {cpus}\n\n\
         [[vm]]\nname = \"{program}\"\nkernel = \"{}\"\nappend = \"{append}\"\n{nested}vcpus = {vcpus}\n\
         memory = \"64M\"\n[vm.techniques]\n{techniques}\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nvcpus = 1\nmemory = \"64M\"\n",
        programs.arch.name(),
        programs.path(program)?,
        programs.path("checksum")?,
    ))
}

/// A VM tries to break out, at EL1 or virtual EL2; its neighbour's checksums must stay correct.
fn hostile_neighbour(cpus: u32, other: Other, programs: &Programs) -> Result<Scenario> {
    let config = with_checksum(cpus, other, programs)?;
    let expect = Expect {
        // Both must end, in either order.
        output: vec![PASSED.into(), PASSED.into()],
        // On the emulated PC time counts instructions without more ado.
        bounded_exits: (programs.arch == Arch::X86_64 && cpus == 1).then_some(Arch::X86_64),
        ..passed()
    };
    let name = programs.scenario(&format!("isolation/{}-on-{cpus}", other.program));
    Ok(Scenario { config: Some(config), timeout: 900, expect, ..Scenario::new(name, "--exits") })
}

/// A VM with virtual EL2 turns off; another VM then uses its CPU, and must find no state of that EL2.
fn el2_ends_first(programs: &Programs) -> Result<Scenario> {
    let config = with_checksum(1, Other::new("nested", 1, "stile only=hypercall"), programs)?;
    let end = |name: &str| format!("{name} | {PASSED}");
    let expect = Expect { output: vec![end("nested   "), end("neighbour")], ..passed() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("isolation/nested-ends-first", "--exits") })
}

/// A hypervisor fills all its shadow tables and invalidates them at once: no exit is long, and a neighbour makes progress meanwhile.
/// Virtual time counts instructions. 200,000 of them are what any exit may take; these took up to 61 million.
fn full_shadows(programs: &Programs) -> Result<Scenario> {
    const MOST: f64 = 200.0;
    let config = with_checksum(1, Other::new("nested", 1, "stile only=full_shadows"), programs)?;
    let rows = ["TLBI ALLE1", "TLBI VMALLS12E1IS", "TLBI IPAS2E1IS", "TLBI RIPAS2E1IS", "ERET to its guest", "FAULT"];
    let expect = Expect { output: vec![PASSED.into(), PASSED.into()], longest: rows.map(|row| (row, MOST)).into(), ..passed() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("isolation/nested-full-shadows", "--icount --exits") })
}

/// A VM never yields; its neighbour must complete.
fn greedy_neighbour(name: &str, cpus: u32, other: Other, programs: &Programs) -> Result<Scenario> {
    let config = with_checksum(cpus, other, programs)?.replace("name = \"neighbour\"", "name = \"neighbour\"\nappend = \"rounds=10\"");
    let expect =
        Expect { status: exit::LEFT, output: vec![PASSED.into()], absent: vec!["FAIL "], signal: Some(Signal::INT), ..Expect::default() };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(programs.scenario(&format!("isolation/{name}")), "") })
}

/// Two VMs flood CPU 0 with interrupts. A third VM, pinned to that CPU, must end, and the operator's commands must be answered.
fn interrupt_floods(programs: &Programs) -> Result<Scenario> {
    let vm = |name: &str, program: &str, rest: &str| {
        let kernel = programs.path(program)?;
        Ok(format!("[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nmemory = \"64M\"\n{rest}\n"))
    };
    let config = [
        Ok("[machine]\ncpus = 2\n\n".to_owned()),
        vm("groups", "flood", "append = \"groups\"\ncpus = [0]\n"),
        vm("sgi", "flood", "append = \"sgi\"\nvcpus = 2\npinned = true\n"),
        vm("neighbour", "checksum", "append = \"rounds=10\"\ncpus = [0]\n"),
    ];
    let expect = Expect {
        status: exit::HYPERVISOR,
        output: vec![PASSED.into()],
        notes: vec!["panic: the operator asked for it".into()],
        absent: vec!["FAIL "],
        signal: Some(Signal::QUIT),
        ..Expect::default()
    };
    let config = config.into_iter().collect::<Result<String>>()?;
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("isolation/interrupt-floods", "") })
}

/// A VM that resets forever is restarted only a limited number of times.
fn limited_resets(programs: &Programs) -> Result<Scenario> {
    let arguments = format!("--arch {} --memory 64M --on-reset restart:3", programs.arch.name());
    let scenario = Scenario::new(programs.scenario("life/limited-resets"), &arguments).with("--kernel", programs.path("resets")?);
    let output = vec!["once more".into(); 4];
    let notes = vec!["vm0 ended by a reset, having restarted 3 times".into()];
    Ok(Scenario { expect: Expect { status: exit::GUEST, output, notes, ..Expect::default() }, ..scenario })
}

/// The RAM of each VM is on the node of its CPUs. The last VM does not fit there.
fn numa(kernel: &str) -> Scenario {
    let vm = |name: &str, cpus: &str, memory: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nappend = \"stile only=version\"\ncpus = \"{cpus}\"\nmemory = \"{memory}\"\n"
        )
    };
    let vms = [vm("one", "1", "192M"), vm("zero", "0", "192M"), vm("large", "1", "320M")].concat();
    let config = format!("[machine]\ncpus = 2\nnodes = 2\nmemory = \"1G\"\n{vms}");
    let notes = [
        "node 0: 512 MiB; CPU 0\nnode 1: 512 MiB; CPU 1",
        "one: RAM on node 1\nzero: RAM on node 0",
        "large: RAM on node 0, 1, as those of its CPUs have too little left",
    ];
    let expect = Expect { output: vec![PASSED.into(); 3], notes: notes.map(str::to_owned).into(), ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("boot/numa", "--exits") }
}

/// The longest exit that a hostile VM causes. Virtual time counts instructions. (With more vCPUs that would be slow: they spin in turn.)
fn bounded_exits(kernel: String) -> Scenario {
    let arguments = "--vcpus 2 --memory 64M --smp 1 --icount --exits --append stile";
    let scenario = Scenario::new("isolation/bounded-exits", arguments).with("--kernel", kernel);
    Scenario { expect: Expect { bounded_exits: Some(Arch::Aarch64), ..passed() }, ..scenario }
}

/// The longest exit that a VM with many vCPUs causes, on operations that concern all of them.
fn many_vcpus(programs: &Programs, vcpus: u32) -> Result<Scenario> {
    let (arch, icount) = (programs.arch.name(), if programs.arch == Arch::Aarch64 { "--icount" } else { "" });
    let config = format!(
        "[machine]\narch = \"{arch}\"\ncpus = 1\nslice = \"100us\"\n\n\
         [[vm]]\nkernel = \"{}\"\nvcpus = {vcpus}\nmemory = \"64M\"\nappend = \"vcpus={vcpus}\"\n",
        programs.path("many")?
    );
    let expect = Expect { bounded_exits: Some(programs.arch), ..passed() };
    let name = programs.scenario(&format!("isolation/bounded-exits-of-{vcpus}-vcpus"));
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(name, &format!("{icount} --exits")) })
}

/// The operator makes Stile panic while a vCPU runs: it prints the place, and the run ends with the panic's status.
fn panic_report(programs: &Programs) -> Result<Scenario> {
    let config = with_checksum(1, Other::new("spin", 1, ""), programs)?;
    let (guest, call) = match programs.arch {
        Arch::Aarch64 => ("guest pc", "handler::interrupt::"),
        Arch::X86_64 => ("guest rip", "handle_interrupt"),
    };
    let notes = ["panic: the operator asked for it", "CPU 0, vCPU 0 of ", guest, "backtrace:", call];
    let expect = Expect {
        status: exit::HYPERVISOR,
        output: vec![PASSED.into()],
        notes: notes.map(str::to_owned).into(),
        signal: Some(Signal::QUIT),
        ..Expect::default()
    };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(programs.scenario("life/panic-report"), "") })
}
