//! The command line.

mod develop;
mod disk;
mod machine;
mod operate;
mod session;
mod values;
mod watch;

use clap::{Parser, Subcommand};

use crate::exit;
use crate::session::{ATTACH_TABLE, KEY_TABLE};
pub use develop::{BenchArgs, CompletionsArgs, FuzzArgs, ManArgs, SoakArgs, TestArgs};
pub use disk::{DiskArgs, DiskCommand, DiskCreateArgs};
pub use machine::{BuildArgs, CheckArgs, DoctorArgs, FetchArgs, ImageArgs, MachineArgs, SignArgs};
pub use operate::{CreateArgs, DestroyArgs, MigrateArgs, RestoreArgs, SaveArgs, StopArgs, VmArgs};
pub use session::{AttachArgs, ConnectArgs, PsArgs, RunArgs, SessionArgs};
pub use watch::{MetricsArgs, ReportArgs, TopArgs, TraceArgs};

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
    /// Connect before the board starts: earlier output is lost. Without a configuration the VMs are called vm0 to vm127. There is no --json:
    /// --log has the events as JSON, --exits=json prints the account.
    #[command(after_help = format!("{KEY_TABLE}\n\n{}", exit::HELP))]
    Connect(ConnectArgs),
    /// List the machines that run, and their VMs.
    Ps(PsArgs),
    /// Show the console of a VM of a machine that runs, from another terminal, and type to it.
    ///
    /// There is no --json: a console is bytes. Without a terminal they are passed on as they are, in both directions.
    #[command(after_help = ATTACH_TABLE)]
    Attach(AttachArgs),
    /// Show the time of a running machine's VMs: guest, Stile, waiting; exits per second by reason.
    Top(TopArgs),
    /// Record every exit and entry of a machine for a while, and write them for Perfetto's viewer or as JSON.
    Trace(TraceArgs),
    /// Write a trace in JSON lines as a page for a browser: exits over time and by reason, durations, latencies, and the longest exits.
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
    /// Save a VM's memory and state into a file. It continues afterwards, unless it was paused.
    Save(SaveArgs),
    /// Restore a saved VM in a machine that runs, and let it continue.
    Restore(RestoreArgs),
    /// Move a VM to another machine on this computer: it continues there.
    Migrate(MigrateArgs),
    /// Describe a machine: memory map, CPUs, interrupts and devices of each VM.
    Check(CheckArgs),
    /// Write the image that `run` starts into a file; for x86_64 a CD-ROM with GRUB.
    Build(BuildArgs),
    /// Write a disk's image that UEFI firmware starts Stile and its VMs from: for a real machine, by dd.
    Image(ImageArgs),
    /// Make disks for VMs.
    Disk(DiskArgs),
    /// Fetch Debian's packages that `run` and `test` use, or newer versions of them.
    Fetch(FetchArgs),
    /// Show installed and missing programs, and the features of the emulator's CPUs.
    Doctor(DoctorArgs),
    /// Run the tests: formatting, lints, the host's tests, and the scenarios in the emulator.
    Test(TestArgs),
    /// Measure the cost of operations under Stile and its peers, on the same emulated machine.
    Bench(BenchArgs),
    /// Print the script with which a shell completes this command, for example `stile completions bash`.
    Completions(CompletionsArgs),
    /// Write manual pages for this command and its subcommands into a directory.
    Man(ManArgs),
    /// Run hostile guests beside a VM that checks its isolation, for hours, and stop at the first fault.
    Soak(SoakArgs),
    /// Search for inputs that break Stile or this command, with a coverage-guided fuzzer.
    Fuzz(FuzzArgs),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::session::Shown;

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

    /// Commands without `--json`, because they print a file's text, or a console.
    const WITHOUT_JSON: [&str; 5] = ["attach", "completions", "connect", "help", "man"];

    #[test]
    fn every_command_prints_json() {
        use clap::CommandFactory;
        let mut without = Vec::new();
        let mut commands: Vec<_> = Cli::command().get_subcommands().cloned().collect();
        while let Some(command) = commands.pop() {
            if command.has_subcommands() {
                commands.extend(command.get_subcommands().cloned());
            } else if !command.get_arguments().any(|arg| arg.get_long() == Some("json")) {
                without.push(command.get_name().to_owned());
            }
        }
        without.sort();
        assert!(without.iter().all(|name| WITHOUT_JSON.contains(&name.as_str())), "{without:?}");
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
        assert_eq!(run(&["--vcpus", "4", "--net", "user,served"]).machine.flags().machine_cpus, Some(5));
        assert_eq!(run(&["--vcpus", "8", "--gic", "2", "--disk", "a,served"]).machine.flags().machine_cpus, Some(8));
        assert_eq!(run(&["--vcpus", "999"]).machine.flags().machine_cpus, None);
        assert_eq!(run(&["machine.toml", "--vcpus", "4"]).machine.flags().machine_cpus, None);
        let flags = run(&["--kernel", "Image", "--exec", "true"]).machine.flags();
        assert_eq!((flags.initrd.as_deref(), flags.on_reset.as_deref()), (Some("busybox"), Some("stop")));
        assert_eq!(run(&["machine.toml", "--exec", "true"]).machine.flags().initrd, None);
    }

    /// A bench stick has a machine and a VM of its own: only its architecture and interrupt controller can be chosen.
    #[test]
    fn a_bench_stick_refuses_options_of_machines() {
        use clap::{Args, CommandFactory};
        let mut cli = Cli::command();
        cli.build();
        let image = cli.find_subcommand("image").unwrap();
        let bench = image.get_arguments().find(|arg| arg.get_id() == "bench").unwrap();
        let refused: Vec<_> = image.get_arg_conflicts_with(bench).iter().map(|arg| arg.get_id().clone()).collect();
        let machine = MachineArgs::augment_args(clap::Command::new("machine"));
        let taken: Vec<_> =
            machine.get_arguments().map(|arg| arg.get_id().as_str()).filter(|id| refused.iter().all(|other| other != id)).collect();
        assert_eq!(taken, ["arch", "gic"]);
    }

    #[test]
    fn a_replay_needs_its_architecture() {
        assert!(Cli::try_parse_from(["stile", "soak", "--replay", "1"]).is_err());
    }

    #[test]
    fn exits_takes_its_value_only_after_an_equals_sign() {
        let args = run(&["--exits", "machine.toml"]);
        assert_eq!(args.session.exits, Some(Shown::default()));
        assert_eq!(args.machine.config, Some("machine.toml".into()));
        assert_eq!(run(&["--exits=vcpu"]).session.exits, Some(Shown { by_vcpu: true, ..Shown::default() }));
    }
}
