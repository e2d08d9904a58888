//! Figures of Stile as a picture: a curve of instructions for each operation over the number of CPUs, on a logarithmic axis.

use std::collections::BTreeSet;

use svg::node::element::{Circle, Group, Path, Title};

use super::figure::Figure;
use crate::number::{number, short};
use crate::sheet::{MARGIN, column, sheet, tenth, text};

/// Lengths, in pixels at the picture's natural size.
const TOP: f64 = 60.0;
const COLUMNS: usize = 3;
const GUTTER: f64 = 36.0;
const COLUMN: f64 = column(COLUMNS, GUTTER);
/// A curve with its name and numbers, and the curve alone.
const ROW: f64 = 130.0;
const CURVE: f64 = 72.0;
const LABEL: f64 = 18.0;

/// Draws the figures.
pub fn draw(figures: &[Figure]) -> String {
    let figures: Vec<Figure> = figures.iter().filter(|figure| figure.vms.is_none() && figure.host.is_none()).cloned().collect();
    let cpus: Vec<u32> = figures.iter().map(|figure| figure.cpus).collect::<BTreeSet<_>>().into_iter().collect();
    let curves: Vec<&[Figure]> = figures.chunk_by(|one, other| one.operation == other.operation).collect();
    let height = TOP + curves.len().div_ceil(COLUMNS) as f64 * ROW + MARGIN;
    let mut page = Group::new();
    for (index, figures) in curves.iter().enumerate() {
        let left = MARGIN + (index % COLUMNS) as f64 * COLUMN;
        page = page.add(curve(&cpus, figures, left, TOP + (index / COLUMNS) as f64 * ROW));
    }
    let heading = "Instructions of Stile per operation over the number of CPUs, all others busy";
    sheet(heading, height, [page])
}

/// The curve of an operation, from 0 to its largest value.
fn curve(cpus: &[u32], figures: &[Figure], left: f64, top: f64) -> Group {
    let room = COLUMN - GUTTER - 12.0;
    let place = |number: u32| cpus.iter().position(|cpus| *cpus == number).unwrap_or(0);
    let x = |number: u32| tenth(left + 6.0 + place(number) as f64 / (cpus.len() - 1).max(1) as f64 * room);
    let most = figures.iter().map(|figure| figure.instructions).fold(1.0, f64::max);
    let y = |instructions: f64| tenth(top + LABEL + CURVE * (1.0 - instructions / most));
    let name = figures.first().map_or("", |figure| &figure.operation);
    let mut group = Group::new().add(text(name, "operation", left, top + 10.0));
    let mut line = String::new();
    for figure in figures {
        let (x, y) = (x(figure.cpus), y(figure.instructions));
        line += &format!("{}{x},{y}", if line.is_empty() { 'M' } else { 'L' });
        let what = format!(
            "{} CPUs: {} instructions, {} atomic writes ({} shared), {} spins",
            figure.cpus,
            short(figure.instructions),
            number(figure.atomics),
            number(figure.shared),
            number(figure.spins)
        );
        group = group.add(Circle::new().set("cx", x).set("cy", y).set("r", 2.5).set("class", "target").add(Title::new(what)));
    }
    let base = Path::new().set("class", "grid").set("d", format!("M{left},{0}H{1}", y(0.0), tenth(left + room + 12.0)));
    group = group.add(base).add(Path::new().set("class", "target").set("fill", "none").set("d", line));
    for number in cpus {
        group = group.add(text(&number.to_string(), "number faint", x(*number) - 4.0, top + LABEL + CURVE + 12.0));
    }
    if let (Some(first), Some(last)) = (figures.first(), figures.last()) {
        let range = format!("{} to {}", short(first.instructions), short(last.instructions));
        group = group.add(text(&range, "number faint", left + room - 60.0, top + 10.0));
    }
    group
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;

    #[test]
    fn each_operation_has_a_curve_and_each_figure_a_dot() {
        let picture = draw(&[figure(2, "ipi", 200.0), figure(64, "ipi", 250.0), figure(64, "vcpu_switch", 710.0)]);
        assert_eq!(picture.matches("<circle").count(), 3);
        assert!(picture.contains("64 CPUs: 250 instructions, 3 atomic writes (1 shared), 0.5 spins"), "{picture}");
        assert!(picture.contains("200 to 250"));
    }
}
