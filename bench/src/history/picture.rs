//! The picture of a history: a curve of steps for each series, over the commits that changed figures or budgets.

use svg::node::element::{Circle, Group, Path, Title};

use super::commits::Version;
use super::series::{Series, Step};
use crate::number::short;
use crate::sheet::{MARGIN, column, sheet, tenth, text};

/// Lengths, in pixels at the picture's natural size.
const TOP: f64 = 60.0;
const COLUMNS: usize = 3;
const GUTTER: f64 = 28.0;
const COLUMN: f64 = column(COLUMNS, GUTTER);
/// A curve with its name and numbers, and the curve alone.
const ROW: f64 = 92.0;
const CURVE: f64 = 44.0;
const LABEL: f64 = 18.0;

/// Draws the series over these versions.
pub fn draw(versions: &[Version], series: &[Series], cpu: &str) -> String {
    let height = TOP + series.len().div_ceil(COLUMNS) as f64 * ROW + MARGIN;
    let mut page = Group::new();
    for (index, series) in series.iter().enumerate() {
        let left = MARGIN + (index % COLUMNS) as f64 * COLUMN;
        page = page.add(curve(versions, series, left, TOP + (index / COLUMNS) as f64 * ROW));
    }
    let heading = format!("Instructions per operation over the repository's commits (-cpu {cpu})");
    sheet(&heading, height, [page])
}

/// One series: from 0 to its largest value, with a dot at each change that names its commit.
fn curve(versions: &[Version], series: &Series, left: f64, top: f64) -> Group {
    let room = COLUMN - GUTTER;
    let place = |step: &Step| versions.iter().position(|version| version.commit == step.commit).unwrap_or(0);
    let x = |at: usize| tenth(left + at as f64 / (versions.len() - 1).max(1) as f64 * room);
    let most = series.steps.iter().map(|step| step.instructions).fold(1.0, f64::max);
    let y = |instructions: f64| tenth(top + LABEL + CURVE * (1.0 - instructions / most));

    let name = format!("{} ({})", series.operation, series.source.name());
    let mut group = Group::new().add(text(&name, "operation", left, top + 10.0));
    let mut path = String::new();
    for step in &series.steps {
        let (x, y) = (x(place(step)), y(step.instructions));
        path += &if path.is_empty() { format!("M{x},{y}") } else { format!("H{x}V{y}") };
        let what = format!("{} {}: {} ({})", step.commit.date, step.commit.id, short(step.instructions), step.commit.subject);
        group = group.add(Circle::new().set("cx", x).set("cy", y).set("r", 2.5).set("class", "target").add(Title::new(what)));
    }
    path += &format!("H{}", tenth(left + room));
    let base = Path::new().set("class", "grid").set("d", format!("M{left},{0}H{1}", y(0.0), tenth(left + room)));
    let line = Path::new().set("class", "target").set("fill", "none").set("d", path);
    group = group.add(base).add(line);
    if let [first, .., last] = &series.steps[..] {
        let numbers = format!("{} to {}", short(first.instructions), short(last.instructions));
        group = group.add(text(&numbers, "number faint", left, top + LABEL + CURVE + 12.0));
    } else if let [only] = &series.steps[..] {
        group = group.add(text(&short(only.instructions), "number faint", left, top + LABEL + CURVE + 12.0));
    }
    group
}

#[cfg(test)]
mod tests {
    use super::super::commits::Commit;
    use super::super::series::Source;
    use super::*;

    #[test]
    fn each_change_names_its_commit() {
        let commit = |id: &str| Commit { id: id.to_owned(), date: "2026-11-02".to_owned(), subject: "a <b> & c".to_owned() };
        let version = |id| Version { commit: commit(id), figures: String::new(), budgets: String::new() };
        let step = |id, instructions| Step { commit: commit(id), instructions, exits: None };
        let series = Series { operation: "ipi".to_owned(), source: Source::Figure, steps: vec![step("aaa", 293.0), step("ccc", 126.0)] };
        let picture = draw(&[version("aaa"), version("bbb"), version("ccc")], &[series], "max");
        assert_eq!(picture.matches("<circle").count(), 2);
        assert!(picture.contains("2026-11-02 ccc: 126 (a &lt;b&gt; &amp; c)"), "{picture}");
        assert!(picture.contains("293 to 126"));
    }
}
