//! The page: text, tables and bars, without scripts or other files.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::input::{Exit, Input};

/// Bars of the exits over time.
const BARS: usize = 80;
/// Rows that have a histogram.
const HISTOGRAMS: usize = 8;
/// Exits that are listed.
const WORST: usize = 20;

/// The exits of a row of the ledger, in ticks.
#[derive(Default)]
struct Row {
    count: u64,
    ticks: u64,
    max: u64,
    /// By the number of bits.
    histogram: BTreeMap<u32, u64>,
}

/// Writes the page.
pub fn page(input: &Input, title: &str) -> String {
    let mut rows: BTreeMap<(&str, &str), Row> = BTreeMap::new();
    for exit in &input.exits {
        let row = rows.entry((&exit.reason, &exit.sub)).or_default();
        row.count += 1;
        row.ticks = row.ticks.saturating_add(exit.took_ticks);
        row.max = row.max.max(exit.took_ticks);
        *row.histogram.entry(u64::BITS - exit.took_ticks.leading_zeros()).or_default() += 1;
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.ticks));
    let title = escape(title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>\n{}</style>\n<h1>{title}</h1>\n",
        include_str!("style.css")
    );
    let span = span(&input.exits);
    let _ =
        writeln!(page, "<p>{} exits in {}; {} more were dropped, {} lost</p>", input.exits.len(), time(span), input.dropped, input.lost);
    over_time(&mut page, input, span);
    by_reason(&mut page, input, &rows);
    histograms(&mut page, input, &rows);
    worst(&mut page, input);
    page
}

/// From the first exit to the last, in nanoseconds.
fn span(exits: &[Exit]) -> u64 {
    let times = exits.iter().map(|exit| exit.ns);
    times.clone().max().zip(times.min()).map_or(0, |(last, first)| last.abs_diff(first))
}

fn over_time(page: &mut String, input: &Input, span: u64) {
    let first = input.exits.iter().map(|exit| exit.ns).min().unwrap_or(0);
    let mut counts = [0; BARS];
    for exit in &input.exits {
        let place = u128::from(exit.ns.abs_diff(first)) * BARS as u128 / (u128::from(span) + 1);
        counts[(place as usize).min(BARS - 1)] += 1;
    }
    *page += "<h2>Exits over time</h2>\n";
    bars(page, &counts);
    let most = counts.iter().max().copied().unwrap_or(0);
    let _ = writeln!(
        page,
        "<div class=axis><span>0</span><span>at most {most} in {}</span><span>{}</span></div>",
        time(span / BARS as u64),
        time(span)
    );
}

fn by_reason(page: &mut String, input: &Input, rows: &[((&str, &str), Row)]) {
    *page += "<h2>By reason</h2>\n<div class=scroll><table><tr><th class=name>Reason<th>Exits<th>Share<th>Time<th>Average<th>Longest\n";
    let exits = input.exits.len().max(1) as f64;
    let ticks = rows.iter().fold(0_u64, |sum, (_, row)| sum.saturating_add(row.ticks)).max(1) as f64;
    for ((reason, sub), row) in rows {
        let _ = writeln!(
            page,
            "<tr><td class=name>{} {}<td>{}<td>{:.1} %<td>{:.1} %<td>{}<td>{}",
            escape(reason),
            escape(sub),
            row.count,
            row.count as f64 * 100.0 / exits,
            row.ticks as f64 * 100.0 / ticks,
            time(input.nanoseconds(row.ticks / row.count.max(1))),
            time(input.nanoseconds(row.max)),
        );
    }
    *page += "</table></div>\n";
}

fn histograms(page: &mut String, input: &Input, rows: &[((&str, &str), Row)]) {
    *page += "<h2>Duration</h2>\n<p>A bar for each doubling, of the reasons that took most time.</p>\n<div class=histograms>\n";
    for ((reason, sub), row) in rows.iter().take(HISTOGRAMS) {
        let bits = || row.histogram.keys().copied();
        let (Some(first), Some(last)) = (bits().min(), bits().max()) else { continue };
        let counts: Vec<u64> = (first..=last).map(|bits| row.histogram.get(&bits).copied().unwrap_or(0)).collect();
        let _ = writeln!(page, "<div><h3>{} {}</h3>", escape(reason), escape(sub));
        bars(page, &counts);
        let edge = |bits: u32| time(input.nanoseconds(1_u64.checked_shl(bits).unwrap_or(u64::MAX)));
        let _ = writeln!(page, "<div class=axis><span>{}</span><span>{}</span></div></div>", edge(first.saturating_sub(1)), edge(last));
    }
    *page += "</div>\n";
}

fn worst(page: &mut String, input: &Input) {
    let mut exits: Vec<&Exit> = input.exits.iter().collect();
    exits.sort_by_key(|exit| std::cmp::Reverse(exit.took_ticks));
    *page += "<h2>Longest exits</h2>\n<div class=scroll><table><tr><th>At<th>Took<th class=name>Reason<th class=name>vCPU<th>CPU\n";
    for exit in exits.into_iter().take(WORST) {
        let (reason, sub, vm) = (escape(&exit.reason), escape(&exit.sub), escape(&exit.vm));
        let (at, took) = (exit.ns as f64 / 1e6, time(input.nanoseconds(exit.took_ticks)));
        let _ =
            writeln!(page, "<tr><td>{at:.3} ms<td>{took}<td class=name>{reason} {sub}<td class=name>{vm} {}<td>{}", exit.vcpu, exit.cpu);
    }
    *page += "</table></div>\n";
}

/// Bars of these heights.
fn bars(page: &mut String, counts: &[u64]) {
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
fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"event":"begin","cpu":0,"ns":1,"ticks":1}
{"event":"exit","cpu":0,"vm":"<web>","vcpu":1,"ns":1000,"ticks":1,"took_ticks":300,"reason":"IRQ","sub":"kick","left_for":null}
{"event":"exit","cpu":1,"vm":"db","vcpu":0,"ns":9000,"ticks":9,"took_ticks":5,"reason":"HVC","sub":"unknown","left_for":null}
{"event":"exit","cpu":1,"vm":"db","vcpu":0,"ns":9500,"ticks":9,"took_ticks":700,"reason":"IRQ","sub":"kick","left_for":"wait"}
{"event":"summary","counter_hz":1000000,"exits_dropped":4,"lost":0}
"#;

    #[test]
    fn a_page_has_the_figures_and_is_safe_to_open() {
        let page = page(&Input::parse(TRACE).unwrap(), "a & b");
        assert!(page.contains("<title>a &amp; b</title>") && !page.contains("<web>") && !page.contains("<script"));
        assert!(page.contains("3 exits in 8.50 us; 4 more were dropped, 0 lost"));
        // 1,000 of 1,005 ticks, of a microsecond each.
        assert!(page.contains("<td class=name>IRQ kick<td>2<td>66.7 %<td>99.5 %<td>500.00 us<td>700.00 us"));
        let (first, second) = (page.find("<td>0.009 ms<td>700.00 us").unwrap(), page.find("<td>0.001 ms<td>300.00 us").unwrap());
        assert!(first < second, "the longest comes first");
        // Three bars over time; two durations of IRQ kick, and one of HVC.
        assert_eq!(page.matches("<rect").count(), 3 + 2 + 1);
    }

    #[test]
    fn other_files_are_refused() {
        for (text, why) in [("", "no summary"), ("{\"event\":\"exit\"}\n", "line 1"), ("binary\u{1}", "line 1")] {
            assert!(format!("{:#}", Input::parse(text).unwrap_err()).contains(why), "{text}");
        }
    }
}
