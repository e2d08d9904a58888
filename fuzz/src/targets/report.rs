//! Traces in JSON lines, from which `stile report` makes a page that a browser opens.

use stile::report::page_of;

use crate::marks::reach;
use crate::target::Target;

/// A trace: a page whose tags are all Stile's own, or a reason.
pub const REPORT: Target =
    Target { name: "report", run: report, seeds: traces, mutations: 2000, marks: &["a page", "refused", "latencies", "histograms"] };

fn traces() -> Vec<Vec<u8>> {
    const TRACE: &str = r#"{"event":"begin","cpu":0,"ns":1,"ticks":1}
{"event":"exit","cpu":0,"vm":"<web>","vcpu":1,"ns":1000,"ticks":1,"took_ticks":300,"reason":"IRQ","sub":"virtual timer","left_for":null}
{"event":"exit","cpu":0,"vm":"db","vcpu":0,"ns":-9000,"ticks":9,"took_ticks":18446744073709551615,"reason":"IRQ","sub":"slice timer","left_for":"timer"}
{"event":"inject","cpu":0,"vm":"db","vcpu":1,"ns":9100,"ticks":10,"interrupt":27}
{"event":"ipi","cpu":1,"vm":"db","vcpu":0,"ns":9900,"ticks":10,"interrupt":3,"targets":[1],"arrivals":[{"vcpu":1,"after_ticks":60,"via":"kick"}]}
{"event":"enter","cpu":0,"vm":"db","vcpu":1,"ns":9223372036854775807,"ticks":-9223372036854775808}
{"event":"later","cpu":255,"ns":0,"ticks":0}
{"event":"end","cpu":0,"ns":1,"ticks":11}
{"event":"summary","counter_hz":1,"exits_dropped":4,"lost":18446744073709551615}
"#;
    const EMPTY: &str = "{\"event\":\"summary\",\"counter_hz\":1000000,\"exits_dropped\":0,\"lost\":0}\n";
    [TRACE, EMPTY, &TRACE.replace("\"summary\"", "\"other\"")].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Tags of the page.
const TAGS: &[&str] = &[
    "!DOCTYPE", "html", "meta", "title", "style", "h1", "h2", "h3", "p", "div", "svg", "rect", "span", "table", "tr", "th", "td", "b",
    "details", "summary",
];

fn report(bytes: &[u8]) {
    // As the command reads files.
    let text = String::from_utf8_lossy(bytes);
    let Ok(page) = page_of(&text, &text) else { return reach("refused") };
    reach("a page");
    if page.contains("<td class=name>Timer of") {
        reach("latencies");
    }
    if page.contains("<div class=histograms>\n<div>") {
        reach("histograms");
    }
    for rest in page.split('<').skip(1) {
        let name = rest.strip_prefix('/').unwrap_or(rest);
        let name = name.split(|char: char| !char.is_ascii_alphanumeric() && char != '!').next().unwrap_or("");
        assert!(TAGS.contains(&name), "a tag that is not Stile's: {name:?}");
    }
}
