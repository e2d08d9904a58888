//! The command `stile`.

// These macros panic if the reader has closed the pipe or the disk is full: module `out` writes instead.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod suite;

use std::process::ExitCode;

use anyhow::Result;

use clap::Parser;
use stile::args::{Cli, Command, DiskCommand};
use stile::config::{Look, Mistakes};
use stile::out::Unwritable;
use stile::scratch::{EndBySignal, Scratch};
use stile::{exit, hints, out};

fn main() -> ExitCode {
    match stile() {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            tell(&error);
            ExitCode::from(exit::status_of(&error))
        }
    }
}

fn stile() -> Result<u8> {
    stile::generate::complete();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refusal) => {
            // Help and version go to standard output, usage errors to standard error with status 2, as clap has it.
            let refusal = hints::better(refusal);
            let printed = refusal.print();
            if !refusal.use_stderr() {
                printed.map_err(Unwritable)?;
            }
            return Ok(u8::try_from(refusal.exit_code()).unwrap_or(exit::FAILURE));
        }
    };
    // All temporary files are in one directory from here on.
    let scratch = Scratch::new(&std::env::temp_dir())?;
    let _ = tempfile::env::override_temp_dir(scratch.path());
    let until_signals = EndBySignal::watch(&scratch)?;
    match &cli.command {
        Command::Run(args) => stile::run::run(args, until_signals),
        Command::Connect(args) => stile::connect::connect(args, until_signals),
        Command::Ps(args) => stile::ps::ps(args),
        Command::Attach(args) => stile::attach::attach(args),
        Command::Top(args) => stile::top::top(args),
        Command::Trace(args) => stile::trace::trace(args),
        Command::Report(args) => stile::report::report(args),
        Command::Metrics(args) => stile::metrics::metrics(args),
        Command::Stop(args) => stile::operate::stop(args),
        Command::Start(args) => stile::operate::start(args),
        Command::Restart(args) => stile::operate::restart(args),
        Command::Create(args) => stile::create::run(args),
        Command::Destroy(args) => stile::operate::destroy(args),
        Command::Pause(args) => stile::operate::pause(args),
        Command::Resume(args) => stile::operate::resume(args),
        Command::Save(args) => stile::save::run(args),
        Command::Restore(args) => stile::restore::run(args),
        Command::Migrate(args) => stile::migrate::run(args),
        Command::Check(args) => stile::machine::check(args),
        Command::Build(args) => stile::build::build(args),
        Command::Image(args) if args.bench => stile_bench::stick(args),
        Command::Image(args) => stile::stick::image(args),
        Command::Fetch(args) => stile::fetch::fetch(args),
        Command::Disk(args) => match &args.command {
            DiskCommand::Create(args) => stile::disk::create(args),
        },
        Command::Doctor(args) => stile::doctor::doctor(args),
        Command::Test(args) => suite::test(args),
        Command::Bench(args) => stile_bench::bench(args),
        Command::Completions(args) => stile::generate::completions(args.shell),
        Command::Man(args) => stile::generate::man(&args.directory),
        Command::Soak(args) => stile::soak::soak(args),
        Command::Fuzz(args) => stile::fuzz::fuzz(args),
    }
}

/// Says why the command failed.
fn tell(error: &anyhow::Error) {
    match error.downcast_ref::<Mistakes>() {
        // They begin with the file's name.
        Some(mistakes) => {
            let width = out::terminal_width(&std::io::stderr());
            out::note(mistakes.render(Look { colour: width.is_some() && out::may_colour(), width }));
        }
        None if exit::status_of(error) == exit::UNREAD => {}
        None => {
            let lines: Vec<_> = format!("stile: {error:#}").lines().map(out::printable).collect();
            out::note(lines.join("\n"));
        }
    }
}
