//! The scenarios in which VMs are saved, restored and moved while the machine runs.

use anyhow::Result;

use super::client::Broken;
use super::disk::Contents;
use super::operator::Step;
use super::scenario::{Scenario, passed};
use stile::config::Arch;
use stile::exit;
use stile::programs::Programs;
use stile::session::SAME_MEMORY;

/// Output of the neighbour after each round.
const ROUND: &str = "checksum: round";
/// Output of the saved VM's guest when it was not running for a while.
const HOLD: &str = "snapshot: hold";

/// Returns all scenarios of an architecture.
///
/// # Errors
/// A guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    if programs.arch == Arch::X86_64 {
        return Ok(vec![save_pc(programs)?, migrate_pc(programs, " instructions of Stile")?, migrate_spread(programs)?]);
    }
    Ok(vec![save(programs)?, beside_resets(programs)?, migrate(programs)?, migrate_spread(programs)?, clock(programs)?])
}

/// Those of PCs with AMD-V.
///
/// # Errors
/// A guest is missing.
pub fn with_amd_v(programs: &Programs) -> Result<Vec<Scenario>> {
    let with = |scenario| on_machine(scenario, "cpu = \"max\"", ["pc/", "pc/amd/"]);
    Ok(vec![with(save_pc(programs)?), with(migrate_pc(programs, " of the machines' time")?)])
}

/// Those of machines with a GICv2.
///
/// # Errors
/// A guest is missing.
pub fn with_gicv2(programs: &Programs) -> Result<Vec<Scenario>> {
    let with = |scenario| on_machine(scenario, "gic = 2", ["operator/", "gicv2/"]);
    Ok(vec![with(save(programs)?), with(migrate(programs)?)])
}

/// A scenario on machines with another line of configuration, and with another beginning of its name.
fn on_machine(scenario: Scenario, line: &str, [from, to]: [&str; 2]) -> Scenario {
    let choose = |text: &str| text.replacen("[machine]\n", &format!("[machine]\n{line}\n"), 1);
    let files = scenario.files.into_iter().map(|(name, text)| (name, choose(&String::from_utf8_lossy(&text)).into_bytes()));
    Scenario {
        name: scenario.name.replacen(from, to, 1),
        config: scenario.config.as_deref().map(choose),
        files: files.collect(),
        ..scenario
    }
}

/// A machine of two CPUs, with a VM of two vCPUs, and a neighbour that computes checksums until it is stopped.
fn config(programs: &Programs, name: &str, holds: u32) -> Result<String> {
    Ok(format!(
        "[machine]\narch = \"{}\"\ncpus = 2\nmemory = \"768M\"\n\n\
         [[vm]]\nname = \"{name}\"\nkernel = \"{}\"\nappend = \"holds={holds}\"\nvcpus = 2\nmemory = \"64M\"\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nappend = \"rounds=1000000\"\nvcpus = 1\nmemory = \"64M\"\n",
        programs.arch.name(),
        programs.path("snapshot")?,
        programs.path("checksum")?,
    ))
}

/// A VM that takes timer interrupts on two vCPUs is saved, destroyed, restored and paused. Its memory, registers and clocks are as they were.
fn save(programs: &Programs) -> Result<Scenario> {
    let steps = vec![
        Step::new("snapshot: round 2", "save m/snapshot a.snap", &["m/snapshot is saved, and running"]),
        Step::new(HOLD, "restore m a.snap", &["m has a VM called snapshot already"]).fails(2),
        Step::new("", "save m/nobody b.snap", &["there is no VM called nobody"]).fails(2),
        Step::new("", "save m/snapshot nowhere/b.snap", &["nowhere"]).fails(1),
        Step::new("", "save m/snapshot stile/m.sock", &["m.sock is not a file"]).fails(2),
        Step::new("", "destroy m/snapshot --force", &["m/snapshot is destroyed"]),
        Step::new("", "restore m a.txt", &["it is not a snapshot of a VM"]).fails(2),
        Step::new("", "restore m b.snap", &["b.snap can't be read"]).fails(2),
        Step::new("", "restore o a.snap", &["o"]).fails(2),
        Step::new(ROUND, "restore m a.snap --json --clock stopped", &[r#"{"machine":"m","vm":"snapshot","state":"running"}"#]),
        Step::new(HOLD, "pause m/snapshot", &["m/snapshot is paused"]),
        Step::new(ROUND, "save m/snapshot a.snap --json", &[r#"{"machine":"m","vm":"snapshot","state":"paused"}"#]),
        Step::new("", "resume m/snapshot", &["m/snapshot runs"]),
        Step::new("snapshot: hold 2", "destroy m/snapshot --force", &[]),
        Step::broken("", Broken::Restore("a.snap", "snapshot")),
        // Its clocks have advanced: only the pause is a hold.
        Step::new("", "restore m a.snap", &["m/snapshot runs"]),
        Step::new("snapshot: round", "pause m/snapshot", &[]).fresh(),
        Step::new("", "resume m/snapshot", &[]),
        Step::broken("snapshot: hold 2", Broken::Hold("snapshot")),
        // With its files from the snapshot.
        Step::new("snapshot: round", "restart m/snapshot", &["m/snapshot restarts"]),
        Step::new("snapshot: round 1", "destroy m/snapshot --force", &[]).fresh(),
        Step::new(ROUND, "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output =
        ["snapshot: round 2", HOLD, ROUND, HOLD, "snapshot: hold 2", "snapshot: hold 2", "snapshot: round 1"].map(String::from).to_vec();
    expect.absent = vec!["FAIL", "snapshot: hold 4"];
    expect.notes.push(SAME_MEMORY.into());
    let files = vec![("a.txt", "a letter to somebody".into())];
    let scenario = Scenario::new(programs.scenario("operator/save"), "--exits");
    Ok(Scenario { config: Some(config(programs, "snapshot", 1000)?), files, steps, expect, ..scenario })
}

/// Beside a VM on its CPU that resets itself without end a VM is saved, restored, saved again and destroyed; so is that one, which is paused, too.
fn beside_resets(programs: &Programs) -> Result<Scenario> {
    const AGAIN: &str = "resets: once more";
    let steps = vec![
        Step::new("snapshot: round 2", "save m/snapshot a.snap", &["m/snapshot is saved, and running"]),
        Step::new(AGAIN, "destroy m/snapshot --force", &["m/snapshot is destroyed"]).fresh(),
        Step::new(AGAIN, "restore m a.snap", &["m/snapshot runs"]).fresh(),
        Step::new("snapshot: round", "save m/snapshot a.snap", &["m/snapshot is saved, and running"]).fresh(),
        Step::new(AGAIN, "pause m/resets", &["m/resets is paused"]).fresh(),
        Step::new("", "resume m/resets", &["m/resets runs"]),
        Step::new("", "save m/resets b.snap", &["m/resets is saved, and running"]),
        Step::new("", "save m/resets b.snap", &["m/resets is saved, and running"]),
        Step::new("", "save m/resets b.snap", &["m/resets is saved, and running"]),
        Step::new(AGAIN, "save m/resets b.snap", &["m/resets is saved, and running"]).fresh(),
        Step::new(AGAIN, "destroy m/resets --force", &["m/resets is destroyed"]).fresh(),
        Step::new("snapshot: round", "restore m b.snap", &["m/resets runs"]).fresh(),
        Step::new(AGAIN, "save m/resets b.snap", &["m/resets is saved, and running"]).fresh(),
        Step::new("snapshot: round", "destroy m/snapshot --force", &["m/snapshot is destroyed"]).fresh(),
        Step::new(AGAIN, "stop m/resets --force", &[]).fresh(),
    ];
    let mut expect = passed();
    expect.output = ["snapshot: round 2", HOLD, AGAIN].map(String::from).to_vec();
    expect.absent = vec!["FAIL"];
    expect.notes.push(SAME_MEMORY.into());
    let config = config(programs, "snapshot", 1000)?.replacen("cpus = 2", "cpus = 1", 1);
    let (snapshot, _) = config.split_once("[[vm]]\nname = \"neighbour\"").unwrap_or_default();
    let resets = programs.path("resets")?;
    let config = format!("{snapshot}[[vm]]\nname = \"resets\"\nkernel = \"{resets}\"\nmemory = \"16M\"\non_reset = \"restart\"\n");
    Ok(Scenario { config: Some(config), steps, expect, ..Scenario::new(programs.scenario("operator/save-beside-resets"), "--exits") })
}

/// Saves, destroys and restores a VM on a PC whose local APICs are in x2APIC mode.
fn save_pc(programs: &Programs) -> Result<Scenario> {
    let steps = vec![
        Step::new("snapshot: round 2", "save m/snapshot a.snap", &["m/snapshot is saved, and running"]),
        Step::new(HOLD, "destroy m/snapshot --force", &["m/snapshot is destroyed"]),
        Step::broken("", Broken::Restore("a.snap", "snapshot")),
        Step::new(ROUND, "restore m a.snap --clock stopped", &["m/snapshot runs"]),
        Step::new("snapshot: round", "pause m/snapshot", &["m/snapshot is paused"]).fresh(),
        Step::new("", "save m/snapshot a.snap --json", &[r#"{"machine":"m","vm":"snapshot","state":"paused"}"#]),
        Step::new("", "destroy m/snapshot --force", &[]),
        // With its files from the snapshot.
        Step::new("", "restore m a.snap", &["m/snapshot runs"]),
        Step::broken("snapshot: round", Broken::Hold("snapshot")).fresh(),
        Step::new("snapshot: round", "restart m/snapshot", &["m/snapshot restarts"]),
        Step::new("snapshot: round 1", "stop m/snapshot --force", &[]).fresh(),
        Step::new(ROUND, "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output = ["snapshot: round 2", HOLD, ROUND, "snapshot: round", "snapshot: round 1", ROUND].map(String::from).to_vec();
    expect.absent = vec!["FAIL"];
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario("operator/save"), "--exits");
    let config = config(programs, "snapshot", 1000)?.replace("holds=1000", "holds=1000 x2apic");
    Ok(Scenario { config: Some(config), steps, expect, ..scenario })
}

/// The clock of a Debian that was saved, and restored some seconds later, is right: the machine's real-time clock shows the same time. Its
/// disk in memory has what was written before. The neighbour keeps the machine up, and takes no time from Debian.
fn clock(programs: &Programs) -> Result<Scenario> {
    // Each clock is right to two seconds; any time may pass between their readings.
    let exec = "mount /dev/pmem0 /mnt; echo changed > /mnt/hello; umount /mnt; \
        while mount -o ro /dev/pmem0 /mnt; do grep -q changed /mnt/hello || echo WRONG disk; umount /mnt; \
        before=$(date +%s); now=$(cat /sys/class/rtc/rtc0/since_epoch); after=$(date +%s); \
        if [ $now -ge $((before - 2)) ] && [ $now -le $((after + 2)) ]; then echo clocks agree; else echo WRONG $before $now $after; fi; \
        sleep 1; done";
    let config = format!(
        "[machine]\ncpus = 2\nmemory = \"1G\"\n\n\
         [[vm]]\nname = \"debian\"\nkernel = \"debian\"\nvcpus = 1\nmemory = \"256M\"\nexec = \"{exec}\"\n\
         [[vm.disk]]\nfile = \"{{disk}}\"\nin_memory = true\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nvcpus = 1\nmemory = \"64M\"\n",
        programs.path("idle")?,
    );
    let steps = vec![
        Step::new("clocks agree", "save m/debian a.snap", &["m/debian is saved, and running"]),
        Step::new("", "destroy m/debian --force", &["m/debian is destroyed"]),
        Step::new("", "top m/neighbour --once --json --interval 5", &[r#""vm":"neighbour""#]),
        Step::new("", "restore m a.snap", &["m/debian runs"]),
        Step::new("clocks agree", "stop m/debian --force", &[]).fresh(),
        Step::new("", "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output = vec!["clocks agree".into()];
    // The command does not end.
    expect.status = exit::GUEST;
    expect.absent = vec!["WRONG"];
    let scenario = Scenario::new("operator/clock-after-restore", "--exits");
    Ok(Scenario { config: Some(config), disk: Some(Contents::Ext4), steps, expect, ..scenario })
}

/// As [`migrate`], between two PCs, and not back. `downtime`: the end of what is said of it.
fn migrate_pc(programs: &Programs, downtime: &'static str) -> Result<Scenario> {
    let other = "[machine]\narch = \"x86_64\"\ncpus = 1\nmemory = \"256M\"\n\n";
    let config = config(programs, "snapshot", 1000)?.replace("768M", "256M").replace("64M", "24M");
    let keeper = config.split_once("[[vm]]\nname = \"neighbour\"").map_or("", |(_, vm)| vm);
    let other = format!("{other}[[vm]]\nname = \"keeper\"{keeper}");
    let steps = vec![
        Step::new("snapshot: round 2", "run --detach --name n --timeout 600 other.toml", &["n"]),
        Step::new("snapshot: round", "migrate m/snapshot n", &["n/snapshot runs; ", " while it was paused", downtime]),
        Step::new(ROUND, "pause n/snapshot", &["n/snapshot is paused"]),
        Step::new("", "resume n/snapshot", &[]),
        Step::new("", "stop n/snapshot --force", &[]),
        Step::new("", "stop n/keeper --force", &[]),
        Step::new(ROUND, "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output = ["snapshot: round 2", ROUND].map(String::from).to_vec();
    expect.absent = vec!["FAIL"];
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario("operator/migrate"), "--exits");
    Ok(Scenario { config: Some(config), files: vec![("other.toml", other.into())], steps, expect, ..scenario })
}

/// A VM that writes one page of each of many blocks all the time moves to another machine: only such pages are left for the pause.
/// On Arm it moves back, after a move that was abandoned: its memory was divided by pages before.
fn migrate_spread(programs: &Programs) -> Result<Scenario> {
    let is_pc = programs.arch == Arch::X86_64;
    // On a PC less memory is above the pattern's first page.
    let (memory, spread) = if is_pc { ("48M", 14) } else { ("64M", 24) };
    let config = config(programs, "snapshot", 1000)?.replace("768M", "256M").replace("64M", memory);
    let other = config.replace("\"snapshot\"", "\"keeper\"").replace("name = \"neighbour\"", "name = \"other\"");
    let config = config.replace("holds=1000", &format!("holds=1000 spread={spread}"));
    // Beside the pattern: stacks, variables, and what a longer round on a slow computer brings.
    let most = 2 * spread + 16;
    let migrate = |trigger, words| Step::new(trigger, words, &[r#""state":"running""#]).at_most("paused_pages_read", most);
    let mut steps = vec![
        Step::new("snapshot: round 2", "run --detach --name n --timeout 600 other.toml", &["n"]),
        Step::broken("snapshot: round", Broken::Migrate("snapshot", "n")).fresh(),
        migrate("snapshot: round", "migrate m/snapshot n --json").fresh(),
    ];
    if !is_pc {
        steps.push(migrate(ROUND, "migrate n/snapshot m --json").fresh());
        steps.push(Step::new("snapshot: round", "destroy m/snapshot --force", &[]).fresh());
    } else {
        steps.push(Step::new(ROUND, "destroy n/snapshot --force", &[]));
    }
    steps.push(Step::new("", "stop n/keeper --force", &[]));
    steps.push(Step::new("", "stop n/other --force", &[]));
    steps.push(Step::new(ROUND, "stop m/neighbour --force", &[]));
    let mut expect = passed();
    expect.output = ["snapshot: round 2", ROUND].map(String::from).to_vec();
    expect.absent = vec!["FAIL"];
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario("operator/migrate-spread"), "--exits");
    Ok(Scenario { config: Some(config), files: vec![("other.toml", other.into())], steps, expect, ..scenario })
}

/// A VM moves to another machine and back, and is paused. The first move may not show in its clocks: the other machine's physical counter began
/// later. Each pause, also that of a move, is a hold: their number depends on the machine's speed.
fn migrate(programs: &Programs) -> Result<Scenario> {
    let files = vec![("other.toml", config(programs, "keeper", 1000)?.into())];
    let steps = vec![
        Step::new("snapshot: round 2", "migrate m/snapshot n", &["n"]).fails(2),
        Step::new("", "run --detach --name n --timeout 600 other.toml", &["n"]),
        Step::new("snapshot: round", "migrate m/snapshot m", &["snapshot is in m already"]).fails(1),
        Step::new("snapshot: round", "migrate m/neighbour n", &["n has a VM called neighbour already"]).fails(2),
        Step::broken("snapshot: round", Broken::Migrate("snapshot", "n")),
        Step::new("snapshot: round", "migrate m/snapshot n", &["n/snapshot runs; ", " while it was paused"]),
        Step::new(ROUND, "ps --json", &[r#"{"name":"snapshot","state":"running"}"#]),
        Step::new(ROUND, "start m/snapshot", &["there is no VM called snapshot"]).fails(2),
        Step::new(
            ROUND,
            "migrate n/snapshot m --json",
            &[r#"{"machine":"m","vm":"snapshot","state":"running","rounds":"#, r#""paused_instructions":null"#],
        ),
        Step::new(HOLD, "stop n/keeper --force", &[]),
        Step::new("", "stop n/neighbour --force", &[]),
        Step::new("snapshot: round", "pause m/snapshot", &[]),
        Step::new("", "resume m/snapshot", &[]),
        Step::new(HOLD, "destroy m/snapshot --force", &[]),
        Step::new(ROUND, "stop m/neighbour --force", &[]),
    ];
    let mut expect = passed();
    expect.output = ["snapshot: round 2", ROUND, HOLD].map(String::from).to_vec();
    expect.absent = vec!["FAIL"];
    expect.notes.push(SAME_MEMORY.into());
    let scenario = Scenario::new(programs.scenario("operator/migrate"), "--exits");
    Ok(Scenario { config: Some(config(programs, "snapshot", 1000)?), files, steps, expect, ..scenario })
}
