//! Amounts as people write them: sizes, durations and sets of CPUs.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;
use core::time::Duration;

use stile_board::{CpuId, CpuSet};

/// The suffixes of sizes, and how far each shifts a number.
const SUFFIXES: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Parses a size in bytes: a whole number and `K`, `M`, `G` or `T`, which are powers of 1024; `KiB` and so on
/// are equivalent.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, suffix) = split(text)?;
    let letter = suffix.strip_suffix("iB").unwrap_or(suffix);
    let mut letters = letter.chars();
    let (letter, None) = (letters.next()?, letters.next()) else {
        return None;
    };
    let shift = SUFFIXES.iter().find(|(suffix, _)| *suffix == letter.to_ascii_uppercase())?.1;
    number.checked_mul(1 << shift)
}

/// Formats a size for [`parse_size`], in the largest unit that divides it; bytes if none does.
pub fn size(bytes: u64) -> String {
    for (suffix, shift) in SUFFIXES.into_iter().rev() {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{suffix}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

/// A size to be read by people: rounded to a tenth of a suitable unit.
pub fn rounded_size(bytes: u64) -> String {
    for (suffix, shift) in SUFFIXES.into_iter().rev() {
        if bytes >= 1 << shift {
            let tenths = (u128::from(bytes) * 10 + (1 << (shift - 1))) >> shift;
            return match tenths % 10 {
                0 => format!("{} {suffix}iB", tenths / 10),
                tenth => format!("{}.{tenth} {suffix}iB", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}

/// A count of things: `1 CPU`, `2 CPUs`.
pub fn plural(count: impl TryInto<u64> + Copy + Display, one: &str) -> String {
    match count.try_into() {
        Ok(1) => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    }
}

/// Reads a duration: a whole number and `us`, `ms` or `s`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    match split(text)? {
        (number, "us") => Some(Duration::from_micros(number)),
        (number, "ms") => Some(Duration::from_millis(number)),
        (number, "s") => Some(Duration::from_secs(number)),
        _ => None,
    }
}

/// Splits a number from its suffix.
fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    Some((number.parse().ok()?, suffix.strip_prefix(' ').unwrap_or(suffix)))
}

/// Reads a list of numbers and ranges, such as `0-3,5`; the numbers that it names, in its order.
pub fn parse_cpus(text: &str) -> Option<Vec<u64>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // Out of range for any machine: don't build a huge list.
        if first > last || last - first > 4096 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// A set of CPUs, as [`parse_cpus`] reads it.
pub fn cpus(cpus: &CpuSet) -> String {
    runs(cpus.iter().map(CpuId::index))
}

/// Writes ascending numbers as ranges, such as `0-3,8`.
pub fn runs(numbers: impl IntoIterator<Item = usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    runs.into_iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_beyond_a_word_are_in_runs() {
        assert_eq!(runs([0, 1, 2, 63, 64, 65, 255]), "0-2,63-65,255");
        assert_eq!(
            (runs([]), cpus(&CpuSet::from_bits(u64::MAX)), cpus(&CpuSet::from_bits(1 << 63))),
            (String::new(), "0-63".to_owned(), "63".to_owned())
        );
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512M"), Some(512 << 20));
        assert_eq!(parse_size("1 GiB"), Some(1 << 30));
        assert_eq!(parse_size("64k"), Some(64 << 10));
        for bad in ["", "M", "512", "-1M", "1.5G", "512MB", "1é", "1MM", "99999999999T", "99999999999999999999M"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
        assert_eq!(size(512 << 20), "512M");
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(1025), "1025 bytes");
        assert_eq!(rounded_size(1000), "1000 B");
        assert_eq!(rounded_size(1 << 20), "1 MiB");
        assert_eq!(rounded_size((1 << 20) + (300 << 10)), "1.3 MiB");
        assert_eq!(rounded_size(u64::MAX), "16777216 TiB");
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("5ms"), Some(Duration::from_millis(5)));
        assert_eq!(parse_duration("250 us"), Some(Duration::from_micros(250)));
        assert_eq!(parse_duration("1s"), Some(Duration::from_secs(1)));
        for bad in ["", "5", "ms", "5m", "0.5ms"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpus("0-3,5"), Some(vec![0, 1, 2, 3, 5]));
        assert_eq!(parse_cpus("7"), Some(vec![7]));
        for bad in ["", "a", "3-1", "0-", "-1", "1,,2", "0-99999999999"] {
            assert_eq!(parse_cpus(bad), None, "{bad}");
        }
        assert_eq!(cpus(&CpuSet::from_bits(0b10_1111)), "0-3,5");
        assert_eq!(cpus(&CpuSet::ALL), "0-511");
        assert_eq!(cpus(&CpuSet::EMPTY), "");
    }

    proptest! {
        #[test]
        fn sizes_round_trip(mebibytes in 1u64..1 << 20) {
            prop_assert_eq!(parse_size(&size(mebibytes << 20)), Some(mebibytes << 20));
        }

        #[test]
        fn cpu_sets_round_trip(mask in 1u64..) {
            let list = parse_cpus(&cpus(&CpuSet::from_bits(mask))).expect("a list");
            prop_assert_eq!(list.into_iter().fold(0, |mask, cpu| mask | 1 << cpu), mask);
        }

        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,12}") {
            let _ = (parse_size(&text), parse_duration(&text), parse_cpus(&text));
        }
    }
}
