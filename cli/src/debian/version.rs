//! The order of Debian's package versions (Debian Policy Manual, "Version").
//!
//! Crate debversion would add chrono, num-bigint and regular expressions, and parse each version into an owned value to
//! compare it. Versions here are compared once, and come from signed lists.

use std::cmp::Ordering;

/// Compares two versions as dpkg does: epoch, upstream version, revision.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (Parts::of(a), Parts::of(b));
    a.epoch.cmp(&b.epoch).then_with(|| compare_part(a.upstream, b.upstream)).then_with(|| compare_part(a.revision, b.revision))
}

struct Parts<'a> {
    epoch: u64,
    upstream: &'a str,
    revision: &'a str,
}

impl<'a> Parts<'a> {
    fn of(version: &'a str) -> Self {
        let (epoch, rest) = version.split_once(':').map_or((0, version), |(epoch, rest)| (epoch.parse().unwrap_or(0), rest));
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        Self { epoch, upstream, revision }
    }
}

/// Compares alternating runs of non-digits and digits.
fn compare_part(mut a: &str, mut b: &str) -> Ordering {
    while !(a.is_empty() && b.is_empty()) {
        let (text_a, text_b) = (take(&mut a, |c| !c.is_ascii_digit()), take(&mut b, |c| !c.is_ascii_digit()));
        let order = compare_text(text_a, text_b);
        if order != Ordering::Equal {
            return order;
        }
        let (digits_a, digits_b) = (take(&mut a, |c| c.is_ascii_digit()), take(&mut b, |c| c.is_ascii_digit()));
        let (digits_a, digits_b) = (digits_a.trim_start_matches('0'), digits_b.trim_start_matches('0'));
        let order = digits_a.len().cmp(&digits_b.len()).then_with(|| digits_a.cmp(digits_b));
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

fn take<'a>(rest: &mut &'a str, wanted: impl Fn(char) -> bool) -> &'a str {
    let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
    let (taken, left) = rest.split_at(end);
    *rest = left;
    taken
}

/// A tilde sorts before the end, letters before all other characters.
fn compare_text(a: &str, b: &str) -> Ordering {
    let weight = |c: Option<u8>| match c {
        Some(b'~') => -1,
        None => 0,
        Some(c) if c.is_ascii_alphabetic() => i32::from(c),
        Some(c) => i32::from(c) + 256,
    };
    let (mut a, mut b) = (a.bytes(), b.bytes());
    loop {
        let (next_a, next_b) = (a.next(), b.next());
        if next_a.is_none() && next_b.is_none() {
            return Ordering::Equal;
        }
        let order = weight(next_a).cmp(&weight(next_b));
        if order != Ordering::Equal {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_dpkg_orders_them() {
        for (smaller, greater) in [
            ("7.2.9-1~bpo13+1", "7.2.11-1~bpo13+1"),
            ("7.3.4-1~bpo13+1", "7.3.4-1"),
            ("6.12.94-1", "6.12.107-1"),
            ("1.0~rc1", "1.0"),
            ("1.0", "1.0-1"),
            ("2.0", "1:1.0"),
            ("1.0a", "1.0+"),
            ("1.09", "1.10"),
        ] {
            assert_eq!(compare(smaller, greater), Ordering::Less, "{smaller} < {greater}");
            assert_eq!(compare(greater, smaller), Ordering::Greater, "{greater} > {smaller}");
        }
        assert_eq!(compare("1.0-0", "1.0"), Ordering::Equal);
        assert_eq!(compare("1.01", "1.1"), Ordering::Equal);
    }
}
