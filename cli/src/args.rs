//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::config::{Arch, Flags, KernelSource};
use crate::control::name;
use crate::disk::drive::Drive;
use crate::disk::network::Network;
use crate::disk::values;
use crate::exit;
use crate::session::{ATTACH_TABLE, KEY_TABLE, Shown};
use crate::soak;
use crate::top::Order;

/// Runs virtual machines on Stile, a bare-metal hypervisor, in an emulated Arm server or PC.
#[derive(Debug, Parser)]
#[command(name = "stile", version, after_help = exit::HELP, max_term_width = 120)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start Stile and its VMs on the emulator, and give the consoles to this terminal.
    ///
    /// With nothing else: Debian's newest arm64 kernel, with a shell from Debian's busybox.
    #[command(after_help = format!("{KEY_TABLE}\n\n{}", exit::HELP))]
    Run(RunArgs),
    /// Show the consoles of a board that runs Stile, over a serial line, and type to them.
    ///
    /// Connect before the board starts: what a VM said before is gone. Without a configuration the VMs are called vm0 to vm7.
    #[command(after_help = format!("{KEY_TABLE}\n\n{}", exit::HELP))]
    Connect(ConnectArgs),
    /// List the machines that run, and their VMs.
    Ps(PsArgs),
    /// Show the console of a VM of a machine that runs, from another terminal, and type to it.
    #[command(after_help = ATTACH_TABLE)]
    Attach(AttachArgs),
    /// Show where the time of a machine's VMs goes while it runs: guest, Stile, waiting; exits per second by reason.
    Top(TopArgs),
    /// Record every exit and entry of a machine for a while, and write them for Perfetto's viewer or as JSON.
    Trace(TraceArgs),
    /// Write a trace in JSON lines as a page for a browser: exits over time, by reason, by duration, and the longest ones.
    Report(ReportArgs),
    /// Serve a machine's live ledger to a monitoring system, as OpenMetrics.
    Metrics(MetricsArgs),
    /// Stop a VM: press its power button, and turn the power off after a while.
    Stop(StopArgs),
    /// Start a VM that is off.
    Start(VmArgs),
    /// Reset a VM; start one that is off.
    Restart(VmArgs),
    /// Pause a VM: it takes no CPU, and its time stops.
    Pause(VmArgs),
    /// End a VM's pause.
    Resume(VmArgs),
    /// Create a VM in a machine that runs, and start it.
    Create(CreateArgs),
    /// Destroy a VM of a machine that runs: its memory is cleared and free again.
    Destroy(DestroyArgs),
    /// Explain what a machine will look like: memory map, CPUs, interrupts and devices of each VM.
    Check(CheckArgs),
    /// Write the image that `run` starts into a file; for x86_64 a CD-ROM with GRUB.
    Build(BuildArgs),
    /// Make disks for VMs.
    Disk(DiskArgs),
    /// Fetch Debian's packages that `run` and `test` use, or newer versions of them.
    Fetch(FetchArgs),
    /// Show what is installed, what is missing, and which features the emulator's CPUs have.
    Doctor,
    /// Run the tests: formatting, lints, the host's tests, and the scenarios in the emulator.
    Test(TestArgs),
    /// Measure what operations cost under Stile, and under its peers on the same emulated machine.
    Bench(BenchArgs),
    /// Print the script with which a shell completes this command, for example `stile completions bash`.
    Completions(CompletionsArgs),
    /// Write manual pages for this command and its subcommands into a directory.
    Man(ManArgs),
    /// Let guests attack Stile and a neighbour with everything at once, for hours, and find out what gives way.
    Soak(SoakArgs),
    /// Search for inputs that break Stile or this command, with a coverage-guided fuzzer.
    Fuzz(FuzzArgs),
}

/// Which machine: a file, or one VM by flags, or a file with one VM and flags that change it.
#[derive(Debug, Clone, Default, Args)]
pub struct MachineArgs {
    /// The configuration of a machine (TOML).
    #[arg(value_name = "CONFIG.toml")]
    pub config: Option<PathBuf>,
    /// The architecture: aarch64 (in an emulated Arm server) or x86_64 (in an emulated PC).
    #[arg(long, value_name = "ARCH")]
    pub arch: Option<String>,
    /// The VM's kernel: a file (Image, compressed Image, ELF or flat binary), or `debian`, `debian:6.12`, `debian:6.1`, `debian-installer`, `debian-xen`.
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<String>,
    /// The VM's initial RAM file system: a file, `busybox` or `none`.
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<String>,
    /// The kernel's command line. With the busybox system it is added to what that needs.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub append: Option<String>,
    /// The VM's virtual CPUs, 1 to 64.
    #[arg(long, value_name = "N")]
    pub vcpus: Option<i64>,
    /// The VM's memory, such as 512M or 1G.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Run this command in the VM, print its output, and exit with its status.
    #[arg(long, value_name = "COMMAND")]
    pub exec: Option<String>,
    /// The physical CPUs that the VM may use, such as 0-3,5.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Keep each vCPU on one physical CPU.
    #[arg(long)]
    pub pinned: bool,
    /// Give the VM an EL2 or VMX of its own, for a hypervisor in it; on Arm: nv2, or one of the ways nv and off.
    #[arg(long, value_name = "WAY", num_args = 0..=1, require_equals = true, default_missing_value = "nv2")]
    pub nested: Option<String>,
    /// Consequence of the VM's reset.
    #[arg(long, value_name = "restart|restart:N|stop")]
    pub on_reset: Option<String>,
    /// How long a vCPU runs while another waits for its CPU, such as 5ms.
    #[arg(long, value_name = "TIME")]
    pub slice: Option<String>,
    /// Mitigations of speculative-execution attacks: those that the CPU needs, none, or all that it can execute.
    #[arg(long, value_name = "auto|off|all")]
    pub mitigations: Option<String>,
    /// The emulated CPUs' model, such as max, cortex-a76 or cortex-a57.
    #[arg(long, value_name = "MODEL")]
    pub cpu: Option<String>,
    /// The emulated machine's CPUs.
    #[arg(long, value_name = "N")]
    pub smp: Option<i64>,
    /// The emulated machine's memory; by default it is enough for the VMs.
    #[arg(long, value_name = "SIZE")]
    pub machine_memory: Option<String>,
    /// A disk of the VM's: an image in the format qcow2, or raw with `,format=raw`; can be given several times. Without a kernel, the VM
    /// starts the system on the first one; --exec then runs in that system.
    #[arg(long, value_name = "FILE[,readonly][,format=raw]", value_parser = Drive::parse)]
    pub disk: Vec<Drive>,
    /// A network of the VM's: through the emulator, with ports of this machine that lead to the VM's; or between VMs.
    #[arg(long, value_name = "user[,forward=PORT:VM-PORT]|bridge=NAME", value_parser = Network::parse)]
    pub net: Vec<Network>,
}

impl MachineArgs {
    /// The settings as the configuration takes them.
    pub fn flags(&self) -> Flags {
        // With nothing said at all there is one VM, with Debian's newest kernel.
        let alone = self.config.is_none();
        // Unless something else is said, each vCPU of a VM without a file has a CPU. A number that is wrong is reported for --vcpus only.
        let cpus_for_vcpus = self.vcpus.filter(|vcpus| alone && self.cpus.is_none() && (1..=stile_board::MAX_VCPUS as i64).contains(vcpus));
        // A disk brings its kernel.
        let from_disk = self.kernel.is_none() && !self.disk.is_empty();
        // A command needs the system that runs it; and where it ends in a reset, the run must end.
        let with_command = |default: &str| (alone && self.exec.is_some()).then(|| default.to_owned());
        // A Stile in a VM has it in its own VM.
        let stile = self.kernel.as_deref().is_some_and(|kernel| kernel.split(':').next() == Some(KernelSource::STILE));
        Flags {
            arch: self.arch.clone(),
            machine_cpus: self.smp.or(cpus_for_vcpus),
            machine_memory: self.machine_memory.clone(),
            cpu: self.cpu.clone(),
            slice: self.slice.clone(),
            mitigations: self.mitigations.clone(),
            kernel: self.kernel.clone().or_else(|| (alone && !from_disk).then(|| "debian".to_owned())),
            initrd: self.initrd.clone().or_else(|| with_command("busybox").filter(|_| !stile && !from_disk)),
            append: self.append.clone(),
            memory: self.memory.clone(),
            vcpus: self.vcpus,
            cpus: self.cpus.clone(),
            pinned: self.pinned,
            nested: self.nested.clone(),
            on_reset: self.on_reset.clone().or_else(|| with_command("stop")),
            exec: self.exec.clone(),
            disks: self.disk.clone(),
            networks: self.net.clone(),
            inside: false,
        }
    }
}

/// Options common to `run` and `connect`.
#[derive(Debug, Default, Args)]
pub struct SessionArgs {
    /// The machine's name for `stile ps` and `attach`; generated by default.
    #[arg(long, value_name = "NAME", value_parser = name::check)]
    pub name: Option<String>,
    /// End after so many seconds, with status 124.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Write each console, Stile's log, the emulator's own messages and the events into files in this directory.
    #[arg(long, value_name = "DIR")]
    pub log: Option<PathBuf>,
    /// Print the account of all exits at the end: by vm or by vcpu; all: with rows under 0.1 %, too; json: for programs. Several with commas.
    /// For a board that goes on, the account when the user leaves.
    #[arg(long, value_name = "WORDS", num_args = 0..=1, require_equals = true, default_missing_value = "vm", value_parser = Shown::parse)]
    pub exits: Option<Shown>,
    /// Don't show Stile's own log.
    #[arg(long, short)]
    pub quiet: bool,
}

/// `stile run`.
#[derive(Debug, Default, Args)]
pub struct RunArgs {
    /// Which machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Presentation of the session.
    #[command(flatten)]
    pub session: SessionArgs,
    /// Run the machine in a process of its own, without a terminal, and print its name; `stile attach` shows its consoles.
    #[arg(long)]
    pub detach: bool,
    /// Let virtual time count instructions: the same run each time.
    #[arg(long)]
    pub icount: bool,
    /// Further options of the emulated machine, such as gic-version=4; for x86_64 further lines of Bochs' configuration.
    #[arg(long, value_name = "OPTION")]
    pub machine_option: Vec<String>,
    /// A further argument for QEMU, which emulates aarch64; can be given several times.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub qemu_arg: Vec<String>,
}

/// `stile connect`.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// The serial line, such as /dev/ttyUSB0.
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// The configuration of the machine, for the names of its VMs.
    #[arg(value_name = "CONFIG.toml")]
    pub config: Option<PathBuf>,
    /// The line's speed in bits a second: 8 data bits, no parity, 1 stop bit.
    #[arg(long, value_name = "SPEED", default_value_t = 115_200)]
    pub baud: u32,
    /// The board's architecture, without a configuration: aarch64 or x86_64.
    #[arg(long, value_name = "ARCH", default_value = "aarch64")]
    pub arch: String,
    /// Presentation of the session.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// `stile ps`.
#[derive(Debug, Args)]
pub struct PsArgs {
    /// Print a JSON array: name, pid, arch, seconds and vms of each machine.
    #[arg(long)]
    pub json: bool,
}

/// `stile attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The machine, and after a slash the VM; the first VM by default.
    #[arg(value_name = "NAME[/VM]")]
    pub target: String,
    /// Only watch: input is not passed on.
    #[arg(long)]
    pub read_only: bool,
}

/// `stile top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The machine, and after a slash the VM; all VMs by default.
    #[arg(value_name = "NAME[/VM]")]
    pub target: String,
    /// Print the figures of one interval, and end.
    #[arg(long)]
    pub once: bool,
    /// Print JSON, an array a line for each interval.
    #[arg(long)]
    pub json: bool,
    /// Show vCPUs instead of VMs.
    #[arg(long)]
    pub vcpus: bool,
    /// The order.
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    pub sort: Order,
    /// Show only VMs with this text in their names, or in those of a reason for which they exited.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
    /// The interval in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = amount)]
    pub interval: f64,
}

/// `stile trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The machine.
    #[arg(value_name = "NAME")]
    pub machine: String,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// How long to record, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = amount)]
    pub seconds: f64,
    /// Write only this VM's events.
    #[arg(long, value_name = "VM")]
    pub vm: Option<String>,
    /// Write only exits with this text in their reason or sub-reason.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// The file's format.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub format: crate::trace::Format,
    /// Print a JSON object instead of text: what was recorded, dropped and lost.
    #[arg(long)]
    pub json: bool,
}

/// `stile report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The trace: a file of `stile trace --format json`.
    #[arg(value_name = "FILE")]
    pub trace: PathBuf,
    /// The file to write.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
}

/// `stile metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// The machine, and after a slash the VM; all VMs by default.
    #[arg(value_name = "NAME[/VM]")]
    pub target: String,
    /// The address and port of the HTTP server; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
    pub listen: SocketAddr,
    /// Print the metrics, and end.
    #[arg(long, conflicts_with = "listen")]
    pub once: bool,
}

/// `stile start`, `restart`, `pause` and `resume`.
#[derive(Debug, Args)]
pub struct VmArgs {
    /// The machine, and after a slash the VM; NAME alone if it has only one.
    #[arg(value_name = "NAME/VM")]
    pub vm: String,
    /// Print a JSON object: machine, vm and its new state.
    #[arg(long)]
    pub json: bool,
}

/// `stile stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Which VM.
    #[command(flatten)]
    pub target: VmArgs,
    /// How many seconds the guest has after its power button is pressed, before the power is turned off.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub grace: u32,
    /// Turn the power off at once.
    #[arg(long)]
    pub force: bool,
}

/// `stile create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The machine.
    #[arg(value_name = "NAME")]
    pub machine: String,
    /// A configuration with one [[vm]]; what it says of the machine does not count.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print a JSON object: machine, vm, its state, and how many bytes were sent.
    #[arg(long)]
    pub json: bool,
}

/// `stile destroy`.
#[derive(Debug, Args)]
pub struct DestroyArgs {
    /// Which VM.
    #[command(flatten)]
    pub target: VmArgs,
    /// Turn the power off before.
    #[arg(long)]
    pub force: bool,
}

/// `stile check`.
#[derive(Debug, Default, Args)]
pub struct CheckArgs {
    /// Which machine.
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// `stile disk`.
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// The command.
    #[command(subcommand)]
    pub command: DiskCommand,
}

/// The commands for disks.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Build a disk with Debian for arm64 from signed packages, without root's rights.
    ///
    /// The packages are configured in a small VM on the emulator, which takes two to five minutes. On the console root is logged in; over
    /// the network root logs in with the keys of ~/.ssh, if the packages include openssh-server.
    Create(DiskCreateArgs),
}

/// `stile disk create`.
#[derive(Debug, Args)]
pub struct DiskCreateArgs {
    /// The image to write, in the format qcow2: it must not exist.
    #[arg(value_name = "FILE.qcow2")]
    pub file: PathBuf,
    /// Further packages of Debian, such as openssh-server,redis; what they depend on is included.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::package_name)]
    pub packages: Vec<String>,
    /// The disk's size. The image is as large as what is on it, and grows up to this.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = values::size)]
    pub size: u64,
    /// A public key that may log in as root, instead of those in ~/.ssh; can be given several times.
    #[arg(long, value_name = "FILE")]
    pub ssh_key: Vec<PathBuf>,
    /// The system's host name; by default the file's name up to its first dot.
    #[arg(long, value_name = "NAME", value_parser = name::check)]
    pub hostname: Option<String>,
}

/// `stile fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// The architecture whose packages are fetched: aarch64 or x86_64.
    #[arg(long, value_name = "ARCH", default_value_t, value_parser = Arch::named)]
    pub arch: Arch,
}

/// `stile build`.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// Which machine.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Where to write the image.
    #[arg(long, short, value_name = "IMAGE")]
    pub output: PathBuf,
}

/// `stile test`.
#[derive(Debug, Default, Args)]
pub struct TestArgs {
    /// List the tests instead of running them.
    #[arg(long)]
    pub list: bool,
    /// Run only the tests with this text in their names; `*` stands for anything.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// How many scenarios run at once.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,
}

/// `stile bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The operations to measure, such as hyp_call,ipi; all by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The peers to measure, too, or `none`; all by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub against: Vec<String>,
    /// Measure what a guest of a hypervisor in a VM costs (L2 of L1), and name its exits; peers: stile-nv, kvm.
    #[arg(long, conflicts_with_all = ["ablate", "iterations", "no_counts", "svg"])]
    pub nested: bool,
    /// With --nested, the hypervisors in the VM: kvm (Debian's newest), kvm-nvhe, xen; all by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "nested")]
    pub l1: Vec<String>,
    /// Measure Stile alone, with each technique of the exit path done without: what it is worth.
    #[arg(long, conflicts_with = "against")]
    pub ablate: bool,
    /// Write the figures into a file, a JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Leave out what the emulator's plugin counts: exits, system-register accesses, barriers, loads and stores.
    #[arg(long)]
    pub no_counts: bool,
    /// Draw the figures into a file, as a picture.
    #[arg(long, value_name = "FILE", conflicts_with = "ablate")]
    pub svg: Option<PathBuf>,
    /// Keep the figures in the repository, and regenerate the pictures and tables of README.md and docs/bench*.md; with --nested, those of
    /// docs/nested-measurements.md and docs/nested-exits.md.
    #[arg(long, conflicts_with = "iterations")]
    pub update: bool,
    /// Measure nothing: show the figures and budgets that the repository has kept, over its commits; with --svg also as curves.
    #[arg(long, conflicts_with_all = ["nested", "ablate", "against", "json", "no_counts", "update", "full", "iterations"])]
    pub history: bool,
    /// The architecture: aarch64 (in an emulated Arm server) or x86_64 (in an emulated PC).
    #[arg(long, value_name = "ARCH", default_value = "aarch64")]
    pub arch: String,
    /// The emulated CPUs' model, such as max, cortex-a57 or corei7_haswell_4770.
    #[arg(long, value_name = "MODEL")]
    pub cpu: Option<String>,
    /// Measure what real work costs, too: a second table, which takes an hour or more.
    #[arg(long, conflicts_with_all = ["ablate", "update"])]
    pub full: bool,
    /// How often each operation runs; those that wait run less often.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    pub iterations: u32,
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
    /// Where to write the pages; it is created if it doesn't exist.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// `stile soak`.
#[derive(Debug, Default, Args)]
pub struct SoakArgs {
    /// Start no round after so many hours. Without this, --minutes and --operations: go on until a signal.
    #[arg(long, value_name = "HOURS", value_parser = amount)]
    pub hours: Option<f64>,
    /// Its length in minutes.
    #[arg(long, value_name = "MINUTES", value_parser = amount, conflicts_with = "hours")]
    pub minutes: Option<f64>,
    /// Start no round after so many guest operations.
    #[arg(long, value_name = "N")]
    pub operations: Option<u64>,
    /// Master seed of all rounds; a random number by default.
    #[arg(long, value_name = "SEED", value_parser = number)]
    pub seed: Option<u64>,
    /// Run the round of this seed again, alone.
    #[arg(long, value_name = "SEED", value_parser = number, requires = "arch", conflicts_with_all = ["seed", "hours", "minutes", "operations"])]
    pub replay: Option<u64>,
    /// The architecture: aarch64 or x86_64; both in turn by default.
    #[arg(long, value_name = "ARCH", value_parser = Arch::named)]
    pub arch: Option<Arch>,
    /// Operations of one round.
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub round: u64,
    /// How many rounds run at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,
    /// Go on after a round that fails.
    #[arg(long)]
    pub keep_going: bool,
    /// The most instructions that one exit may take, on machines with one CPU.
    #[arg(long, value_name = "INSTRUCTIONS", default_value_t = soak::LONGEST_EXIT)]
    pub longest_exit: u64,
    /// Add each round to the totals in this file.
    #[arg(long, value_name = "FILE")]
    pub totals: Option<PathBuf>,
    /// Where rounds that fail leave their configuration, consoles and ledger; target/soak by default.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Keep what all rounds leave.
    #[arg(long)]
    pub keep_all: bool,
}

/// `stile fuzz`.
#[derive(Debug, Default, Args)]
pub struct FuzzArgs {
    /// The targets; all of them, in turn, by default.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// How long each target runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// Replace the kept corpora by the fewest inputs that reach as much.
    #[arg(long)]
    pub keep: bool,
    /// Only list the targets.
    #[arg(long, conflicts_with_all = ["targets", "keep"])]
    pub list: bool,
}

/// A seed, decimal or with 0x.
fn number(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "expected a number below 2^64, such as 42 or 0x2a".into())
}

fn amount(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(amount) if amount > 0.0 && amount <= 1e6 => Ok(amount),
        _ => Err("expected a number above 0, such as 1.5".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e9 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds above 0, such as 60".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> RunArgs {
        match Cli::try_parse_from(["stile", "run"].iter().chain(words)).unwrap().command {
            Command::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_are_understood() {
        let args = run(&["--kernel", "k.flat", "--vcpus", "8", "--smp", "1", "--timeout", "2.5", "--qemu-arg", "-d", "--qemu-arg", "int"]);
        assert_eq!(args.machine.flags().kernel.as_deref(), Some("k.flat"));
        assert_eq!(args.machine.flags().machine_cpus, Some(1));
        assert_eq!(args.session.timeout, Some(Duration::from_millis(2500)));
        assert_eq!(args.qemu_arg, ["-d", "int"]);
        let line = "com2: enabled=1, mode=null";
        assert_eq!(run(&["--machine-option", line]).machine_option, [line], "a line of Bochs' configuration may have commas");
        assert_eq!(args.session.exits, None);
    }

    #[test]
    fn a_vm_without_a_file_has_sensible_defaults() {
        assert_eq!(run(&["--vcpus", "4"]).machine.flags().machine_cpus, Some(4));
        assert_eq!(run(&["--vcpus", "4", "--cpus", "0-1"]).machine.flags().machine_cpus, None);
        assert_eq!(run(&["--vcpus", "99"]).machine.flags().machine_cpus, None);
        assert_eq!(run(&["machine.toml", "--vcpus", "4"]).machine.flags().machine_cpus, None);
        let flags = run(&["--kernel", "Image", "--exec", "true"]).machine.flags();
        assert_eq!((flags.initrd.as_deref(), flags.on_reset.as_deref()), (Some("busybox"), Some("stop")));
        assert_eq!(run(&["machine.toml", "--exec", "true"]).machine.flags().initrd, None);
    }

    #[test]
    fn exits_takes_its_value_only_after_an_equals_sign() {
        let args = run(&["--exits", "machine.toml"]);
        assert_eq!(args.session.exits, Some(Shown::default()));
        assert_eq!(args.machine.config, Some("machine.toml".into()));
        assert_eq!(run(&["--exits=vcpu"]).session.exits, Some(Shown { by_vcpu: true, ..Shown::default() }));
    }

    #[test]
    fn seeds_are_read_in_both_notations() {
        assert_eq!((number("42"), number("0x2a")), (Ok(42), Ok(42)));
        assert!(number("0x").is_err() && number("-1").is_err() && number("1e3").is_err());
        assert!(Cli::try_parse_from(["stile", "soak", "--replay", "1"]).is_err(), "a replay needs its architecture");
    }

    #[test]
    fn times_that_make_no_sense_are_refused() {
        for text in ["0", "-1", "soon", "1e30", "nan"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(seconds("60s"), Ok(Duration::from_secs(60)));
    }
}
