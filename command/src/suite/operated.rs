//! The scenarios in which an operator acts on VMs that run, beside a neighbour that computes.

use anyhow::Result;

use super::client::Broken;
use super::operator::Step;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use stile::config::Arch;
use stile::programs::{PASSED, Programs};
use stile::session::SAME_MEMORY;

/// The neighbour does not end itself.
const ROUND: &str = "checksum: round";

/// Names of the tests by [`uploads`], and their numbers of uploads, of 13 KiB each: a few; and enough for Bochs to take an interrupt
/// between STI and HLT.
const UPLOADS: [(&str, usize); 2] = [("operator/uploads", 6), ("operator/many-uploads", 24)];

/// Number of VMs of [`come_and_go`], one after the other.
const VISITS: usize = 1_000;

/// All of an architecture.
///
/// # Errors
/// A guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut all = vec![pause(programs)?, cycles(programs)?, destroy(programs)?, create(programs)?, create_many_vcpus(programs)?];
    match programs.arch {
        Arch::Aarch64 => all.push(idle(programs)?),
        Arch::X86_64 => {
            for (name, number) in UPLOADS {
                all.push(uploads(programs, name, number)?);
            }
        }
    }
    Ok(all)
}

/// A machine of two CPUs, with a VM, and a neighbour that computes checksums until it is stopped.
fn config(programs: &Programs, program: &str, vcpus: u32) -> Result<String> {
    Ok(format!(
        "[machine]\narch = \"{}\"\ncpus = 2\n\n\
         [[vm]]\nname = \"{program}\"\nkernel = \"{}\"\nvcpus = {vcpus}\nmemory = \"64M\"\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nappend = \"rounds=1000000\"\nvcpus = 1\nmemory = \"64M\"\n",
        programs.arch.name(),
        programs.path(program)?,
        programs.path("checksum")?,
    ))
}

/// A VM is paused: its neighbour's checksums continue, and it finds that its time stood still. On a PC it then finds its power button pressed.
fn pause(programs: &Programs) -> Result<Scenario> {
    let mut steps = vec![
        Step::new("waiting for pause 1", "resume m/pause", &["pause is running"]).fails(1),
        Step::new("", "pause m/pause", &["m/pause is paused"]),
        Step::new(ROUND, "pause m/pause", &["can't be paused: pause is paused"]).fails(1),
        Step::new(ROUND, "stop m/pause --grace x", &["--grace"]).fails(2),
        Step::new(ROUND, "ps --json", &[r#"{"name":"pause","state":"paused"}"#, r#"{"name":"neighbour","state":"running"}"#]),
        Step::new(ROUND, "resume m/pause --json", &[r#"{"machine":"m","vm":"pause","state":"running"}"#]),
        Step::new("waiting for pause 2", "pause m/pause", &[]),
        Step::new(ROUND, "start m/pause", &["can't be started: pause is paused"]).fails(1),
        Step::new(ROUND, "pause m/nobody", &["there is no VM called nobody; the VMs are pause, neighbour"]).fails(2),
        Step::new(ROUND, "resume m/pause", &["m/pause runs"]),
    ];
    let mut output = vec!["pause: pause 1:".into(), "pause: pause 2:".into(), "PASS pause".into()];
    if programs.arch == Arch::X86_64 {
        steps.push(Step::new("waiting for the power button", "stop m/pause --json --grace 100", &[r#""state":"off","forced":false"#]));
        output.insert(2, "waiting for the power button".into());
    }
    steps.extend([Step::new(PASSED, "ps", &[]), Step::new(ROUND, "stop m/neighbour --force", &[])]);
    let mut expect = passed();
    expect.output = output;
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario("operator/pause"), "--exits");
    Ok(Scenario { config: Some(config(programs, "pause", 1)?), steps, expect, ..scenario })
}

/// The only VM waits with timers that expired, so that no timer of the machine will fire, while virtual time counts instructions. The
/// operator is heard nevertheless.
fn idle(programs: &Programs) -> Result<Scenario> {
    let kernel = programs.path("idle")?;
    let config = format!("[machine]\ncpus = 1\n\n[[vm]]\nname = \"idle\"\nkernel = \"{kernel}\"\nappend = \"timers\"\nmemory = \"64M\"\n");
    let steps = vec![
        Step::new("idle: waiting", "ps", &["running"]),
        Step::new("", "pause m/idle", &["m/idle is paused"]),
        Step::new("", "resume m/idle", &["m/idle runs"]),
        Step::new("", "stop m/idle --force", &["m/idle is off"]),
    ];
    let expect = Expect { output: vec!["idle: waiting".into()], ..Expect::default() };
    Ok(Scenario { config: Some(config), steps, expect, ..Scenario::new("operator/idle", "--icount --exits") })
}

/// Turns the VM `spin`, which writes `up` when it starts, off and on three times, resets and pauses it.
pub(super) fn off_on_reset_pause(up: &'static str) -> Vec<Step> {
    let off = r#"{"machine":"m","vm":"spin","state":"off","forced":true}"#;
    let mut steps = Vec::new();
    for _ in 0..3 {
        steps.extend([Step::new(up, "stop m/spin --force --json", &[off]), Step::new("", "start m/spin", &["m/spin runs"])]);
    }
    steps.extend([Step::new(up, "restart m/spin", &["m/spin restarts"]), Step::new(up, "pause m/spin", &["m/spin is paused"])]);
    steps
}

/// A VM is turned off and on, reset, and turned off while it is paused.
fn cycles(programs: &Programs) -> Result<Scenario> {
    const UP: &str = "spin: ";
    let mut steps = off_on_reset_pause(UP);
    steps.extend([
        Step::new("", "restart m/spin", &[]),
        Step::new(UP, "pause m/spin", &[]),
        // No exit follows.
        Step::new("", "top m/spin --once --json --interval 0.1", &[r#""vm":"spin","vcpu":null"#, r#""unaccounted":0"#]).agrees(),
        Step::new("", "metrics m/spin --once", &[r#"stile_vm_state{vm="spin",state="paused"} 1"#, "# EOF"]).agrees(),
        // A VM that exits continually.
        Step::new(
            "",
            "top m/neighbour --once --json --vcpus --interval 0.1",
            &[r#""vcpu":0"#, r#""unaccounted":0,"#, r#""rows":[{"reason":"#],
        ),
        Step::new("", "top m --once", &["UNACCOUNTED", "neighbour"]),
        Step::new("", "top m/nobody --once", &["there is no VM called nobody; the VMs are spin, neighbour"]).fails(2),
        // It has no power button, or does not listen to it; nor does it while it is paused.
        Step::new("", "stop m/spin", &["turning the power off", "m/spin is off"]),
        Step::new("", "stop m/spin", &["is off already"]).fails(1),
        Step::new("", "pause m/spin", &["can't be paused: spin is off"]).fails(1),
        Step::new(ROUND, "stop m/neighbour --force", &[]),
    ]);
    let mut expect = passed();
    expect.output = vec![ROUND.into()];
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario("operator/stop-and-start"), "--exits");
    Ok(Scenario { config: Some(config(programs, "spin", 2)?), steps, expect, ..scenario })
}

/// A VM is destroyed beside its neighbour.
fn destroy(programs: &Programs) -> Result<Scenario> {
    let steps = vec![
        Step::new("spin: ", "destroy m/spin", &["m/spin is running: stop it before, or use --force"]).fails(1),
        Step::new("", "destroy m/nobody", &["there is no VM called nobody; the VMs are spin, neighbour"]).fails(2),
        Step::new("", "pause m/spin", &[]),
        // Its account is in those at the end.
        Step::new("", "metrics m/spin --once", &[]).agrees(),
        Step::new("", "destroy m/spin --force --json", &[r#"{"machine":"m","vm":"spin","state":"destroyed"}"#]),
        Step::new(ROUND, "ps --json", &[r#""vms":[{"name":"neighbour","state":"running"}]"#]),
        Step::new("", "start m/spin", &["there is no VM called spin; the VMs are neighbour"]).fails(2),
        Step::new("", "top m --once", &["UNACCOUNTED", "neighbour"]),
        Step::new(ROUND, "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output = vec![ROUND.into()];
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario("operator/destroy"), "--exits");
    Ok(Scenario { config: Some(config(programs, "spin", 2)?), steps, expect, ..scenario })
}

/// VMs are created and destroyed beside one that computes, which is alone in between. The image has their kernels: the serial line of an emulated PC
/// is slow.
fn create(programs: &Programs) -> Result<Scenario> {
    let vm = |name: &str, program: &str, more: &str| -> Result<String> {
        let memory = if more.contains("memory") { "" } else { "memory = \"64M\"\n" };
        Ok(format!("[[vm]]\nname = \"{name}\"\nkernel = \"{}\"\n{memory}{more}", programs.path(program)?))
    };
    let files = vec![
        ("spin.toml", vm("spin", "spin", "vcpus = 2\n")?.into()),
        ("twin.toml", vm("twin", "checksum", "append = \"rounds=1000000\"\nweight = 50\n[vm.budget]\nexits_per_second = 1\n")?.into()),
        ("large.toml", vm("large", "spin", "memory = \"60G\"\n")?.into()),
        ("nowhere.toml", vm("nowhere", "spin", "cpus = \"40\"\n")?.into()),
        ("two.toml", (vm("a", "spin", "")? + &vm("b", "spin", "")?).into()),
    ];
    let mut steps = vec![
        Step::new("spin: ", "destroy m/spin --force", &["m/spin is destroyed"]),
        Step::new(ROUND, "create m spin.toml --json", &[r#"{"machine":"m","vm":"spin","state":"running","sent":"#]),
        Step::new("", "create m spin.toml", &["m has a VM called spin already"]).fails(2),
        Step::new("", "create m two.toml", &["expected one [[vm]], found 2"]).fails(2),
        Step::new("", "create m large.toml", &["m/large can't be created: it needs 61440 MiB of memory, and ", "MiB are free"]).fails(1),
        // Its client leaves: the next VM has its number and its memory, and does not wait for the rest of its files.
        Step::broken("", Broken::Create("spoilt")),
        Step::new("", "create m nowhere.toml", &["a VM may use only CPUs that this board does not have"]).fails(1),
        Step::new(ROUND, "create m twin.toml", &["m/twin runs"]),
        Step::new("", "ps --json", &[r#"{"name":"spin","state":"running"},{"name":"twin","state":"running"}]"#]),
        // The machine's process takes two samples meanwhile, while the VM's timer causes many exits. The other VMs would
        // take CPU time from it.
        Step::new("", "pause m/spin", &["m/spin is paused"]),
        Step::new("", "pause m/neighbour", &["m/neighbour is paused"]),
        Step::new("", "top m/twin --once --interval 20", &["twin exceeds its budget of 1 exits/s: ", " grew from 0 exits/s to "])
            .otherwise("top m/twin --once --interval 90"),
        Step::new(
            "",
            "metrics m --once",
            &[r#"stile_vm_over_budget{vm="twin",budget="exits_per_second"} 1"#, r#"exits_total{vm="neighbour""#],
        ),
        Step::new("", "resume m/neighbour", &["m/neighbour runs"]),
        Step::new("", "resume m/spin", &["m/spin runs"]),
        Step::new("", "top m/twin --once --json --interval 0.1", &[r#""vm":"twin","vcpu":null"#, r#""unaccounted":0"#]),
        Step::new("", "pause m/twin", &["m/twin is paused"]),
        Step::new("", "resume m/twin", &[]),
        Step::new("", "restart m/twin", &[]),
        Step::new("", "destroy m/twin --force", &["m/twin is destroyed"]),
    ];
    for _ in 0..4 {
        steps.push(Step::new(ROUND, "destroy m/spin --force", &["m/spin is destroyed"]));
        steps.push(Step::new("", "create m spin.toml", &["m/spin runs"]));
    }
    steps.push(Step::new(ROUND, "stop m/spin --force", &[]));
    steps.push(Step::new("", "destroy m/spin", &["m/spin is destroyed"]));
    steps.push(Step::new(ROUND, "stop m/neighbour --force", &[]));
    let mut expect = passed();
    expect.output = vec![ROUND.into()];
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario("operator/create"), "--exits");
    let config = config(programs, "spin", 2)?.replacen("cpus = 2\n", "cpus = 2\nmemory = \"768M\"\n", 1);
    Ok(Scenario { config: Some(config), files, steps, expect, ..scenario })
}

/// VMs are created and destroyed [`VISITS`] times beside one that computes. Afterwards as much memory is free as before, and in as large parts:
/// a VM that needs most of it can be created again.
pub(super) fn come_and_go(name: &str, programs: &Programs) -> Result<Scenario> {
    let vm = |name: &str, program: &str, memory: u32, append: &str| -> Result<String> {
        let kernel = programs.path(program)?;
        Ok(format!("[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nappend = \"{append}\"\nmemory = \"{memory}M\"\n"))
    };
    // The image has the kernels of both.
    let first = vm("neighbour", "checksum", 64, "rounds=1000000000")? + &vm("visitor", "spin", 16, "")?;
    let config = format!("[machine]\narch = \"{}\"\ncpus = 2\nmemory = \"512M\"\n\n{first}", programs.arch.name());
    let files = vec![("visitor.toml", vm("visitor", "spin", 16, "")?.into()), ("large.toml", vm("large", "spin", 288, "")?.into())];
    let large = [Step::new(ROUND, "create m large.toml", &["m/large runs"]), Step::new("", "destroy m/large --force", &[])];
    let mut steps = vec![Step::new("spin: ", "destroy m/visitor --force", &["m/visitor is destroyed"])];
    steps.extend(large.clone());
    for _ in 0..VISITS {
        steps.push(Step::new("", "create m visitor.toml", &["m/visitor runs"]));
        // It has started.
        steps.push(Step::new("spin: ", "destroy m/visitor --force", &["m/visitor is destroyed"]));
    }
    steps.extend(large);
    steps.push(Step::new(ROUND, "stop m/neighbour --force", &[]));
    let expect = Expect { output: vec![ROUND.into()], notes: vec![NO_DIFFERENCE.into(), SAME_MEMORY.into()], ..passed() };
    Ok(Scenario { config: Some(config), files, steps, timeout: 20_000, expect, ..Scenario::new(name, "--exits") })
}

/// A VM of many vCPUs is created, saved, destroyed and restored in pieces that are short exits of its neighbour.
fn create_many_vcpus(programs: &Programs) -> Result<Scenario> {
    let (vcpus, icount, memory) = match programs.arch {
        Arch::Aarch64 => (256, "--icount", "512M"),
        Arch::X86_64 => (16, "", "128M"),
    };
    let (arch, kernel) = (programs.arch.name(), programs.path("checksum")?);
    let vm = |name: &str, vcpus: u32| {
        format!("[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nappend = \"rounds=1000000\"\nvcpus = {vcpus}\nmemory = \"24M\"\n")
    };
    let config = format!("[machine]\narch = \"{arch}\"\ncpus = 1\nmemory = \"{memory}\"\n\n{}", vm("neighbour", 1));
    let steps = vec![
        Step::new(ROUND, "create m many.toml", &["m/many runs"]),
        // It resets its vCPUs first.
        Step::new("", "top m/many --once --interval 2", &[]),
        Step::new("", "save m/many a.snap", &["m/many is saved"]).patient(),
        Step::new("", "destroy m/many --force", &["m/many is destroyed"]),
        Step::new("", "restore m a.snap", &["m/many runs"]),
        Step::new("", "destroy m/many --force", &["m/many is destroyed"]),
        Step::new(ROUND, "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output = vec![ROUND.into()];
    expect.notes.push(SAME_MEMORY.into());
    expect.bounded_exits = Some(programs.arch);
    let files = vec![("many.toml", vm("many", vcpus).into())];
    let scenario = Scenario::new(programs.scenario("operator/many-vcpus"), &format!("{icount} --exits"));
    Ok(Scenario { config: Some(config), files, steps, expect, ..scenario })
}

/// CPU 0 idles and receives uploads, with an interrupt for each byte, while a VM runs on CPU 1. Each interrupt ends a wait, also one that is taken
/// between STI and HLT.
fn uploads(programs: &Programs, name: &str, number: usize) -> Result<Scenario> {
    let files =
        vec![("extra.toml", format!("[[vm]]\nname = \"extra\"\nkernel = \"{}\"\nmemory = \"16M\"\n", programs.path("spin")?).into())];
    let mut steps = vec![Step::new(ROUND, "pause m/spin", &["m/spin is paused"])];
    for _ in 0..number {
        steps.push(Step::new("", "create m extra.toml", &["m/extra runs"]));
        steps.push(Step::new("", "destroy m/extra --force", &["m/extra is destroyed"]));
    }
    steps.push(Step::new(ROUND, "destroy m/spin --force", &[]));
    steps.push(Step::new(ROUND, "stop m/neighbour --force", &[]));
    let mut expect = passed();
    expect.output = vec![ROUND.into()];
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario(name), "--exits");
    // The serial line interrupts CPU 0.
    let config = config(programs, "spin", 2)?.replacen("cpus = 2\n", "cpus = 2\nmemory = \"768M\"\n", 1) + "cpus = \"1\"\n";
    Ok(Scenario { config: Some(config), files, steps, timeout: 900, expect, ..scenario })
}
