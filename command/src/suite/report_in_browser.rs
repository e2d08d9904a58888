//! The test of `stile report` in a browser: the page of a machine's trace, on a phone and on a desktop, light and dark.
//!
//! The screenshots are left in the cache's directory `report-in-browser`, to be looked at.

use std::fs;

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;
use serde_json::{Value, json};

use super::browser::Browser;
use super::scenario::Scenario;
use super::traced;
use stile::cache;
use stile::programs::Programs;

/// Its name in the suite.
const NAME: &str = "long/report-in-browser";

/// A screen: its name, its width and height, and whether it is a phone's.
const SCREENS: [(&str, u32, u32, bool); 2] = [("phone", 390, 844, true), ("desktop", 1440, 900, false)];

/// Least contrast between text and page, by WCAG 2.1 (1.4.3).
const CONTRAST: f64 = 4.5;

/// Least size of text in CSS pixels.
const SMALLEST: f64 = 11.0;

/// Appearance of the page, measured by the page itself: all details are open. Colours are relative luminances, by WCAG 2.1.
const LOOK: &str = r#"(() => {
    document.querySelectorAll("details").forEach(details => details.open = true);
    const light = text => {
        const [r, g, b] = text.match(/[\d.]+/g).map(part => part / 255).map(part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const texts = [...document.querySelectorAll("h1, h2, h3, p, th, td, summary, span")].filter(element => element.innerText);
    const page = light(getComputedStyle(document.body).backgroundColor);
    const behind = element => {
        for (; element; element = element.parentElement) {
            const colour = getComputedStyle(element).backgroundColor;
            if (colour != "rgba(0, 0, 0, 0)") return light(colour);
        }
        return page;
    };
    const contrast = (one, other) => (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
    const bars = [...document.querySelectorAll("svg rect")];
    return {
        width: document.documentElement.scrollWidth,
        inner: innerWidth,
        page,
        contrast: Math.min(...texts.map(element => contrast(light(getComputedStyle(element).color), behind(element)))),
        bars: Math.min(...bars.map(bar => contrast(light(getComputedStyle(bar).fill), page))),
        smallest: Math.min(...texts.map(element => parseFloat(getComputedStyle(element).fontSize))),
        charts: [...document.querySelectorAll("svg")].map(chart => {
            const { width, height } = chart.getBoundingClientRect();
            const seen = [...chart.querySelectorAll("rect")].map(bar => bar.getBoundingClientRect());
            return [width, height, seen.length, Math.min(...seen.map(bar => Math.min(bar.width, bar.height)))];
        }),
        headings: [...document.querySelectorAll("h2, h3")].map(heading => heading.innerText),
        scrolled: [...document.querySelectorAll(".scroll")].filter(part => part.scrollWidth > part.clientWidth).length,
        details: document.querySelectorAll("details").length,
    };
})()"#;

/// The scenario.
///
/// # Errors
/// A guest is missing.
pub fn scenario(programs: &Programs) -> Result<Scenario> {
    traced::report(programs, NAME, |page| check(page).map_err(|error| format!("{error:#}")))
}

/// Looks at a page in every way.
fn check(page: &[u8]) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("report.html");
    fs::write(&file, page)?;
    let url = format!("file://{}", file.display());
    let pictures = cache::dir()?.join("report-in-browser");
    fs::create_dir_all(&pictures)?;
    let mut browser = Browser::start()?;
    for domain in ["Page", "Runtime", "Log", "Network"] {
        browser.call(&format!("{domain}.enable"), json!({}))?;
    }
    for (screen, width, height, mobile) in SCREENS {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": if mobile { 2 } else { 1 }, "mobile": mobile});
        browser.call("Emulation.setDeviceMetricsOverride", size)?;
        let mut pages = Vec::new();
        for scheme in ["light", "dark"] {
            let what = format!("{screen}-{scheme}");
            let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
            browser.call("Emulation.setEmulatedMedia", feature)?;
            browser.events().for_each(drop);
            browser.call("Page.navigate", json!({"url": url}))?;
            let mut events = Vec::new();
            while !events.iter().any(|event: &Value| event["method"] == "Page.loadEventFired") {
                // Answered after the events so far.
                browser.evaluate("document.readyState")?;
                events.extend(browser.events());
            }
            let whole = json!({"captureBeyondViewport": true, "clip": clip(&mut browser)?});
            let picture = browser.call("Page.captureScreenshot", whole)?;
            let picture = BASE64.decode(picture["data"].as_str().context("no picture")?.as_bytes())?;
            fs::write(pictures.join(format!("{what}.png")), picture)?;
            let look = browser.evaluate(LOOK)?;
            events.extend(browser.events());
            quiet(&events, &url).with_context(|| what.clone())?;
            judge(&look, width).with_context(|| format!("{what}: {look}"))?;
            pages.push(look["page"].as_f64().context("no colour")?);
        }
        ensure!(pages[0] > 0.8 && pages[1] < 0.2, "{screen}: the page's luminance is {pages:?}, light and dark");
    }
    Ok(())
}

/// The whole page, in CSS pixels.
fn clip(browser: &mut Browser) -> Result<Value> {
    let size = browser.call("Page.getLayoutMetrics", json!({}))?;
    let size = &size["cssContentSize"];
    Ok(json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}))
}

/// No message in the console, no exception, and no request but for the page.
fn quiet(events: &[Value], url: &str) -> Result<()> {
    for event in events {
        let method = event["method"].as_str().unwrap_or_default();
        let is_said = matches!(method, "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded");
        let is_other = method == "Network.requestWillBeSent" && event["params"]["request"]["url"] != url;
        ensure!(!is_said && !is_other, "{event}");
    }
    Ok(())
}

/// Judges the [`LOOK`] of a page on a screen of this width.
fn judge(look: &Value, width: u32) -> Result<()> {
    let number = |name: &str| look[name].as_f64().with_context(|| format!("no {name}"));
    ensure!(number("width")? <= f64::from(width) && number("inner")? <= f64::from(width), "it is wider than the screen");
    ensure!(look["scrolled"] == 0, "a table has to be scrolled");
    ensure!(number("contrast")? >= CONTRAST && number("bars")? >= 3.0, "the contrast is too low");
    ensure!(number("smallest")? >= SMALLEST, "the text is too small");
    ensure!(number("details")? > 1.0, "the longest exits are missing");
    let headings = look["headings"].as_array().context("no headings")?;
    let has = |text: &str| headings.iter().filter_map(Value::as_str).any(|heading| heading.starts_with(text));
    for heading in ["Exits over time", "By reason", "Duration", "Latency to the handler", "Longest exits", "IPI to a vCPU"] {
        ensure!(has(heading), "{heading} is missing");
    }
    let charts = look["charts"].as_array().context("no charts")?;
    ensure!(charts.len() > 4, "there are {} charts", charts.len());
    for chart in charts {
        let size: Vec<f64> = chart.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        ensure!(
            matches!(size[..], [width, height, bars, least] if width > 100.0 && height > 40.0 && bars > 0.0 && least > 0.0),
            "a chart is {chart}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look() -> Value {
        let headings = ["Exits over time", "By reason", "Duration", "Latency to the handler", "Longest exits", "IPI to a vCPU"];
        let charts = vec![json!([358.0, 112.0, 3, 1.1]); 5];
        json!({"width": 390, "inner": 390, "page": 1.0, "contrast": 5.9, "bars": 5.0, "smallest": 12.5, "scrolled": 0, "details": 20,
               "headings": headings, "charts": charts})
    }

    #[test]
    fn each_fault_of_a_page_is_found() {
        judge(&look(), 390).unwrap();
        let faults = [
            ("width", json!(391)),
            ("inner", json!(412)),
            ("scrolled", json!(1)),
            ("contrast", json!(4.4)),
            ("bars", json!(2.9)),
            ("smallest", json!(9)),
            ("details", json!(0)),
            ("headings", json!(["By reason"])),
            ("charts", json!([[358.0, 112.0, 3, 1.1]])),
            ("charts", json!(vec![json!([358.0, 112.0, 0, null]); 5])),
            ("charts", json!(vec![json!([358.0, 0.0, 3, 1.1]); 5])),
            ("contrast", json!(null)),
        ];
        for (name, value) in faults {
            let mut look = look();
            look[name] = value;
            assert!(judge(&look, 390).is_err(), "{name}");
        }
    }

    #[test]
    fn messages_and_requests_are_found() {
        let request = |url: &str| json!({"method": "Network.requestWillBeSent", "params": {"request": {"url": url}}});
        quiet(&[request("file:///x"), json!({"method": "Page.loadEventFired"})], "file:///x").unwrap();
        for event in [request("https://fonts.example/"), json!({"method": "Runtime.exceptionThrown"}), json!({"method": "Log.entryAdded"})]
        {
            assert!(quiet(&[event], "file:///x").is_err());
        }
    }
}
