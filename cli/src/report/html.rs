//! Parts of the page.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Minimum number of bars of a histogram: few wide ones would look like many values.
const FEWEST: u32 = 6;

/// Counts of values, by their number of bits: a bar for each doubling.
#[derive(Debug, Default)]
pub struct Histogram(BTreeMap<u32, u64>);

impl Histogram {
    /// Counts a value.
    pub fn count(&mut self, value: u64) {
        *self.0.entry(u64::BITS - value.leading_zeros()).or_default() += 1;
    }

    /// Writes it, with the edges as `edge` names them.
    pub fn write(&self, page: &mut String, title: &str, edge: impl Fn(u64) -> String) {
        let (Some((&first, _)), Some((&last, _))) = (self.0.first_key_value(), self.0.last_key_value()) else { return };
        let last = last.max(first.saturating_add(FEWEST - 1)).min(u64::BITS);
        let counts: Vec<u64> = (first..=last).map(|bits| self.0.get(&bits).copied().unwrap_or(0)).collect();
        let _ = writeln!(page, "<div><h3>{}</h3>", escape(title));
        bars(page, &counts);
        // The least value with `bits` bits.
        let least = |bits: u32| if bits == 0 { 0 } else { 1_u64.checked_shl(bits - 1).unwrap_or(u64::MAX) };
        let most = counts.iter().max().copied().unwrap_or(0);
        let (from, to) = (edge(least(first)), edge(least(last + 1)));
        let _ = writeln!(page, "<div class=axis><span>{from}</span><span>at most {most}</span><span>{to}</span></div></div>");
    }
}

impl FromIterator<u64> for Histogram {
    fn from_iter<I: IntoIterator<Item = u64>>(values: I) -> Self {
        let mut histogram = Self::default();
        values.into_iter().for_each(|value| histogram.count(value));
        histogram
    }
}

/// Bars of these heights.
pub fn bars(page: &mut String, counts: &[u64]) {
    let most = counts.iter().max().copied().unwrap_or(0).max(1) as f64;
    let _ = write!(page, "<svg viewBox=\"0 0 {} 100\" preserveAspectRatio=\"none\">", counts.len());
    for (place, &count) in counts.iter().enumerate().filter(|(_, count)| **count != 0) {
        // Each that is there is seen.
        let height = (count as f64 * 100.0 / most).max(1.0);
        let _ = write!(page, "<rect x=\"{place}.05\" y=\"{:.1}\" width=\".9\" height=\"{height:.1}\"/>", 100.0 - height);
    }
    *page += "</svg>\n";
}

/// Nanoseconds, in the unit that reads best.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// Text as HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_a_bar_for_each_doubling() {
        let mut page = String::new();
        Histogram::from_iter([0, 4, 7, 4, u64::MAX]).write(&mut page, "<b>", |edge| edge.to_string());
        assert!(page.contains("<h3>&lt;b&gt;</h3>") && page.contains("viewBox=\"0 0 65 100\"") && page.matches("<rect").count() == 3);
        assert!(page.contains(&format!("<span>0</span><span>at most 3</span><span>{}</span>", u64::MAX)), "{page}");
        page.clear();
        Histogram::from_iter([4]).write(&mut page, "one", |edge| edge.to_string());
        assert!(page.contains("<span>4</span><span>at most 1</span><span>256</span>"), "{page}");
    }
}
