//! Plan of a round, which follows from its architecture, its seed and its number of operations.

use std::fmt::Write as _;

use anyhow::Result;

use crate::config::{Arch, ablation};
use crate::programs::Programs;

/// Name of the VM whose guest attacks.
pub const SOAK: &str = "soak";
/// Name of the VM whose guest computes and measures its share.
pub const NEIGHBOUR: &str = "neighbour";

/// A guest hypervisor makes one operation where other guests make this many: its operations take some twenty exits each, and would
/// otherwise fill nearly all of a campaign's time.
pub const NESTED_PART: u64 = 50;

/// The default `weight` of a VM.
const WEIGHT: u64 = 100;
/// The `weight` of a neighbour that leaves most of a shared CPU to the attacking VM: a campaign makes more operations in its time, and
/// shares that differ are judged.
const LIGHT: u64 = 25;

/// The seed of the `number`th round of an architecture under a master seed.
pub fn seed_of(master: u64, arch: Arch, number: u64) -> u64 {
    let arch = match arch {
        Arch::Aarch64 => 1,
        Arch::X86_64 => 2,
    };
    mix(mix(master ^ arch) ^ number)
}

/// Mixes the bits of a number: neighbours give unrelated results (SplitMix64).
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Pseudorandom numbers of a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// One run of the emulator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The machine's architecture.
    pub arch: Arch,
    /// Determines the machine and every operation.
    pub seed: u64,
    /// As `--round` has it; see [`guest_operations`](Self::guest_operations).
    pub operations: u64,
    /// The emulated CPUs' model.
    pub cpu: &'static str,
    /// Physical CPUs.
    pub cpus: u64,
    /// vCPUs of the attacking VM.
    pub vcpus: u64,
    /// The technique `nested` of the attacking VM, if its guest is a hypervisor.
    pub nested: Option<&'static str>,
    slice: &'static str,
    pinned: bool,
    lost: bool,
    resets: u64,
    /// The neighbour's `weight`; the attacking VM's is [`WEIGHT`].
    weight: u64,
    techniques: Vec<String>,
}

impl Round {
    /// The round of a seed.
    pub fn new(arch: Arch, seed: u64, operations: u64) -> Self {
        let mut draws = Draws(seed);
        // Half of the machines have one CPU: only there do instructions measure time, and can exits and shares be judged.
        let cpus = if draws.one_in(2) { 1 } else { 2 + draws.below(3) };
        let mut round = Self {
            arch,
            seed,
            operations,
            cpu: "",
            cpus,
            vcpus: 1 + draws.below(4),
            nested: None,
            slice: draws.pick(&["100us", "200us", "1ms", "5ms"]),
            pinned: draws.one_in(3),
            lost: draws.one_in(6),
            resets: draws.below(4),
            weight: WEIGHT,
            techniques: Vec::new(),
        };
        match arch {
            Arch::Aarch64 => round.draw_arm(&mut draws),
            Arch::X86_64 => round.draw_pc(&mut draws),
        }
        // Last, so that the other draws of a seed stay as they were.
        round.weight = draws.pick(&[WEIGHT, LIGHT, LIGHT, LIGHT]);
        round
    }

    fn draw_arm(&mut self, draws: &mut Draws) {
        self.cpu = draws.pick(&["max", "max", "neoverse-n2", "cortex-a76", "cortex-a57"]);
        self.techniques.push(format!("wfi_passthrough = {}", !draws.one_in(3)));
        if draws.one_in(8) {
            self.techniques.push(format!("ablate = [{}]", ablation::list()));
        }
        // FEAT_NV is on these models only.
        if matches!(self.cpu, "max" | "neoverse-n2") && draws.one_in(3) {
            self.nested = Some(draws.pick(&["nv2", "nv2", "nv"]));
        }
    }

    fn draw_pc(&mut self, draws: &mut Draws) {
        self.cpu = draws.pick(&["corei7_skylake_x", "corei7_skylake_x", "corei7_haswell_4770"]);
        self.cpus = self.cpus.min(2);
        self.vcpus = self.vcpus.min(3);
        // Posted interrupts are on the newer model only.
        let levels: &[&str] =
            if self.cpu == "corei7_skylake_x" { &["posted", "delivery", "registers", "off"] } else { &["delivery", "off"] };
        self.techniques.push(format!("apic_virtualization = \"{}\"", draws.pick(levels)));
        self.techniques.push(format!("timer = \"{}\"", draws.pick(&["passthrough", "passthrough", "trapped"])));
        self.techniques.push(format!("decode_cache = \"{}\"", draws.pick(&["verify", "protect", "off"])));
    }

    /// The machine's configuration.
    ///
    /// # Errors
    /// A guest's program is missing.
    pub fn config(&self, programs: &Programs) -> Result<String> {
        let mut text = format!(
            "[machine]\narch = \"{}\"\ncpus = {}\ncpu = \"{}\"\nslice = \"{}\"\n\n",
            self.arch.name(),
            self.cpus,
            self.cpu,
            self.slice
        );
        let mut techniques = self.techniques.clone();
        let mut append = format!("stile soak={} seed={} resets={}", self.guest_operations(), self.seed, self.resets);
        if self.is_timed() {
            append += " timed";
        }
        if self.lost && self.nested.is_none() && self.arch == Arch::Aarch64 {
            append += " lost";
        }
        let (program, nested) = match self.nested {
            Some(technique) => {
                techniques.push(format!("nested = \"{technique}\""));
                ("nested", true)
            }
            None => ("hostile", false),
        };
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "[[vm]]\nname = \"{SOAK}\"\nkernel = \"{}\"\nappend = \"{append}\"\nnested = {nested}\nvcpus = {}\npinned = {}\nmemory = \"64M\"\n\
             [vm.techniques]\n{}\n",
            programs.path(program)?,
            self.vcpus,
            self.pinned,
            techniques.join("\n")
        );
        // The neighbour runs until it is stopped.
        let _ = writeln!(
            text,
            "[[vm]]\nname = \"{NEIGHBOUR}\"\nkernel = \"{}\"\nappend = \"stile share rounds=1000000\"\nvcpus = 1\ncpus = \"0\"\nmemory = \"64M\"\nweight = {}",
            programs.path("checksum")?,
            self.weight
        );
        Ok(text)
    }

    /// Minimum number of operations of the attacking guest.
    pub fn guest_operations(&self) -> u64 {
        if self.nested.is_some() { (self.operations / NESTED_PART).max(1) } else { self.operations }
    }

    /// The kind of machine, for totals.
    pub fn kind(&self) -> &'static str {
        match (self.arch, self.nested) {
            (Arch::Aarch64, None) => "aarch64",
            (Arch::Aarch64, Some(_)) => "aarch64-nested",
            (Arch::X86_64, _) => "x86_64",
        }
    }

    /// A line that describes the machine.
    pub fn describe(&self) -> String {
        let kind = self.nested.map_or(String::new(), |technique| format!(", nested by {technique}"));
        let pinned = if self.pinned { ", pinned" } else { "" };
        let (cpus, vcpus) = (count(self.cpus, "CPU"), count(self.vcpus, "vCPU"));
        format!("{} {}, {cpus}, {vcpus}{pinned}{kind}, slice {}, weight {}", self.arch.name(), self.cpu, self.slice, self.weight)
    }

    /// The command that runs this round again.
    pub fn replay(&self) -> String {
        format!("./stile soak --arch {} --replay {:#x} --round {}", self.arch.name(), self.seed, self.operations)
    }

    /// Whether instructions measure time: a replay is then identical to the instruction, and exits and shares can be judged. Several CPUs
    /// run concurrently: a replay makes the same operations, but not at the same times.
    pub fn is_timed(&self) -> bool {
        self.cpus == 1
    }

    /// The neighbour's least share of its CPU in thousandths, in 50 ms: half of its share beside as many other VMs as the attacking VM has
    /// vCPUs; a quarter with [`LIGHT`] weight, where 50 ms are only two of its turns with the longest slice.
    pub fn least_share(&self) -> u64 {
        let fair = 1000 * self.weight / (self.weight + WEIGHT * self.vcpus);
        if self.weight == WEIGHT { fair / 2 } else { fair / 4 }
    }
}

fn count(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::MachineConfig;

    #[test]
    fn seeds_differ_and_do_not_change() {
        let seeds: BTreeSet<u64> = Arch::ALL
            .into_iter()
            .flat_map(|arch| (0..1000).map(move |number| seed_of(7, arch, number)))
            .chain([seed_of(8, Arch::Aarch64, 0)])
            .collect();
        assert_eq!(seeds.len(), 2001);
        // A seed that a report names must give the same round in later versions.
        assert!((0..100).any(|number| seed_of(1, Arch::Aarch64, number) == 0xD7CC_9674_FF5F_FA39));
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF, "the first number of SplitMix64");
    }

    #[test]
    fn a_round_is_replayed_by_its_seed() {
        for arch in Arch::ALL {
            for number in 0..200 {
                let seed = seed_of(3, arch, number);
                assert_eq!(Round::new(arch, seed, 1000), Round::new(arch, seed, 1000));
                assert!(Round::new(arch, seed, 1000).replay().contains(&format!("{seed:#x}")));
            }
        }
    }

    #[test]
    fn every_configuration_is_valid_and_they_vary() {
        for arch in Arch::ALL {
            let programs = Programs::unbuilt(arch);
            let dir = tempfile::tempdir().unwrap();
            for name in ["hostile", "nested", "checksum"] {
                std::fs::write(dir.path().join(name), "a kernel").unwrap();
            }
            let mut seen = BTreeSet::new();
            for number in 0..400 {
                let round = Round::new(arch, seed_of(5, arch, number), 1000);
                let path = dir.path().join("machine.toml");
                std::fs::write(&path, round.config(&programs).unwrap()).unwrap();
                let config = MachineConfig::load(Some(&path), &Default::default()).unwrap_or_else(|error| panic!("{round:?}: {error:?}"));
                assert_eq!(config.vms.len(), 2);
                let operations = if round.nested.is_some() { 20 } else { 1000 };
                assert!(config.vms[0].append.contains(&format!(" soak={operations} ")), "{}", config.vms[0].append);
                seen.insert((round.cpu, round.cpus, round.vcpus, round.nested, round.slice, round.weight, round.techniques));
            }
            assert!(seen.len() > 30, "{arch:?}: {} machines", seen.len());
        }
    }
}
