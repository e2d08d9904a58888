//! Numbers, times and words on the command line.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};

use crate::emulator::{MODELS, amd, bochs};

/// Names of architectures.
pub const ARCHITECTURES: Words = Words(&[&["aarch64", "x86_64"]]);
/// Words for nesting.
pub const NESTED: Words = Words(&[&["nv2", "nv", "enlightened", "off"]]);
/// Consequences of a reset.
pub const ON_RESET: Words = Words(&[&["restart", "stop"]]);
/// Words for mitigations.
pub const MITIGATIONS: Words = Words(&[&["auto", "off", "all"]]);
/// CPU models that Stile is tested on.
pub const CPU_MODELS: Words = Words(&[&MODELS, &bochs::MODELS, &amd::MODELS]);
/// Presentations of the account of exits.
pub const EXITS: Words = Words(&[&["vm", "vcpu", "all", "json"]]);

/// Groups of words that shells complete. Other text is accepted, too: the configuration checks it, and its messages have hints.
#[derive(Clone, Copy, Debug)]
pub struct Words(&'static [&'static [&'static str]]);

impl TypedValueParser for Words {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().copied().flatten().map(PossibleValue::new)))
    }
}

/// A seed, decimal or with 0x.
pub fn number(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "expected a number below 2^64, such as 42 or 0x2a".into())
}

/// A number above 0, at most a million.
pub fn amount(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(amount) if amount > 0.0 && amount <= 1e6 => Ok(amount),
        _ => Err("expected a number above 0 and at most 1e6, such as 1.5".into()),
    }
}

/// Seconds, with or without `s`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e9 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds above 0 and at most 1e9, such as 60".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_in_both_notations() {
        assert_eq!((number("42"), number("0x2a")), (Ok(42), Ok(42)));
        assert!(number("0x").is_err() && number("-1").is_err() && number("1e3").is_err());
    }

    #[test]
    fn times_that_make_no_sense_are_refused() {
        for text in ["0", "-1", "soon", "1e30", "nan"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(seconds("60s"), Ok(Duration::from_secs(60)));
    }
}
