//! A strict reader of OpenMetrics text 1.0, for tests: of the output of [`stile metrics`](super), without exemplars, time
//! stamps and histograms.

use std::collections::HashSet;

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Constant labels.
    Info,
}

/// A series and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name of the sample, with the suffix of its kind.
    pub name: String,
    /// Type of the metric family.
    pub kind: Kind,
    /// Names and values.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: f64,
}

impl Series {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|label| label.0 == name).map(|label| label.1.as_str())
    }

    /// The labels, as the text has them unless characters are escaped.
    pub fn labels_text(&self) -> String {
        let labels: Vec<String> = self.labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
    }
}

/// The family whose lines are read.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: Option<Kind>,
    unit: String,
}

/// Reads a complete exposition.
///
/// # Errors
/// The first line that the format does not allow.
pub fn parse(text: &str) -> Result<Vec<Series>, String> {
    let Some(lines) = text.strip_suffix("# EOF\n") else { return Err("no # EOF at the end".into()) };
    if !lines.is_empty() && !lines.ends_with('\n') {
        return Err("a line without an end".into());
    }
    let (mut family, mut families, mut seen, mut found) = (Family::default(), HashSet::new(), HashSet::new(), Vec::new());
    for line in lines.split_terminator('\n') {
        let wrong = |why: &str| format!("{why}: {line:?}");
        if let Some(rest) = line.strip_prefix("# ") {
            let [keyword, name, value] = rest.splitn(3, ' ').collect::<Vec<_>>()[..] else { return Err(wrong("no metadata")) };
            if name != family.name {
                if !families.insert(name.to_owned()) {
                    return Err(wrong("a family in two places"));
                }
                family = Family { name: name.to_owned(), ..Family::default() };
            }
            match keyword {
                "HELP" => {}
                "TYPE" => family.kind = Some(kind(value).ok_or_else(|| wrong("unknown type"))?),
                "UNIT" => family.unit = value.to_owned(),
                _ => return Err(wrong("unknown metadata")),
            }
            if !family.unit.is_empty() && !family.name.ends_with(&format!("_{}", family.unit)) {
                return Err(wrong("the unit is not in the name"));
            }
            continue;
        }
        let series = series(line, &family).ok_or_else(|| wrong("not a series of the family"))?;
        if !seen.insert((series.name.clone(), series.labels.clone())) {
            return Err(wrong("a series twice"));
        }
        if series.kind == Kind::Counter && (series.value.is_nan() || series.value < 0.0) {
            return Err(wrong("a counter below 0"));
        }
        found.push(series);
    }
    Ok(found)
}

fn kind(name: &str) -> Option<Kind> {
    match name {
        "counter" => Some(Kind::Counter),
        "gauge" => Some(Kind::Gauge),
        "info" => Some(Kind::Info),
        _ => None,
    }
}

fn series(line: &str, family: &Family) -> Option<Series> {
    let kind = family.kind?;
    let suffix = match kind {
        Kind::Counter => "_total",
        Kind::Gauge => "",
        Kind::Info => "_info",
    };
    let end = line.find(['{', ' '])?;
    let name = &line[..end];
    let mut rest = &line[end..];
    if name.strip_suffix(suffix)? != family.name || !is_name(name) {
        return None;
    }
    let mut labels: Vec<(String, String)> = Vec::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, value) = inside.split_once("=\"")?;
            let (value, after) = quoted(value)?;
            if !is_name(label) || labels.iter().any(|other| other.0 == label) {
                return None;
            }
            labels.push((label.to_owned(), value));
            match after.strip_prefix(',') {
                Some(next) => inside = next,
                None => break rest = after.strip_prefix('}')?,
            }
        }
    }
    let value = rest.strip_prefix(' ')?;
    let value = value.parse().ok().filter(|_| value.starts_with(|first: char| first.is_ascii_digit() || first == '-'))?;
    Some(Series { name: name.to_owned(), kind, labels, value })
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
}

/// A value up to its closing quote, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                plain @ ('"' | '\\') => plain,
                _ => return None,
            }),
            (_, plain) => value.push(plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_labels_are_read() {
        let text = "# HELP a_seconds Help, with = and {.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                    a_seconds_total{b=\"x\\\"\\\\\\n},c=\\\"\",d=\"\"} 1.5e3\n# EOF\n";
        let [series] = &parse(text).unwrap()[..] else { panic!() };
        assert_eq!((series.label("b"), series.label("d"), series.value), (Some("x\"\\\n},c=\""), Some(""), 1500.0));
    }

    #[test]
    fn forbidden_syntax_is_an_error() {
        let gauge = |lines: &str| format!("# HELP a Help.\n# TYPE a gauge\n{lines}# EOF\n");
        assert_eq!(parse(&gauge("a 1\n")).unwrap().len(), 1);
        for (text, why) in [
            (gauge("a 1\n").replace("# EOF\n", ""), "EOF"),
            (gauge("a 1\na 2\n"), "twice"),
            (gauge("b 1\n"), "not a series"),
            (gauge("a one\n"), "not a series"),
            (gauge("a nan\n"), "not a series"),
            (gauge("a{b=\"1\",b=\"2\"} 1\n"), "not a series"),
            (gauge("a{b=\"1} 1\n"), "not a series"),
            (gauge("a{b=\"\\t\"} 1\n"), "not a series"),
            (gauge("a 1\n# TYPE b gauge\n# TYPE a gauge\n"), "two places"),
            (gauge("a 1\n").replace("gauge", "counter"), "not a series"),
            (gauge("a_total -1\n").replace("gauge", "counter"), "below 0"),
            (gauge("# UNIT a seconds\na 1\n"), "unit"),
            (gauge("# NOTE a x\n"), "metadata"),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
