//! Chart of the figures: bars on a logarithmic scale, grouped by operation, one for each host.

use svg::node::element::{Group, Line, Rectangle, Title};

use super::host;
use super::number::{number, short};
use super::operation::Operation;
use super::platform::Platform;
use super::record::Record;
use super::sheet::{MARGIN, column, sheet, tenth, text};

/// Lengths, in pixels at the picture's natural size.
const COLUMNS: usize = 2;
const GUTTER: f64 = 32.0;
const COLUMN: f64 = column(COLUMNS, GUTTER);
/// Room for a number after the longest bar.
const NUMBERS: f64 = 44.0;
const BAR: f64 = 9.0;
const BAR_STEP: f64 = 11.0;
const LABEL: f64 = 17.0;
const GROUP_GAP: f64 = 12.0;
const TOP: f64 = 86.0;

/// A bar.
struct Bar<'r> {
    host: &'r str,
    instructions: f64,
}

/// Draws the figures of an architecture that are from CPU model `cpu`.
pub fn draw(records: &[Record], platform: &Platform, cpu: &str) -> String {
    let ours = |record: &&Record| record.arch == platform.arch && record.cpu == cpu;
    let shown: Vec<_> = records.iter().filter(ours).filter(|record| record.level == 1 && record.ablation.is_none()).collect();
    let mut hosts: Vec<&str> = Vec::new();
    for record in &shown {
        if !hosts.contains(&&record.host[..]) {
            hosts.push(&record.host);
        }
    }
    let groups: Vec<(Operation, Vec<Bar<'_>>)> = platform
        .operations
        .iter()
        .copied()
        .map(|operation| {
            let of = shown.iter().filter(|record| record.figure.operation == operation.name);
            (operation, of.map(|record| Bar { host: &record.host, instructions: record.figure.instructions }).collect::<Vec<_>>())
        })
        .filter(|(_, bars)| !bars.is_empty())
        .collect();
    let most = shown.iter().map(|record| record.figure.instructions).fold(10.0, f64::max);
    let scale = Scale { decades: most.log10().ceil() };

    let columns: Vec<_> = groups.chunks(groups.len().div_ceil(COLUMNS).max(1)).collect();
    let height = |groups: &&[(Operation, Vec<Bar<'_>>)]| groups.iter().map(|(_, bars)| group_height(bars)).sum();
    let bottom = TOP + columns.iter().map(height).fold(0.0, f64::max);
    let mut page = Group::new();
    for (column, groups) in columns.into_iter().enumerate() {
        let left = MARGIN + column as f64 * COLUMN;
        page = page.add(grid(&scale, left, bottom));
        let mut top = TOP;
        for (operation, bars) in groups {
            page = page.add(group(&scale, cpu == platform.cpu(), operation, bars, left, top));
            top += group_height(bars);
        }
    }
    let height = bottom + 62.0;
    let caption = [
        "Each figure is the whole operation, guest's and hypervisor's instructions on all CPUs, without the loop around it; the scale is logarithmic.",
        "Counted by the emulator. Instructions are not cycles: what carries over to hardware is the number of crossings.",
    ];
    for (n, line) in caption.into_iter().enumerate() {
        page = page.add(text(line, "faint", MARGIN, bottom + 34.0 + 15.0 * n as f64));
    }
    let heading = format!("Instructions per operation (-cpu {cpu})");
    sheet(&heading, height, [legend(&hosts, cpu == platform.cpu()), page])
}

/// From instructions to lengths: 1 has none.
struct Scale {
    /// Powers of ten that fit.
    decades: f64,
}

impl Scale {
    fn length(&self, instructions: f64) -> f64 {
        let room = COLUMN - GUTTER - NUMBERS;
        // The smallest values stay visible, as a line.
        tenth((instructions.max(1.0).log10() / self.decades * room).max(1.5))
    }
}

fn group_height(bars: &[Bar<'_>]) -> f64 {
    LABEL + bars.len() as f64 * BAR_STEP + GROUP_GAP
}

/// The lines of powers of ten in a column, with their numbers under them.
fn grid(scale: &Scale, left: f64, bottom: f64) -> Group {
    let mut grid = Group::new();
    for decade in 0..=scale.decades as i32 {
        let value = 10f64.powi(decade);
        let x = if decade == 0 { left } else { left + scale.length(value) };
        let line = Line::new().set("class", "grid").set("x1", x).set("x2", x).set("y1", TOP).set("y2", tenth(bottom));
        grid = grid.add(line).add(text(&number(value), "number faint", x, bottom + 11.0).set("text-anchor", "middle"));
    }
    grid
}

fn group(scale: &Scale, targets: bool, operation: &Operation, bars: &[Bar<'_>], left: f64, top: f64) -> Group {
    let mut group = Group::new().add(text(operation.name, "operation", left, top + 12.0));
    for (n, bar) in bars.iter().enumerate() {
        let y = tenth(top + LABEL + n as f64 * BAR_STEP);
        let length = scale.length(bar.instructions);
        let shape = Rectangle::new()
            .set("x", left)
            .set("y", y)
            .set("width", length)
            .set("height", BAR)
            .set("fill", colour(bar.host))
            .add(Title::new(format!("{}: {}", title(bar.host), short(bar.instructions))));
        group = group.add(shape);
        let mut end = left + length;
        if let (true, Some(target)) = (targets && bar.host.starts_with(host::STILE), operation.target) {
            let x = tenth(left + scale.length(target.into()));
            group = group.add(aim_mark(x, y - 2.0, y + BAR + 1.0));
            end = end.max(x);
        }
        group = group.add(text(&short(bar.instructions), "number", end + 4.0, y + 8.0));
    }
    group
}

fn aim_mark(x: f64, from: f64, to: f64) -> Line {
    Line::new().set("class", "target").set("x1", x).set("x2", x).set("y1", tenth(from)).set("y2", tenth(to))
}

fn legend(hosts: &[&str], targets: bool) -> Group {
    let mut legend = Group::new();
    let (mut x, y) = (MARGIN, 52.0);
    for host in hosts {
        let title = title(host);
        legend = legend.add(Rectangle::new().set("x", tenth(x)).set("y", y).set("width", 10).set("height", 10).set("fill", colour(host)));
        legend = legend.add(text(title, "", x + 15.0, y + 9.0));
        x += 15.0 + title.len() as f64 * 6.2 + 18.0;
    }
    if targets {
        legend = legend.add(aim_mark(tenth(x + 5.0), y - 1.0, y + 11.0)).add(text("the most that Stile is to cost", "", x + 12.0, y + 9.0));
    }
    legend
}

fn title(host: &str) -> &str {
    host::by_name(host).map_or(host, |known| known.title())
}

/// Both on light and on dark.
fn colour(host: &str) -> &'static str {
    match host {
        host::STILE => "#e8590c",
        "stile-software-apic" => "#fd9a5a",
        "native" => "#868e96",
        "xen" => "#2f9e44",
        "kvm-vhe" => "#1971c2",
        "kvm-nvhe" => "#4dabf7",
        "kvm-protected" => "#9775fa",
        "kvm-6.12" => "#15aabf",
        "kvm-6.1" => "#1971c2",
        _ => "#c2255c",
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::Figure;
    use super::super::platform;
    use super::*;
    use stile::config::Arch;

    fn record(host: &str, operation: &str, instructions: f64) -> Record {
        let figure = Figure {
            operation: operation.to_owned(),
            instructions,
            exits: None,
            reasons: Default::default(),
            outside: None,
            vmx: None,
            iterations: 64,
        };
        Record { host: host.to_owned(), arch: Arch::Aarch64, cpu: "max".to_owned(), level: 1, ablation: None, figure }
    }

    #[test]
    fn every_figure_has_a_bar_and_its_number() {
        let mut records = vec![record("stile", "hyp_call", 35.0), record("kvm-vhe", "hyp_call", 1634.0), record("kvm-vhe", "ipi", 5638.0)];
        let picture = draw(&records, platform::of(Arch::Aarch64), "max");
        assert_eq!(picture.matches("<title>").count(), 1 + 3);
        for number in ["35", "1,634", "5,638", "10,000", "hyp_call", "ipi"] {
            assert!(picture.contains(&format!(">{number}</text>")) || picture.contains(&format!("\n{number}\n")), "{number}");
        }
        // Figures of other CPUs and of ablations have no bars.
        records.push(Record { cpu: "cortex-a57".to_owned(), ..record("stile", "ipi", 400.0) });
        records.push(Record { ablation: Some("all".to_owned()), ..record("stile", "ipi", 900.0) });
        assert_eq!(draw(&records, platform::of(Arch::Aarch64), "max"), picture);
    }

    #[test]
    fn lengths_grow_with_the_logarithm() {
        let scale = Scale { decades: 4.0 };
        let decade = scale.length(10.0);
        assert!((scale.length(1000.0) - 3.0 * decade).abs() < 0.3);
        assert!(scale.length(10_000.0) <= COLUMN - GUTTER - NUMBERS);
        assert!(scale.length(1.0) > 0.0);
    }
}
