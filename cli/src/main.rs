//! The command `stile`.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use stile::args::{Cli, Command};
use stile::config::Mistakes;
use stile::exit;

fn main() -> ExitCode {
    // Usage errors end here, with status 2, as clap has it.
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Run(args) => stile::run::run(args),
        Command::Check(args) => stile::machine::check(args),
        Command::Build(args) => stile::build::build(args),
        Command::Fetch(args) => stile::fetch::fetch(args),
        Command::Doctor => stile::doctor::doctor(),
        Command::Test(args) => stile::suite::test(args),
        Command::Bench(args) => stile::bench::bench(args),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            match error.downcast_ref::<Mistakes>() {
                // They begin with the file's name.
                Some(mistakes) => eprintln!("{}", mistakes.render(std::io::stderr().is_terminal())),
                None => eprintln!("stile: {error:#}"),
            }
            ExitCode::from(exit::status_of(&error))
        }
    }
}
