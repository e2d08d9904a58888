//! The scenarios in which an operator traces a machine.

use anyhow::Result;
use serde_json::Value;

use super::operator::{Check, Step};
use super::scenario::{Scenario, passed};
use stile::config::Arch;
use stile::programs::Programs;
use stile::session::SAME_MEMORY;
use stile::trace;

/// Returns all scenarios of an architecture.
///
/// # Errors
/// A guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut scenarios = vec![interrupts(programs, EMULATOR)?, storm(programs, EMULATOR)?];
    if programs.arch == Arch::Aarch64 {
        scenarios.push(many_cpus(programs)?);
    }
    Ok(scenarios)
}

/// Those of a PC with AMD-V.
///
/// # Errors
/// A guest is missing.
pub fn with_amd_v(programs: &Programs) -> Result<Vec<Scenario>> {
    Ok(vec![interrupts(programs, AMD_V)?, storm(programs, AMD_V)?])
}

/// A machine: the folder of its scenarios' names, and its CPU model's line in the configuration.
type Machine = (&'static str, &'static str);
/// The emulator's own CPU model.
const EMULATOR: Machine = ("operator", "");
/// A PC with AMD-V.
const AMD_V: Machine = ("amd/operator", "cpu = \"max\"\n");

/// A VM on a CPU beyond the first 64, the last one of its machine.
fn many_cpus(programs: &Programs) -> Result<Scenario> {
    let config = format!(
        "[machine]\ncpus = 72\n\n[[vm]]\nname = \"vm\"\nkernel = \"{}\"\nappend = \"rounds=1000000\"\ncpus = [71]\nmemory = \"64M\"\n",
        programs.path("checksum")?
    );
    let steps = vec![
        Step::new("checksum: round", "trace m -o t.json --seconds 0.5 --format json --json", &[r#""lost":0,"#, r#""unaccounted":0"#])
            .writes("t.json", has_last_cpu)
            .otherwise("trace m -o t.json --seconds 30 --format json --json"),
        Step::new("", "stop m/vm --force", &[]),
    ];
    let mut expect = passed();
    expect.output.clear();
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario("operator/trace-of-72-cpus"), "--exits");
    Ok(Scenario { config: Some(config), steps, expect, ..scenario })
}

/// A VM whose two vCPUs have a CPU each, and a neighbour that shares one of them.
fn config(programs: &Programs, cpu: &str, append: &str) -> Result<String> {
    Ok(format!(
        "[machine]\narch = \"{}\"\n{cpu}cpus = 2\n\n\
         [[vm]]\nname = \"ring\"\nkernel = \"{}\"\nappend = \"{append}\"\nvcpus = 2\ncpus = [0, 1]\npinned = true\nmemory = \"64M\"\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nappend = \"rounds=1000000\"\nvcpus = 1\ncpus = [1]\nmemory = \"64M\"\n",
        programs.arch.name(),
        programs.path("ring")?,
        programs.path("checksum")?,
    ))
}

fn scenario(programs: &Programs, cpu: &str, name: &str, append: &str, mut steps: Vec<Step>) -> Result<Scenario> {
    steps.push(Step::new("", "stop m/ring --force", &[]));
    steps.push(Step::new("", "stop m/neighbour --force", &[]));
    let mut expect = passed();
    expect.output.clear();
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario(name), "--exits");
    Ok(Scenario { config: Some(config(programs, cpu, append)?), steps, expect, ..scenario })
}

/// Every exit that the vectors count is in the trace, and each interrupt between the vCPUs has an arrow to its arrival.
fn interrupts(programs: &Programs, (folder, cpu): Machine) -> Result<Scenario> {
    let all = r#""lost":0,"#;
    let steps = vec![
        Step::new("ring: started", "trace m -o t.json --vm nobody", &["there is no VM called nobody; the VMs are ring, neighbour"])
            .fails(2),
        Step::new("checksum: round", "trace m -o t.json --seconds 2 --format json --json", &[all, r#""unaccounted":0"#])
            .writes("t.json", has_interrupts)
            .otherwise("trace m -o t.json --seconds 30 --format json --json"),
        Step::new("", "trace m -o t.perfetto --seconds 2 --vm ring", &["t.perfetto: ", " exits, "])
            .writes("t.perfetto", has_arrows)
            .otherwise("trace m -o t.perfetto --seconds 30 --vm ring"),
        Step::new("", "report m -o r.html --seconds 0.5 --vm ring", &["r.html: ", " exits"])
            .writes("r.html", has_exits)
            .otherwise("report m -o r.html --seconds 30 --vm ring"),
        Step::new("", "report t.json -o r.html --json", &[r#"{"exits":"#, r#""lost":0,"output":"r.html"}"#]),
        Step::new("", "report t.json -o r.html --seconds 1", &["t.json is a file: --seconds and --vm are for running machines"]).fails(2),
        Step::new("", "report nobody", &["no machine called nobody runs; running: m"]).fails(2),
        // After a trace, as before it.
        Step::new("checksum: round", "top m/ring --once --json --interval 0.1", &[r#""unaccounted":0"#]),
    ];
    scenario(programs, cpu, &format!("{folder}/trace"), "", steps)
}

/// A report of the machine, and a check of the page.
///
/// # Errors
/// A guest is missing.
pub fn report(programs: &Programs, name: &str, check: Check) -> Result<Scenario> {
    let steps = vec![Step::new("ring: started", "report m -o r.html --seconds 2", &["r.html: ", " exits"]).writes("r.html", check)];
    scenario(programs, EMULATOR.1, name, "", steps)
}

/// A vCPU exits faster than the line takes records: all others are counted. Five seconds fill its ring several times over on a host with no time
/// to spare, too; a tenth of a second may fill none.
fn storm(programs: &Programs, (folder, cpu): Machine) -> Result<Scenario> {
    let steps = vec![
        Step::new("ring: storm", "trace m -o t.json --seconds 5 --format json --json", &[r#""lost":0,"#, r#""unaccounted":0"#])
            .writes("t.json", has_drops)
            .otherwise("trace m -o t.json --seconds 30 --format json --json"),
        Step::new("", "trace m -o t.perfetto --seconds 0.1", &["t.perfetto: ", " exits, "]).writes("t.perfetto", has_cpus),
    ];
    scenario(programs, cpu, &format!("{folder}/trace-of-a-storm"), "storm", steps)
}

/// The lines of a trace, the last of which is the summary.
fn lines(bytes: &[u8]) -> Result<(Vec<Value>, Value), String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let mut lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let summary = lines.pop().ok_or("it is empty")?;
    Ok((lines, summary))
}

fn count(lines: &[Value], is: impl Fn(&Value) -> bool) -> usize {
    lines.iter().filter(|line| is(line)).count()
}

fn has_interrupts(bytes: &[u8]) -> Result<(), String> {
    let (lines, summary) = lines(bytes)?;
    let sent = count(&lines, |line| line["event"] == "ipi");
    let injected = count(&lines, |line| line["event"] == "inject");
    let scheduled = count(&lines, |line| line["event"] == "enter" && line["vm"] == "neighbour");
    let arrows = summary["arrows"].as_u64().unwrap_or(0) as usize;
    // The last one may be on its way. A PC's processor delivers those to a vCPU that runs without an exit.
    let all = lines.iter().any(|line| line["reason"] == "INTERRUPT") || summary["exits_dropped"] != 0 || arrows + 1 >= sent;
    // The end of the trace makes each CPU reschedule: a request of the CPU that has the operator's line to the other, the last
    // event but one, which a full ring drops.
    let kicks = count(&lines, |line| line["event"] == "kick" && line["from_cpu"] != line["cpu"]);
    if sent < 3 || arrows == 0 || !all || injected == 0 || scheduled == 0 || kicks == 0 && summary["others_dropped"] == 0 {
        return Err(format!(
            "{sent} interrupts were sent, {injected} injected; {arrows} arrows; {kicks} kicks; the neighbour got a CPU {scheduled} times"
        ));
    }
    let named = count(&lines, |line| line["event"] == "exit" && line["reason"] != "?");
    if named as u64 != summary["exits"] {
        return Err(format!("{named} of {} exits have a name", summary["exits"]));
    }
    Ok(())
}

/// Exits of the VMs of [`together`](super::together), and timers that ended waits.
pub(super) fn has_all_of_three(bytes: &[u8]) -> Result<(), String> {
    let (lines, summary) = lines(bytes)?;
    let exits = ["snapshot", "ring", "checksum"].map(|vm| count(&lines, |line| line["event"] == "exit" && line["vm"] == vm));
    let sent = count(&lines, |line| line["event"] == "ipi" && line["vm"] == "ring");
    let timers = count(&lines, |line| line["event"] == "timer" && line["arrivals"][0]["after_ticks"].is_u64());
    if exits.contains(&0) || sent == 0 || timers == 0 {
        return Err(format!("exits of the VMs: {exits:?}; {sent} interrupts of ring; {timers} timers; {summary}"));
    }
    Ok(())
}

fn has_last_cpu(bytes: &[u8]) -> Result<(), String> {
    let (lines, _) = lines(bytes)?;
    match count(&lines, |line| line["event"] == "exit" && line["cpu"] == 71) {
        0 => Err("CPU 71 has no exits".to_owned()),
        _ => Ok(()),
    }
}

fn has_cpus(bytes: &[u8]) -> Result<(), String> {
    let (tracks, _) = trace::tracks_and_arrows(bytes).map_err(|error| error.to_string())?;
    if !tracks.starts_with(&["CPUs".into(), "CPU 0".into(), "CPU 1".into()]) {
        return Err(format!("the tracks are {tracks:?}"));
    }
    Ok(())
}

/// Exits of the VM `snapshot` in the second half of the trace: its guest writes to the redistributors in each round.
pub(super) fn has_snapshot_until_the_end(bytes: &[u8]) -> Result<(), String> {
    let (lines, summary) = lines(bytes)?;
    let half = summary["nanoseconds"].as_u64().unwrap_or(0) / 2;
    let exits = |late: bool| {
        let is = |line: &Value| line["event"] == "exit" && line["vm"] == "snapshot" && (line["ns"].as_u64() >= Some(half)) == late;
        count(&lines, is)
    };
    match (exits(false), exits(true)) {
        (1.., 10..) => Ok(()),
        (first, second) => Err(format!("exits of snapshot in the halves of the trace: {first}, {second}; {summary}")),
    }
}

/// The tracks of the VM `ring`, and arrows.
pub(super) fn has_arrows(bytes: &[u8]) -> Result<(), String> {
    let (tracks, arrows) = trace::tracks_and_arrows(bytes).map_err(|error| error.to_string())?;
    let expected = ["CPUs", "CPU 0", "CPU 1", "ring", "ring vCPU 0", "ring vCPU 1"];
    if tracks != expected || arrows == 0 {
        return Err(format!("the tracks are {tracks:?}, with {arrows} arrows"));
    }
    Ok(())
}

fn has_exits(bytes: &[u8]) -> Result<(), String> {
    let page = String::from_utf8_lossy(bytes);
    let other = page.contains("neighbour");
    if !page.contains("<title>Exits in m/ring</title>") || !page.contains("<td class=name>") || other {
        return Err(format!("the page has no title or no exits, or those of another VM: {page}"));
    }
    Ok(())
}

fn has_drops(bytes: &[u8]) -> Result<(), String> {
    let (lines, summary) = lines(bytes)?;
    let exits = count(&lines, |line| line["event"] == "exit") as u64;
    let dropped = summary["exits_dropped"].as_u64().unwrap_or(0);
    if dropped == 0 || summary["exits_taken"] != exits + dropped {
        return Err(format!("{exits} exits, {dropped} dropped, of {}", summary["exits_taken"]));
    }
    Ok(())
}
