//! Tests the cost of a request to an assigned function on a PC with AMD-V: exits and Stile's instructions, by the emulator's plugin.

use std::fs;

use anyhow::{Result, anyhow, ensure};

use super::devices::{VIRTIO, device};
use super::scenario::{Expect, NO_DIFFERENCE, Scenario};
use stile::config::Arch;
use stile::programs::Programs;
use stile_bench::counts::{self, Plugin};

/// Its name in the suite.
pub const NAME: &str = "pc/amd/devices/request-cost";

/// Requests, one after the other.
const REQUESTS: usize = 300;
/// Limits of Stile's instructions for a request, by its exits: HLT, in which the message arrives; or the message, and then HLT.
const MOST: [(u64, u64); 2] = [(1, 313), (2, 938)];

/// Requests with as many exits of which a median is one of the path's. At least as many have the path with the fewest exits.
const FEW: usize = 20;

/// The test. The error is a report for people.
pub fn test() -> Result<(), String> {
    measure().map_err(|error| format!("{error:#}"))
}

/// A guest halts until the message of its request arrives, and ends the interrupt by the paravirtual EOI. The emulator runs in real time: a
/// message may arrive before HLT, and other interrupts of the CPU cost instructions and exits. So medians are compared.
fn measure() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("counts");
    let kernel = Programs::build(Arch::X86_64)?.path("functions")?;
    let config = format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = 2\n\n[[vm]]\nname = \"one\"\nkernel = \"{kernel}\"\n\
         append = \"cost={REQUESTS} boots=0\"\nmemory = \"64M\"\n[[vm.pci]]\nfunction = \"0000:00:02.0\"\n"
    );
    let said = format!("cost: {REQUESTS} requests, 0 ended by the EOI register");
    let expect = Expect { output: vec![said, "PASS functions".into()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    let scenario = Scenario { config: Some(config), expect, ..Scenario::new(NAME, "--exits") };
    let [option, plugin] = Plugin::new(&counts::build()?).arguments(&output);
    // Two of its requests, which are for a byte each, are answered at once; the next one at the end of the millisecond, in HLT.
    let rng = format!("virtio-rng-pci,{VIRTIO},max-bytes=2,period=1");
    device(scenario, &["-device", &rng, &option, &plugin]).run().map_err(|error| anyhow!(error))?;
    let sections = counts::parse(&fs::read_to_string(&output)?)?.sections;
    ensure!(sections.len() == REQUESTS, "the plugin counted {} requests", sections.len());
    let mut judged = 0;
    for (exits, most) in MOST {
        let with_exits = sections.iter().filter(|section| section.exits == exits);
        let mut costs: Vec<u64> = with_exits.map(|section| section.outside.instructions).collect();
        costs.sort_unstable();
        judged += costs.len();
        if exits == MOST[0].0 {
            ensure!(costs.len() >= FEW, "only {} of {REQUESTS} requests took {exits} exit", costs.len());
        }
        if let Some(&median) = costs.get(costs.len() / 2).filter(|_| costs.len() >= FEW) {
            ensure!(median <= most, "exits: {exits}; instructions: {median}, the median of {} requests, limit: {most}", costs.len());
        }
    }
    ensure!(judged > REQUESTS / 2, "only {judged} of {REQUESTS} requests took at most two exits");
    Ok(())
}
