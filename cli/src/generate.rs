//! Shell completions and manual pages, generated from the definition of the command line.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::out::Unwritable;
use crate::{exit, out};

/// `stile completions`: prints the completion script of a shell.
///
/// # Errors
/// Standard output can't be written.
pub fn completions(shell: Shell) -> Result<u8> {
    out::text(&script(shell)).map_err(Unwritable::from)?;
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

/// A shell's completion script. Built in memory, because the generator panics on write errors.
fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "stile", &mut script);
    script
}

/// The names and texts of all manual pages.
fn pages() -> Result<Vec<(String, Vec<u8>)>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut commands = vec![command.clone()];
    add_subcommands(&command, "stile", &mut commands);
    let mut pages = Vec::new();
    for command in commands {
        let man = clap_mangen::Man::new(command);
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
    fn each_shell_completes_subcommands_and_flags() {
        for &shell in Shell::value_variants() {
            let script = String::from_utf8(script(shell)).expect("text");
            for word in ["doctor", "bench", "vcpus", "machine-option"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn bash_completes_fixed_words() {
        let script = String::from_utf8(script(Shell::Bash)).expect("text");
        for (option, words) in [
            ("--arch", "aarch64 x86_64"),
            ("--nested", "nv2 nv off"),
            ("--on-reset", "restart stop"),
            ("--mitigations", "auto off all"),
            ("--exits", "vm vcpu all json"),
            ("--clock", "real stopped"),
        ] {
            let case = script.split(&format!("                {option})\n")).nth(1).unwrap_or_else(|| panic!("no {option}"));
            assert!(case.trim_start().starts_with(&format!("COMPREPLY=($(compgen -W \"{words}\"")), "{option}: {:.80}", case.trim_start());
        }
        assert!(script.contains("neoverse-n2") && script.contains("corei7_skylake_x"), "CPU models");
    }

    #[test]
    fn each_subcommand_has_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(man(folder.path()).expect("pages"), exit::OK);
        let page = |name: &str| fs::read_to_string(folder.path().join(name)).expect("a page");
        let names: Vec<_> = Cli::command().get_subcommands().map(|subcommand| subcommand.get_name().to_owned()).collect();
        assert!(names.len() > 7);
        assert!(page("stile-disk-create.1").contains(".SH OPTIONS"), "a subcommand of a subcommand");
        for name in names {
            assert!(page("stile.1").contains(&format!("stile\\-{name}(1)")), "{name}");
            assert!(page(&format!("stile-{name}.1")).contains(".SH OPTIONS"), "{name}");
        }
        let run = page("stile-run.1");
        assert!(run.contains("\\-\\-vcpus") && run.contains("ended by a signal"), "{run}");
    }
}
