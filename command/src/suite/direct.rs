//! The scenarios with direct interrupts: VMs that have CPUs of their own on Arm, beside a neighbour that computes.

use anyhow::Result;
use rustix::process::Signal;

use super::operated::off_on_reset_pause;
use super::operator::Step;
use super::scenario::{Expect, Scenario, passed};
use super::traced::has_snapshot_until_the_end;
use stile::exit;
use stile::programs::{PASSED, Programs};
use stile::session::SAME_MEMORY;

/// Output of the neighbour after each round. The neighbour does not end by itself.
const ROUND: &str = "checksum: round";

/// The suites, and their boot arguments.
const SUITES: [(&str, &str); 5] =
    [("gic", "stile"), ("timer", "stile only=all_cpus"), ("psci", "stile"), ("smp", "stile"), ("hostile", "stile")];

/// Returns all scenarios with direct interrupts.
///
/// # Errors
/// A guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut scenarios =
        vec![masked(programs)?, masked_in_firmware(programs)?, unreachable(programs)?, debian(programs, false)?, debian(programs, true)?];
    scenarios.extend([misplaced(programs)?, switched(programs)?, restored(programs)?, restricted(programs)?]);
    for trusted in [false, true] {
        for (suite, append) in SUITES {
            let vm = vm(programs, suite, &format!("{append}{}", if trusted { " trusted" } else { "" }))?;
            let config = if trusted { trusting(&vm, programs, 1)? } else { config(&vm, programs, 1)? };
            let expect = Expect { output: vec![PASSED.into(), PASSED.into()], ..passed() };
            let name = if trusted { format!("direct/trusted-{suite}") } else { format!("direct/{suite}") };
            scenarios.push(Scenario { config: Some(config), expect, ..Scenario::new(name, "--exits") });
        }
    }
    scenarios.push(two_states(programs)?);
    scenarios.push(virtual_with_two_states(programs)?);
    Ok(scenarios)
}

/// A trusted VM with direct interrupts is saved, destroyed and restored. Its interrupts are direct again: a sample regains its CPUs.
/// A trace records its exits although its guest often ends direct interrupts by an access to a redistributor.
fn restored(programs: &Programs) -> Result<Scenario> {
    let config = trusting(&vm(programs, "snapshot", "holds=1000")?, programs, 1_000_000)?;
    let steps = vec![
        Step::new("snapshot: round 2", "save m/snapshot a.snap", &["m/snapshot is saved, and running"]),
        Step::new("", "destroy m/snapshot --force", &["m/snapshot is destroyed"]),
        Step::new("", "restore m a.snap --trusted", &["m/snapshot runs"]),
        // A sample regains them once the vCPU runs directly.
        Step::new("snapshot: round", "top m/snapshot --once --json --interval 0.5", &["regained"]).fresh().patient(),
        Step::new("snapshot: round", "trace m -o t.json --seconds 2 --format json --json", &[r#""lost":0,"#, r#""unaccounted":0"#])
            .writes("t.json", has_snapshot_until_the_end)
            .otherwise("trace m -o t.json --seconds 30 --format json --json")
            .fresh(),
        Step::new("snapshot: round", "pause m/snapshot", &["m/snapshot is paused"]).fresh(),
        Step::new("", "resume m/snapshot", &[]),
        Step::new("snapshot: round", "stop m/snapshot --force", &[]).fresh(),
        Step::new(ROUND, "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output = vec!["snapshot: round 2".into(), ROUND.into()];
    expect.absent = vec!["FAIL"];
    expect.absent_notes = vec!["SGIs trap"];
    expect.notes.push(SAME_MEMORY.into());
    Ok(Scenario { config: Some(config), steps, expect, ..Scenario::new("direct/restored", "--exits") })
}

/// The snapshot of a trusted VM is restored beside another VM with direct interrupts on its CPUs, and without `--trusted`: its SGIs trap.
/// The operator creates a VM on the last CPU: its interrupts are virtual, and those of the restored VM direct. The neighbour waits: it would
/// take time from the transfers.
fn restricted(programs: &Programs) -> Result<Scenario> {
    let config = trusting(&vm(programs, "snapshot", "holds=1000")?, programs, 1)?;
    let config = config.replace(&programs.path("checksum")?, &programs.path("idle")?);
    let direct = |name: &str, cpu: u32| -> Result<Vec<u8>> {
        let keys = format!("name = \"{name}\"\nkernel = \"{}\"\nmemory = \"64M\"\n", programs.path("idle")?);
        Ok(format!("[[vm]]\n{keys}cpus = \"{cpu}\"\npinned = true\n[vm.techniques]\ninterrupts = \"direct\"\n").into())
    };
    let files = vec![("beside.toml", direct("beside", 1)?), ("last.toml", direct("last", 2)?)];
    let steps = vec![
        Step::new("snapshot: round 2", "save m/snapshot a.snap", &["m/snapshot is saved, and running"]),
        Step::new("", "destroy m/snapshot --force", &["m/snapshot is destroyed"]),
        Step::new("", "create m beside.toml", &["m/beside runs"]),
        Step::new("", "restore m a.snap --trusted", &["m/snapshot runs"]),
        Step::new("snapshot: round", "destroy m/beside --force", &["m/beside is destroyed"]).fresh(),
        Step::new("", "destroy m/snapshot --force", &["m/snapshot is destroyed"]),
        Step::new("", "restore m a.snap", &["m/snapshot runs"]),
        Step::new("", "create m last.toml", &["m/last runs"]),
        Step::new("", "destroy m/last --force", &["m/last is destroyed"]),
        // A sample regains its CPUs once the vCPU runs directly.
        Step::new("snapshot: round", "top m/snapshot --once --json --interval 0.5", &["regained"]).fresh().patient(),
        Step::new("", "stop m/snapshot --force", &[]),
        Step::new("", "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output = vec!["snapshot: round 2".into()];
    expect.notes.extend(
        [
            "snapshot: SGIs trap, although ipi = \"direct\" is asked for: each vCPU must have a CPU of the same affinity, \
             and no other VM with direct interrupts may use it",
            "snapshot: SGIs trap, as the snapshot is not trusted: use --trusted to keep ipi = \"direct\"",
            "last: interrupts are virtual, although interrupts = \"direct\" is asked for: no CPU would be left",
        ]
        .map(Into::into),
    );
    // A VM's 314 KiB come over the line, beside what a VM prints: 15 s on an idle computer, minutes on a busy one.
    Ok(Scenario { config: Some(config), files, steps, timeout: 1200, expect, ..Scenario::new("direct/restricted", "--exits") })
}

/// The GIC has two security states, as on most boards: the VM is refused.
fn two_states(programs: &Programs) -> Result<Scenario> {
    let config = config(&vm(programs, "gic", "stile")?, programs, 1)?;
    let expect = Expect { status: exit::LACKING, notes: vec!["two security states".into(), "can't run here".into()], ..Expect::default() };
    let scenario = Scenario { config: Some(config), expect, ..Scenario::new("direct/two-security-states", "") };
    Ok(with_two_states(scenario))
}

/// The GIC suite with virtual interrupts and two security states.
fn virtual_with_two_states(programs: &Programs) -> Result<Scenario> {
    let config = config(&vm(programs, "gic", "stile")?, programs, 1)?.replace("[vm.techniques]\ninterrupts = \"direct\"\n", "");
    let expect = Expect { output: vec![PASSED.into(), PASSED.into()], ..passed() };
    Ok(with_two_states(Scenario { config: Some(config), expect, ..Scenario::new("guest/gic-two-security-states", "--exits") }))
}

fn with_two_states(scenario: Scenario) -> Scenario {
    scenario.flag("--qemu-arg=-M").flag("--qemu-arg=virt,secure=on")
}

/// Returns the keys of a VM that runs `program`, without its CPUs.
fn vm(programs: &Programs, program: &str, append: &str) -> Result<String> {
    Ok(format!("name = \"{program}\"\nkernel = \"{}\"\nappend = \"{append}\"\nmemory = \"64M\"\n", programs.path(program)?))
}

/// A machine of three CPUs: this VM on CPUs 1 and 2, and on CPU 0 one that computes this many rounds of checksums.
fn config(vm: &str, programs: &Programs, rounds: u32) -> Result<String> {
    Ok(format!(
        "[machine]\ncpus = 3\n\n\
         [[vm]]\n{vm}vcpus = 2\ncpus = \"1-2\"\npinned = true\n[vm.techniques]\ninterrupts = \"direct\"\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nappend = \"rounds={rounds}\"\nvcpus = 1\ncpus = \"0\"\nmemory = \"64M\"\n",
        programs.path("checksum")?,
    ))
}

/// As [`config`]'s machine, but the VM has CPUs 0 and 1, whose affinities are its vCPUs', and sends SGIs without exits.
fn trusting(vm: &str, programs: &Programs, rounds: u32) -> Result<String> {
    let config = config(vm, programs, rounds)?.replace("cpus = \"0\"", "cpus = \"2\"").replace("cpus = \"1-2\"", "cpus = \"0-1\"");
    Ok(config.replace("interrupts = \"direct\"\n", "interrupts = \"direct\"\nipi = \"direct\"\n"))
}

/// The vCPUs of a VM with trusted SGIs are pinned to CPUs with other affinities than theirs: its SGIs trap.
fn misplaced(programs: &Programs) -> Result<Scenario> {
    let config = config(&vm(programs, "smp", "stile only=ipi")?, programs, 1)?;
    let config = config.replace("interrupts = \"direct\"\n", "interrupts = \"direct\"\nipi = \"direct\"\n");
    let mut expect = passed();
    expect.output = vec![PASSED.into(), PASSED.into()];
    expect.notes.push("smp: SGIs trap, although ipi = \"direct\" is asked for: each vCPU must have a CPU of the same affinity".into());
    Ok(Scenario { config: Some(config), expect, ..Scenario::new("direct/trusted-misplaced", "--exits") })
}

/// A VM with trusted SGIs shares one of its CPUs with a VM that becomes ready every few milliseconds. Its vCPU there alternates between
/// direct and virtual interrupts, and SGIs arrive while the other VM runs. No SGI is lost.
fn switched(programs: &Programs) -> Result<Scenario> {
    let ring = format!(
        "\n[[vm]]\nname = \"ring\"\nkernel = \"{}\"\nvcpus = 2\ncpus = \"1-2\"\npinned = true\nmemory = \"64M\"\n",
        programs.path("ring")?
    );
    let config = trusting(&vm(programs, "smp", "stile trusted")?, programs, 1_000_000)? + &ring;
    let steps = vec![
        Step::new(PASSED, "stop m/ring --force", &["m/ring is off"]),
        Step::new("", "stop m/neighbour --force", &["m/neighbour is off"]),
    ];
    let expect = Expect { output: vec!["smp       | PASS ipi_all_to_all".into(), ROUND.into()], ..passed() };
    Ok(Scenario { config: Some(config), steps, expect, ..Scenario::new("direct/trusted-switched", "--exits") })
}

/// A guest masks all interrupts at its CPU interface, and spins: the operator's requests still regain its CPU.
fn masked(programs: &Programs) -> Result<Scenario> {
    const UP: &str = "spin: interrupts";
    let mut steps = off_on_reset_pause(UP);
    steps.extend([
        Step::new("", "resume m/spin", &["m/spin runs"]),
        Step::new("", "top m/spin --once --json --interval 0.1", &[r#""vm":"spin""#, r#""unaccounted":0"#]),
        Step::new("", "stop m/spin --force", &["m/spin is off"]),
        Step::new(ROUND, "stop m/neighbour --force", &[]),
    ]);
    let mut expect = passed();
    expect.output = vec![ROUND.into()];
    expect.notes.extend([SAME_MEMORY.into(), "regained".into()]);
    let config = config(&vm(programs, "spin", "interface")?, programs, 1_000_000)?;
    Ok(Scenario { config: Some(config), steps, expect, ..Scenario::new("direct/masked", "--exits") })
}

/// Code that executes in the memory for firmware, below RAM, masks all interrupts and spins: the operator regains its CPU.
fn masked_in_firmware(programs: &Programs) -> Result<Scenario> {
    let vm = "name = \"spin\"\nkernel = \"firmware.bin\"\nmemory = \"256M\"\n";
    let steps = vec![
        Step::new("spin      | up", "restart m/spin", &["m/spin restarts"]),
        // By then its interrupts are direct.
        Step::new("spin      | up", "top m/spin --once --json --interval 1", &[r#""vm":"spin""#]),
        Step::new(ROUND, "stop m/spin --force", &["m/spin is off"]),
        Step::new("", "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output = vec!["spin      | up".into(), ROUND.into()];
    expect.notes.extend([SAME_MEMORY.into(), "regained".into()]);
    let files = vec![("firmware.bin", spinning_firmware())];
    let config = config(vm, programs, 1_000_000)?;
    Ok(Scenario { config: Some(config), files, steps, expect, ..Scenario::new("direct/masked-firmware", "--exits") })
}

/// Returns a firmware volume whose code prints "up" and spins. Interrupts and the priority mask are as after a reset.
fn spinning_firmware() -> Vec<u8> {
    const CODE: usize = 64;
    let store = |byte: u8| [0x5280_0001 | u32::from(byte) << 5, 0xb900_0001]; // mov w1, #byte; str w1, [x0]
    let mut code = vec![
        0xd280_0022, // mov x2, #1
        0xd518_cce2, // msr ICC_IGRPEN1_EL1, x2
        0xd2a1_2000, // mov x0, #0x900_0000
        0x5280_6021, // mov w1, #0x301
        0xb900_3001, // str w1, [x0, #0x30]: UARTCR
    ];
    code.extend(b"up\n".iter().flat_map(|&byte| store(byte)));
    code.push(0x1400_0000); // b .
    let mut volume = vec![0; 4096];
    volume[..4].copy_from_slice(&(0x1400_0000 | (CODE as u32 / 4)).to_le_bytes()); // b CODE
    volume[32..40].copy_from_slice(&4096_u64.to_le_bytes());
    volume[40..44].copy_from_slice(b"_FVH");
    for (place, word) in volume[CODE..].chunks_exact_mut(4).zip(code) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    volume
}

/// A guest makes one of its CPUs unreachable: it masks all interrupts there and waits, while its other vCPU reads the first one's interrupt
/// state in a loop. The VM that shares the second CPU, and the operator, make progress; the VM itself keeps running.
fn unreachable(programs: &Programs) -> Result<Scenario> {
    let vm = |name: &str, program: &str, more: &str| -> Result<String> {
        Ok(format!("[[vm]]\nname = \"{name}\"\nkernel = \"{}\"\nmemory = \"64M\"\n{more}", programs.path(program)?))
    };
    let config = [
        "[machine]\ncpus = 3\nslice = \"1ms\"\n\n".to_owned(),
        vm(
            "spin",
            "spin",
            "append = \"unreachable\"\nvcpus = 2\ncpus = \"1-2\"\npinned = true\n[vm.techniques]\ninterrupts = \"direct\"\n\n",
        )?,
        vm("victim", "idle", "cpus = \"0\"\n\n")?,
        vm("neighbour", "checksum", "append = \"rounds=1000000\"\ncpus = \"1\"\n")?,
    ];
    let steps = vec![
        Step::new("spin: CPU 1 waits for ever", "destroy m/victim --force", &["m/victim is destroyed"]),
        Step::new(ROUND, "create m next.toml", &["m/next runs"]),
        Step::new(ROUND, "destroy m/next --force", &["m/next is destroyed"]),
        Step::new(ROUND, "create m next.toml", &["m/next runs"]),
        // Longer than the 5 s after which the watch reports the CPU.
        Step::new(ROUND, "top m/neighbour --once --json --interval 8", &[r#""vm":"neighbour""#]),
    ];
    let files = vec![("next.toml", vm("next", "idle", "cpus = \"0\"\n")?.into())];
    let expect = Expect {
        status: exit::LEFT,
        output: vec![ROUND.into()],
        absent: vec!["FAIL"],
        signal: Some(Signal::INT),
        signal_note: "CPU 2 has not answered for 5 s: it runs vCPU 1 of spin, its guest keeps the CPU's interrupts from Stile",
        ..Expect::default()
    };
    Ok(Scenario { config: Some(config.concat()), files, steps, expect, ..Scenario::new("direct/unreachable", "") })
}

/// Debian boots, both CPUs take timer interrupts, and it turns itself off.
fn debian(programs: &Programs, trusted: bool) -> Result<Scenario> {
    let vm = "name = \"debian\"\nkernel = \"debian\"\nmemory = \"512M\"\nexec = \"sleep 1; grep -c processor /proc/cpuinfo; echo up\"\n";
    let mut expect = passed();
    expect.output = vec!["debian    | 2".into(), "debian    | up".into()];
    let (config, name) = match trusted {
        true => (trusting(vm, programs, 20)?, "direct/trusted-debian"),
        false => (config(vm, programs, 20)?, "direct/debian"),
    };
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(name, "--exits") })
}
