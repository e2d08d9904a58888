//! Commands for Stile's developers, and for shells and manuals.

use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;

use super::values::{ARCHITECTURES, CPU_MODELS, amount, number};
use crate::config::Arch;
use crate::soak;

/// `stile test`.
#[derive(Debug, Default, Args)]
pub struct TestArgs {
    /// List the tests instead of running them.
    #[arg(long)]
    pub list: bool,
    /// Run only the tests with this text in their names; `*` stands for anything.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Run variants, too: other CPU models, kernels and numbers of CPUs for what is tested once anyway.
    #[arg(long)]
    pub all: bool,
    /// Number of tests that run concurrently; by default two for each CPU of this machine, as tests wait, too.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: Option<u8>,
    /// Run tests that failed in an emulator again, alone, up to N times, unless more than 4 failed. Tests that then pass are
    /// reported as unsteady; those that report a fault of Stile or of a guest are not repeated.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=9))]
    pub retries: u8,
    /// Print JSON: an object a line for each run of a test, then one with the counts; with --list, an array of names.
    #[arg(long)]
    pub json: bool,
}

/// `stile bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The operations to measure, such as hyp_call,ipi; all by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The peers to measure, too, or `none`; all by default, none with --scale.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub against: Vec<String>,
    /// Measure the cost of a guest of a hypervisor in a VM (L2 of L1), and name its exits; peers, on Arm: stile-nv,
    /// kvm.
    #[arg(long, conflicts_with_all = ["ablate", "iterations", "no_counts", "svg"])]
    pub nested: bool,
    /// With --nested, the hypervisors in the VM: kvm (Debian's newest), kvm-nvhe, xen; on x86-64 kvm (6.1), kvm-enlightened; all by
    /// default.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "nested")]
    pub l1: Vec<String>,
    /// Measure Stile with each exit-path technique disabled in turn, to show its gain.
    #[arg(long, conflicts_with = "against")]
    pub ablate: bool,
    /// Measure on machines of 1 to 64 CPUs that are all busy: cost of operations, and sharing between CPUs; peers, on
    /// Arm: kvm-vhe, kvm-6.12.
    #[arg(long, conflicts_with_all = ["nested", "ablate", "history", "full", "iterations", "no_counts"])]
    pub scale: bool,
    /// With --scale, the numbers of CPUs; 1,2,4,8,16,32,64 by default, on a PC 1,2,4,8,15, none with --vms.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "scale", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: Vec<u32>,
    /// With --scale, the numbers of VMs, of which all but the one that measures share a CPU.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "scale", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub vms: Vec<u32>,
    /// Measure requests to a disk (fio_1, fio_32, write_32), and to another VM (tcp_1, redis_1, redis_50), by devices that VMs own and by
    /// those that another VM serves; the peers are kvm, kvm-without-polling and, for disks, native.
    #[arg(long, conflicts_with_all = ["nested", "ablate", "scale", "history", "full", "iterations", "no_counts", "svg", "update"])]
    pub io: bool,
    /// Write the figures into a file, a JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Leave out the counts of the emulator's plugin: exits, system-register accesses, barriers, loads and stores.
    #[arg(long)]
    pub no_counts: bool,
    /// Draw the figures into a file, as a picture.
    #[arg(long, value_name = "FILE", conflicts_with = "ablate")]
    pub svg: Option<PathBuf>,
    /// Keep the figures in the repository, and regenerate the pictures and tables of README.md and docs/bench*.md; with
    /// --nested, those of docs/nested-measurements.md and docs/nested-exits*.md, or docs/nested-vmx-measurements.md;
    /// with --scale, those of docs/bench-scale.md.
    #[arg(long, conflicts_with = "iterations")]
    pub update: bool,
    /// Measure nothing: show the figures and budgets that the repository has kept, over its commits; with --svg also as curves.
    #[arg(long, conflicts_with_all = ["nested", "ablate", "against", "json", "no_counts", "update", "full", "iterations"])]
    pub history: bool,
    /// The architecture: aarch64 (in an emulated Arm server) or x86_64 (in an emulated PC).
    #[arg(long, value_name = "ARCH", default_value = "aarch64", value_parser = ARCHITECTURES, hide_possible_values = true)]
    pub arch: String,
    /// The emulated CPUs' model, such as max, cortex-a57 or corei7_haswell_4770.
    #[arg(long, value_name = "MODEL", value_parser = CPU_MODELS, hide_possible_values = true)]
    pub cpu: Option<String>,
    /// Measure the cost of real work, too: a second table, which takes an hour or more.
    #[arg(long, conflicts_with_all = ["ablate", "update"])]
    pub full: bool,
    /// Number of iterations; operations that wait run less often.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    pub iterations: u32,
}

/// `stile soak`.
#[derive(Debug, Default, Args)]
pub struct SoakArgs {
    /// Start no round after this many hours. Without this, --minutes and --operations: run until a signal.
    #[arg(long, value_name = "HOURS", value_parser = amount)]
    pub hours: Option<f64>,
    /// Its length in minutes.
    #[arg(long, value_name = "MINUTES", value_parser = amount, conflicts_with = "hours")]
    pub minutes: Option<f64>,
    /// Start no round after this many guest operations.
    #[arg(long, value_name = "N")]
    pub operations: Option<u64>,
    /// Master seed of all rounds; a random number by default.
    #[arg(long, value_name = "SEED", value_parser = number)]
    pub seed: Option<u64>,
    /// Run the round of this seed again, alone.
    #[arg(long, value_name = "SEED", value_parser = number, requires = "arch", conflicts_with_all = ["seed", "hours", "minutes", "operations"])]
    pub replay: Option<u64>,
    /// The architecture: aarch64 or x86_64; both in turn by default.
    #[arg(long, value_name = "ARCH", hide_possible_values = true, value_parser = ARCHITECTURES.try_map(|name| Arch::named(&name)))]
    pub arch: Option<Arch>,
    /// Operations of one round. A guest hypervisor makes a fiftieth of them.
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub round: u64,
    /// Number of rounds that run concurrently.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,
    /// Only machines with one CPU: a replay is identical to the instruction, and every exit and share is judged. Also the fastest
    /// on a host core
    #[arg(long, conflicts_with = "replay")]
    pub one_cpu: bool,
    /// Go on after a round that fails.
    #[arg(long)]
    pub keep_going: bool,
    /// The most instructions that one exit may take, on machines with one CPU.
    #[arg(long, value_name = "INSTRUCTIONS", default_value_t = soak::LONGEST_EXIT)]
    pub longest_exit: u64,
    /// Add each round to the totals in this file.
    #[arg(long, value_name = "FILE")]
    pub totals: Option<PathBuf>,
    /// Folder for the configurations, consoles and ledgers of failed rounds; target/soak by default.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Keep the files of all rounds.
    #[arg(long)]
    pub keep_all: bool,
    /// Print the summary as a JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `stile fuzz`.
#[derive(Debug, Default, Args)]
pub struct FuzzArgs {
    /// The targets; all of them, in turn, by default.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Duration of each target.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// Replace the kept corpora by the fewest inputs that reach as much.
    #[arg(long)]
    pub keep: bool,
    /// Only list the targets.
    #[arg(long, conflicts_with_all = ["targets", "keep"])]
    pub list: bool,
    /// Print JSON: an object for each target as it ends; with --list, an array of names.
    #[arg(long)]
    pub json: bool,
}

/// `stile completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// `stile man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for the pages; it is created if it doesn't exist.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}
