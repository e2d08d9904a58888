//! The longest wait of a ready vCPU of an honest VM on a CPU that it shares with a hostile one, by attack.
//!
//! The guest `crowded` measures gaps in its counter, which counts instructions on Arm (`--icount`) and on the emulated
//! PC. docs/waits.md has the figures. No exit of either VM is longer than an exit may be.

use anyhow::Result;
use rustix::process::Signal;

use super::figure::Figure;
use super::long;
use super::scenario::{Expect, Scenario};
use super::share::padding;
use stile::config::Arch;
use stile::exit;
use stile::programs::Programs;

/// A hostile VM.
struct Attack {
    name: &'static str,
    program: &'static str,
    /// Further lines of its configuration.
    vm: String,
    /// Whether it ends by itself.
    ends: bool,
    /// Further boot arguments of the honest VM.
    honest: &'static str,
}

/// The guest `storm` makes one kind of exit on four vCPUs, as often as possible.
fn storms(arch: Arch) -> impl Iterator<Item = Attack> {
    const ARM: &[&str] =
        &["storm-groups", "storm-power", "storm-edges", "storm-maintenance", "storm-ticks", "storm-calls", "storm-print", MIXED];
    const PC: &[&str] =
        &["storm-starts", "storm-code", "storm-strings", "storm-registers", "storm-ticks", "storm-calls", "storm-print", MIXED];
    let names = if arch == Arch::X86_64 { PC } else { ARM };
    names.iter().map(|&name| attack(name, "storm", &format!("attack={}", name.trim_start_matches("storm-")), FOUR))
}

/// The storm that is also part of the default suite: another kind on each vCPU.
const MIXED: &str = "storm-mixed";

fn attack(name: &'static str, program: &'static str, append: &str, more: &str) -> Attack {
    Attack { name, program, vm: format!("append = \"{append}\"\n{more}\n"), ends: false, honest: "" }
}

const EIGHT: &str = "vcpus = 8";
const FOUR: &str = "vcpus = 4";
/// `warm`: until all of 256 vCPUs have begun. `gap`: each interrupt by their timers counts as lost time.
const SLEEPERS: &str = "warm=200 gap=2000";
const NESTED: &str = "vcpus = 2\nnested = true";
/// More operations than fit into the measurement.
const SOAK: &str = "stile soak=1000000000 seed=7";

fn attacks(arch: Arch) -> Result<Vec<Attack>> {
    let resets = attack("resets", "resets", "", &format!("initrd = \"{}\"", padding()?));
    Ok(match arch {
        Arch::Aarch64 => vec![
            attack("spin", "crowded", "crowd=spin", EIGHT),
            attack("yield", "crowded", "crowd=yield", EIGHT),
            attack("block", "crowded", "crowd=block slice_us=1000", EIGHT),
            attack("sgi", "crowded", "crowd=sgi", EIGHT),
            attack("groups", "flood", "groups", ""),
            attack("hostile", "hostile", SOAK, FOUR),
            attack("many", "many", "rounds=1000", "vcpus = 64"),
            Attack { honest: SLEEPERS, ..attack("sleepers", "many", "sleep=spread vcpus=256 slice_us=1000", "vcpus = 256") },
            Attack { honest: SLEEPERS, ..attack("herd", "many", "sleep=together vcpus=256 slice_us=1000", "vcpus = 256") },
            attack("nested", "nested", SOAK, NESTED),
            Attack { ends: true, ..attack("full-shadows", "nested", "stile only=full_shadows", NESTED) },
            resets,
        ],
        Arch::X86_64 => vec![
            attack("spin", "crowded", "crowd=spin", EIGHT),
            attack("pause", "crowded", "crowd=pause", EIGHT),
            attack("ipi", "crowded", "crowd=ipi", EIGHT),
            attack("hostile", "hostile", "soak=1000000000 seed=7", FOUR),
            attack("many", "many", "rounds=1000", "vcpus = 64"),
            Attack { ends: true, ..attack("vmx", "vmx", "", "nested = true") },
            resets,
        ],
    })
}

/// One scenario for each attack.
///
/// # Errors
/// A guest is missing.
pub(super) fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for attack in attacks(programs.arch)?.into_iter().chain(storms(programs.arch)) {
        let name = attack.name;
        let long = scenario(attack, programs)?;
        scenarios.push(if name == MIXED { Scenario { name: programs.scenario("share/beside-storms"), ..long } } else { long });
    }
    Ok(scenarios)
}

fn scenario(attack: Attack, programs: &Programs) -> Result<Scenario> {
    // A slice in microseconds and instructions, and the time of 200,000 instructions.
    let (slice, instructions, exits, arguments) = match programs.arch {
        Arch::Aarch64 => (1000, 1_000_000, 200, "--icount --exits"),
        Arch::X86_64 => (5000, 500_000, 2000, "--exits"),
    };
    let config = format!(
        "[machine]\narch = \"{}\"\ncpus = 1\nslice = \"{slice}us\"\n\n\
         [[vm]]\nname = \"attacker\"\nkernel = \"{}\"\nmemory = \"64M\"\n{}\n\
         [[vm]]\nname = \"honest\"\nkernel = \"{}\"\nmemory = \"64M\"\nappend = \"slice_us={slice} exits_us={exits} least=45 {}\"\n",
        programs.arch.name(),
        programs.path(attack.program)?,
        attack.vm,
        programs.path("crowded")?,
        attack.honest,
    );
    let figure = Figure { after: "longest wait ", most: 2 * instructions + instructions / 5 + 200_000 };
    let (status, signal) = if attack.ends { (exit::OK, None) } else { (exit::LEFT, Some(Signal::INT)) };
    let output = vec!["PASS crowded".into()];
    let bounded_exits = Some(programs.arch);
    let expect = Expect { status, output, figure: Some(figure), signal, bounded_exits, absent: vec!["FAIL "], ..Expect::default() };
    let folder = if programs.arch == Arch::X86_64 { "waits-pc" } else { "waits" };
    let name = format!("{}{folder}/{}", long::PREFIX, attack.name);
    Ok(Scenario { config: Some(config), expect, ..Scenario::new(name, arguments) })
}
