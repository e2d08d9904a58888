//! Hints for unknown words on the command line.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error};

use crate::args::Cli;
use crate::config;

/// Words that other programs use for a feature, and Stile's state or word for it.
const ELSEWHERE: [(&[&str], &str); 6] = [
    (&["netdev", "nic", "network"], "a network is given with --net, such as --net user"),
    (&["drive", "hda", "cdrom", "blockdev", "volume"], "a disk is given with --disk FILE"),
    (&["virtfs", "fsdev", "folder", "shared", "mount"], "a folder of this machine is shared with --share DIR"),
    (&["mem", "ram", "m"], "memory is given with --memory, such as --memory 512M"),
    (&["cpus-per-vm", "cores", "c"], "virtual CPUs are given with --vcpus, physical ones with --smp"),
    (&["nographic", "display", "serial", "console"], "the console is always on this terminal"),
];

/// Replaces the hints of a usage error: only words that are really alike are similar.
pub fn better(mut error: Error) -> Error {
    let text = |error: &Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(written) = text(&error, ContextKind::InvalidArg) else { return error };
            let word = written.trim_start_matches('-').to_owned();
            let guess = text(&error, ContextKind::SuggestedArg);
            let hint = ELSEWHERE.iter().find(|(words, _)| words.contains(&&word[..])).map(|(_, hint)| *hint);
            let is_like = |guess: String| config::similar(&word, [guess.trim_start_matches('-')]).is_some();
            if hint.is_some() || !guess.is_some_and(is_like) {
                // The usage also names the guess.
                error.remove(ContextKind::SuggestedArg);
                error.remove(ContextKind::Usage);
            }
            if let Some(hint) = hint {
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.to_owned().into()]));
            }
        }
        ErrorKind::InvalidSubcommand => {
            let Some(written) = text(&error, ContextKind::InvalidSubcommand) else { return error };
            let cli = Cli::command();
            let known = cli.get_subcommands().map(clap::Command::get_name);
            if let Some(similar) = config::similar(&written, known) {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![similar.to_owned()]));
            }
        }
        _ => {}
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn said(words: &[&str]) -> String {
        better(Cli::try_parse_from([&["stile"], words].concat()).unwrap_err()).render().to_string()
    }

    #[test]
    fn only_similar_words_are_suggested() {
        let net = said(&["run", "--netdev"]);
        assert!(net.contains("--net user") && !net.contains("nested"), "{net}");
        assert!(said(&["run", "--nestd"]).contains("--nested"));
        assert!(said(&["run", "--vcpu", "2"]).contains("--vcpus"));
        assert!(said(&["run", "--mem", "1G"]).contains("--memory 512M"));
        assert!(!said(&["run", "--frobnicate"]).contains("similar"));
    }

    #[test]
    fn a_typing_error_in_a_command_is_detected() {
        assert!(said(&["rnu"]).contains("'run'"), "{}", said(&["rnu"]));
        assert!(said(&["chek"]).contains("'check'"));
        assert!(!said(&["frobnicate"]).contains("similar"));
    }

    #[test]
    fn help_has_the_keys() {
        assert!(said(&["run", "--help"]).contains("Ctrl-a x"));
    }
}
