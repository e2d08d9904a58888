//! The page: text, tables and bars, without scripts or other files.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::html::{Histogram, bars, escape, time};
use super::input::{Event, Exit, Input};
use super::latency::{Latencies, percentile};
use super::worst;
use crate::config::units;

/// Bars of the exits over time.
const BARS: usize = 80;
/// Rows that have a histogram.
const HISTOGRAMS: usize = 8;

/// The exits of a row of the ledger, in ticks.
#[derive(Default)]
struct Row {
    count: u64,
    ticks: u64,
    max: u64,
    histogram: Histogram,
}

/// Writes the page.
pub fn page(input: &Input, title: &str) -> String {
    let exits: Vec<(&Event, &Exit)> = input.exits().collect();
    let mut rows: BTreeMap<(&str, &str), Row> = BTreeMap::new();
    for (_, exit) in &exits {
        let row = rows.entry((&exit.reason, &exit.sub)).or_default();
        row.count += 1;
        row.ticks = row.ticks.saturating_add(exit.took_ticks);
        row.max = row.max.max(exit.took_ticks);
        row.histogram.count(exit.took_ticks);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.ticks));
    let title = escape(title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>\n{}</style>\n<h1>{title}</h1>\n",
        include_str!("style.css")
    );
    let span = span(&exits);
    let _ = writeln!(
        page,
        "<p>{} in {}; {} more were dropped, {} lost</p>\n<p>Times are the machine's, by its counter: on an emulator they may pass faster \
         or slower than this computer's.</p>",
        units::plural(exits.len(), "exit"),
        time(span),
        input.dropped,
        input.lost
    );
    over_time(&mut page, &exits, span);
    by_reason(&mut page, input, exits.len(), &rows);
    histograms(&mut page, input, &rows);
    latencies(&mut page, input);
    worst::write(&mut page, input);
    page
}

/// From the first exit to the last, in nanoseconds.
fn span(exits: &[(&Event, &Exit)]) -> u64 {
    let times = exits.iter().map(|(event, _)| event.ns);
    times.clone().max().zip(times.min()).map_or(0, |(last, first)| last.abs_diff(first))
}

fn over_time(page: &mut String, exits: &[(&Event, &Exit)], span: u64) {
    let first = exits.iter().map(|(event, _)| event.ns).min().unwrap_or(0);
    let mut counts = [0; BARS];
    for (event, _) in exits {
        let place = u128::from(event.ns.abs_diff(first)) * BARS as u128 / (u128::from(span) + 1);
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

fn by_reason(page: &mut String, input: &Input, exits: usize, rows: &[((&str, &str), Row)]) {
    *page += "<h2>By reason</h2>\n<div class=scroll><table class=figures><tr><th class=name>Reason<th>Exits<th>Share<th>Time<th>Average<th>Longest\n";
    let exits = exits.max(1) as f64;
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
        row.histogram.write(page, &format!("{reason} {sub}"), |ticks| time(input.nanoseconds(ticks)));
    }
    *page += "</div>\n";
}

fn latencies(page: &mut String, input: &Input) {
    let found = Latencies::of(input);
    *page += "<h2>Latency to the handler</h2>\n<p>From the exit that sends an interrupt to another vCPU, or from the exit for a timer, \
              to the entry with the interrupt: the handler begins there unless the guest masks interrupts.</p>\n";
    if found.of.is_empty() {
        *page += "<p>The trace has none.</p>\n";
    } else {
        *page += "<div class=scroll><table class=figures><tr><th class=name>From<th>Count<th>Median<th>90 %<th>99 %<th>Longest\n";
        for (cause, ticks) in &found.of {
            let _ = write!(page, "<tr><td class=name>{}<td>{}", escape(cause.name()), ticks.len());
            for per_mille in [500, 900, 990, 1000] {
                let _ = write!(page, "<td>{}", time(input.nanoseconds(percentile(ticks, per_mille))));
            }
            page.push('\n');
        }
        *page += "</table></div>\n<div class=histograms>\n";
        for (cause, ticks) in &found.of {
            Histogram::from_iter(ticks.iter().copied()).write(page, cause.name(), |ticks| time(input.nanoseconds(ticks)));
        }
        *page += "</div>\n";
    }
    if found.unseen != 0 {
        let _ = writeln!(page, "<p>The arrival of {} more interrupts to other vCPUs is not in the trace.</p>", found.unseen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"event":"begin","cpu":0,"ns":1,"ticks":1}
{"event":"exit","cpu":0,"vm":"<web>","vcpu":1,"ns":1000,"ticks":1,"took_ticks":300,"reason":"IRQ","sub":"kick","left_for":null}
{"event":"exit","cpu":1,"vm":"db","vcpu":0,"ns":9000,"ticks":9,"took_ticks":5,"reason":"HVC","sub":"unknown","left_for":null}
{"event":"exit","cpu":1,"vm":"db","vcpu":0,"ns":9500,"ticks":9,"took_ticks":700,"reason":"IRQ","sub":"kick","left_for":"wait"}
{"event":"ipi","cpu":1,"vm":"db","vcpu":0,"ns":9900,"ticks":10,"interrupt":3,"targets":[1],"arrivals":[{"vcpu":1,"after_ticks":60,"via":"kick"}]}
{"event":"ipi","cpu":1,"vm":"db","vcpu":0,"ns":9900,"ticks":10,"interrupt":3,"targets":[1,2],"arrivals":[{"vcpu":1,"after_ticks":40,"via":"kick"}]}
{"event":"summary","counter_hz":1000000,"exits_dropped":4,"lost":0}
"#;

    #[test]
    fn a_page_has_the_figures_and_is_safe_to_open() {
        let page = page(&Input::parse(TRACE).unwrap(), "a & b");
        assert!(page.contains("<title>a &amp; b</title>") && !page.contains("<web>") && !page.contains("<script"));
        assert!(page.contains("3 exits in 8.50 us; 4 more were dropped, 0 lost"));
        // 1,000 of 1,005 ticks, of a microsecond each.
        assert!(page.contains("<td class=name>IRQ kick<td>2<td>66.7 %<td>99.5 %<td>500.00 us<td>700.00 us"));
        assert!(page.contains("<td class=name>IPI to a vCPU that runs (kick)<td>2<td>40.00 us<td>60.00 us<td>60.00 us<td>60.00 us"));
        assert!(page.contains("arrival of 1 more interrupts"));
        // Three bars over time; two durations of IRQ kick, and one of HVC; one of the latencies.
        assert_eq!(page.matches("<rect").count(), 3 + 2 + 1 + 1);
    }
}
