//! Each of Debian's three kernels under each switch against exits of timers and interrupts, with load, beside a VM that verifies checksums.

use anyhow::Result;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};
use stile::programs::Programs;

/// Processes on two vCPUs, which the kernel moves between them; a sum that differs is in the output. Then all of it with the timer alone.
const LOAD: &str = "dmesg | grep stile_ipi; \
                    for cpu in 1 2; do (for i in $(seq 12); do ls /bin | sort | md5sum; done) >/tmp/$cpu & done; wait; \
                    sort -u /tmp/1 /tmp/2 | wc -l; for i in 1 2 3 4 5; do sleep 0.1; done; nproc";

/// Debian's kernels, in the order of their versions.
const KERNELS: [&str; 3] = ["debian:6.1", "debian:6.12", "debian"];

/// A name, and the techniques.
type Switch = (&'static str, &'static str);

/// On a PC the timer is passed through unless it is trapped.
const PC: [Switch; 4] = [
    ("timer-trapped", "timer = \"trapped\""),
    ("timer-direct", "ipi = \"direct\"\ntimer = \"direct\""),
    ("ipi-direct", "ipi = \"direct\""),
    ("gate", "ipi = \"gate\""),
];

const ARM: [Switch; 2] = [("direct", "interrupts = \"direct\""), ("trusted", "interrupts = \"direct\"\nipi = \"direct\"")];

/// Those on a PC, without Debian 6.1 with direct IPIs and with a gate, of which other scenarios test more.
pub(super) fn on_pc(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut all = all("pc/switch", "arch = \"x86_64\"\n", &PC, programs)?;
    all.retain(|scenario| !matches!(&*scenario.name, "pc/switch/debian:6.1/ipi-direct" | "pc/switch/debian:6.1/gate"));
    Ok(all)
}

/// Those on Arm.
pub(super) fn on_arm(programs: &Programs) -> Result<Vec<Scenario>> {
    all("direct/switch", "", &ARM, programs)
}

fn all(folder: &str, machine: &str, switches: &[Switch], programs: &Programs) -> Result<Vec<Scenario>> {
    let checksum = programs.path("checksum")?;
    let of = |(name, techniques): Switch| {
        KERNELS.map(|kernel| scenario(&format!("{folder}/{kernel}/{name}"), machine, kernel, techniques, &checksum))
    };
    Ok(switches.iter().flat_map(|switch| of(*switch)).collect())
}

/// A machine of three CPUs. vCPUs with trusted SGIs need the CPUs of their affinities, so that the neighbour has the last one.
fn scenario(name: &str, machine: &str, kernel: &str, techniques: &str, checksum: &str) -> Scenario {
    let config = format!(
        "[machine]\n{machine}cpus = 3\n\n\
         [[vm]]\nname = \"linux\"\nkernel = \"{kernel}\"\nmemory = \"256M\"\nvcpus = 2\ncpus = [0, 1]\npinned = true\non_reset = \"stop\"\n\
         exec = \"\"\"{LOAD}\"\"\"\n[vm.techniques]\n{techniques}\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{checksum}\"\nappend = \"rounds=100\"\nmemory = \"64M\"\ncpus = [2]\n"
    );
    let mut output = vec!["linux     | 1\n".into(), "linux     | 2\n".into()];
    if machine.contains("x86_64") && techniques.contains("ipi") {
        output.insert(0, "stile_ipi: interprocessor interrupts are sent without exits".into());
    }
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 2], absent: vec!["FAIL "], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new(name, "--exits") }
}
