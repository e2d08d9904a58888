//! Shell completions and manual pages, generated from the definition of the command line.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};

use crate::args::Cli;
use crate::out::Unwritable;
use crate::{exit, out};

/// The variable by which a completion script asks this program for completions.
const VARIABLE: &str = "STILE_COMPLETE";

/// `stile completions`: prints the completion script of a shell.
///
/// # Errors
/// Standard output can't be written, or the program's path is unknown.
pub fn completions(shell: Shell) -> Result<u8> {
    out::text(&script(shell)?).map_err(Unwritable::from)?;
    Ok(exit::OK)
}

/// `stile man`: writes a manual page for the command and for each subcommand into a directory.
///
/// # Errors
/// The directory or a page can't be written.
pub fn man(directory: &Path) -> Result<u8> {
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    for (name, page) in pages()? {
        let path = directory.join(name);
        fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
        out::line(path.display())?;
    }
    Ok(exit::OK)
}

/// A shell's completion script. It calls this program with [`VARIABLE`] set, which then completes a line.
///
/// # Errors
/// The program's path is unknown.
fn script(shell: Shell) -> Result<Vec<u8>> {
    script_for(shell, &std::env::current_exe().context("finding this program")?)
}

/// The script of a shell for the program at this path.
///
/// # Errors
/// A shell would interpret the path.
fn script_for(shell: Shell, program: &Path) -> Result<Vec<u8>> {
    // Only fish's script quotes a path in the way in which it is used.
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+:@".contains(letter);
    if shell != Shell::Fish && !program.to_string_lossy().chars().all(is_plain) {
        let path = program.display();
        return Err(exit::usage(format!("{path}: {shell} would interpret this path; expected one of letters, digits and /._-+:@ only")));
    }
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).with_context(|| format!("{shell} can't complete"))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "stile", "stile", &program.to_string_lossy(), &mut script)?;
    Ok(script)
}

/// Completes a line and ends, if a shell's completion script asks for it.
pub fn complete() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// The names and texts of all manual pages.
fn pages() -> Result<Vec<(String, Vec<u8>)>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut commands = vec![command.clone()];
    add_subcommands(&command, "stile", &mut commands);
    let mut pages = Vec::new();
    for command in commands {
        // An empty date would not be written, and the source be taken for it.
        let man = clap_mangen::Man::new(command).date(" ").source(concat!("Stile ", env!("CARGO_PKG_VERSION"))).manual("Stile");
        let mut page = Vec::new();
        man.render(&mut page)?;
        pages.push((man.get_filename(), page));
    }
    pages.sort();
    Ok(pages)
}

/// Adds the subcommands of a command, and theirs, with full names, which are also those of their pages.
fn add_subcommands(command: &Command, name: &str, to: &mut Vec<Command>) {
    for subcommand in command.get_subcommands() {
        let name = format!("{name}-{}", subcommand.get_name());
        add_subcommands(subcommand, &name, to);
        to.push(subcommand.clone().display_name(name));
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn each_shell_asks_this_program() {
        let program = "/home/jörg/stile/target/debug/stile";
        for &shell in Shell::value_variants() {
            let script = String::from_utf8(script_for(shell, Path::new(program)).expect("a script")).expect("text");
            assert!(script.contains(VARIABLE) && script.contains(program), "{shell}: {script}");
        }
    }

    #[test]
    fn no_shell_interprets_the_program_s_path() {
        for path in ["/a b/stile", "/$(touch x)/stile", "/a'b/stile", "/a`b`/stile"] {
            for shell in [Shell::Bash, Shell::Zsh, Shell::PowerShell, Shell::Elvish] {
                assert!(script_for(shell, Path::new(path)).is_err(), "{shell}: {path}");
            }
        }
        assert!(script_for(Shell::Fish, Path::new("/a b/stile")).is_ok());
    }

    #[test]
    fn fixed_words_are_completed() {
        for (line, words) in [
            ("doc", vec!["doctor"]),
            ("run --machine-op", vec!["--machine-option"]),
            ("run --arch ", vec!["aarch64", "x86_64"]),
            ("run --nested=", vec!["--nested=nv2", "--nested=nv", "--nested=enlightened", "--nested=off"]),
            ("run --on-reset ", vec!["restart", "stop"]),
            ("run --exits=", vec!["--exits=vm", "--exits=vcpu", "--exits=all", "--exits=json"]),
            ("run --cpu neoverse-n2", vec!["neoverse-n2"]),
            ("run --cpu corei7_sky", vec!["corei7_skylake_x"]),
        ] {
            let args: Vec<_> = ["stile"].into_iter().chain(line.split(' ')).map(Into::into).collect();
            let last = args.len() - 1;
            let found = clap_complete::engine::complete(&mut Cli::command(), args, last, None).expect("completions");
            let found: Vec<_> = found.iter().map(|it| it.get_value().to_string_lossy().into_owned()).collect();
            assert_eq!(found, words, "{line}");
        }
    }

    #[test]
    fn each_subcommand_has_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(man(folder.path()).expect("pages"), exit::OK);
        let page = |name: &str| fs::read_to_string(folder.path().join(name)).expect("a page");
        let names: Vec<_> = Cli::command().get_subcommands().map(|subcommand| subcommand.get_name().to_owned()).collect();
        assert!(names.len() > 7);
        let title = concat!(".TH stile-run 1 \" \" \"Stile ", env!("CARGO_PKG_VERSION"), "\" Stile");
        assert!(page("stile-run.1").contains(title), "the footer has the version: {}", page("stile-run.1"));
        assert!(page("stile-disk-create.1").contains(".SH OPTIONS"), "a subcommand of a subcommand");
        for name in names {
            assert!(page("stile.1").contains(&format!("stile\\-{name}(1)")), "{name}");
            assert!(page(&format!("stile-{name}.1")).contains(".SH OPTIONS"), "{name}");
        }
        let run = page("stile-run.1");
        assert!(run.contains("\\-\\-vcpus") && run.contains("ended by a signal"), "{run}");
    }
}
