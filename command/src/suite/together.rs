//! Three VMs under load, watched, traced, paused, saved and restored, and one destroyed and created again, while the others
//! continue: all of it in one machine.

use anyhow::Result;

use super::operator::Step;
use super::scenario::{Scenario, passed};
use super::traced;
use stile::programs::Programs;
use stile::session::SAME_MEMORY;

/// Output of the neighbour after each round.
const ROUND: &str = "checksum: round";

/// A machine of two CPUs and five vCPUs: `snapshot` takes timer interrupts and is saved, `ring` sends interrupts and is created again,
/// `neighbour` computes.
///
/// # Errors
/// A guest is missing.
pub fn scenario(name: &str, programs: &Programs) -> Result<Scenario> {
    let vm = |program: &str, vcpus: u32, append: &str| -> Result<String> {
        let kernel = programs.path(program)?;
        Ok(format!("[[vm]]\nname = \"{program}\"\nkernel = \"{kernel}\"\nappend = \"{append}\"\nvcpus = {vcpus}\nmemory = \"24M\"\n"))
    };
    let ring = vm("ring", 2, "")?;
    let vms = [vm("snapshot", 2, "holds=1000")?, ring.clone(), vm("checksum", 1, "rounds=1000000000")?];
    let config = format!("[machine]\narch = \"{}\"\ncpus = 2\nmemory = \"384M\"\n\n{}", programs.arch.name(), vms.join("\n"));
    let exact = r#""unaccounted":0"#;
    let steps = vec![
        Step::new("ring: started", "ps --json", &[r#"{"name":"snapshot","state":"running"},{"name":"ring","state":"running"}"#]),
        Step::new("snapshot: round 2", "top m --once --json --vcpus --interval 1", &[exact, r#""vm":"ring","vcpu":1"#]),
        Step::new(ROUND, "trace m -o a.json --seconds 5 --format json --json", &[r#""lost":0,"#, exact])
            .writes("a.json", traced::has_all_of_three)
            .otherwise("trace m -o a.json --seconds 60 --format json --json"),
        Step::new("", "trace m/ring -o a.perfetto --seconds 2", &[" s of the machine's time"])
            .writes("a.perfetto", traced::has_arrows)
            .otherwise("trace m/ring -o a.perfetto --seconds 60"),
        Step::new("", "report m -o a.html --seconds 2 --json", &[r#""lost":0"#]),
        // Each VM is stopped in turn, beside two that run.
        Step::new("", "pause m/ring", &["m/ring is paused"]),
        Step::new(ROUND, "save m/snapshot a.snap", &["m/snapshot is saved, and running"]).fresh(),
        Step::new("snapshot: round", "destroy m/snapshot --force", &["m/snapshot is destroyed"]).fresh(),
        Step::new(ROUND, "restore m a.snap", &["m/snapshot runs"]).fresh(),
        Step::new("snapshot: round", "resume m/ring", &["m/ring runs"]).fresh(),
        Step::new("", "destroy m/ring --force", &["m/ring is destroyed"]),
        Step::new(ROUND, "create m ring.toml", &["m/ring runs"]).fresh(),
        Step::new("ring: started", "metrics m --once", &[r#"stile_vm_state{vm="ring",state="running"} 1"#, "# EOF"]).fresh(),
        Step::new(ROUND, "trace m -o b.json --seconds 5 --format json --json", &[r#""lost":0,"#, exact])
            .writes("b.json", traced::has_all_of_three)
            .otherwise("trace m -o b.json --seconds 60 --format json --json"),
        Step::new("snapshot: round", "pause m/checksum", &[]).fresh(),
        // No exit follows: the figures are those of the account at the end.
        Step::new("", "top m/checksum --once --json --interval 0.1", &[exact]).agrees(),
        Step::new("", "metrics m/checksum --once", &[]).agrees(),
        Step::new("", "pause m/ring", &[]),
        Step::new("", "metrics m/ring --once", &[]).agrees(),
        Step::new("", "top m/ring --once --json --interval 0.1", &[exact]).agrees(),
        Step::new("snapshot: round", "stop m/snapshot --force", &[]).fresh(),
        Step::new("", "stop m/ring --force", &[]),
        Step::new("", "stop m/checksum --force", &[]),
    ];
    let mut expect = passed();
    expect.output = ["snapshot: round 2", ROUND, "snapshot: hold", "ring: started", "snapshot: round"].map(String::from).to_vec();
    expect.absent = vec!["FAIL"];
    expect.notes.push(SAME_MEMORY.into());
    let files = vec![("ring.toml", ring.into())];
    Ok(Scenario { config: Some(config), files, steps, timeout: 3_000, expect, ..Scenario::new(name, "--exits") })
}
