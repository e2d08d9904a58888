//! Curves over the number of CPUs.

use svg::Document;
use svg::node::element::{Group, Path, Rectangle, Style, Text, Title};

/// Some curves with one scale.
pub struct Panel {
    pub title: &'static str,
    pub curves: Vec<Curve>,
}

pub struct Curve {
    pub name: &'static str,
    /// For each number of CPUs.
    pub values: Vec<f64>,
}

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const COLUMN: f64 = 456.0;
const ROW: f64 = 210.0;
/// The plot in a panel.
const LEFT: f64 = 56.0;
const TOP: f64 = 34.0;
const PLOT: (f64, f64) = (270.0, 130.0);

const STYLE: &str = "text{font:12px sans-serif;fill:#222}.title{font-weight:bold}.page{fill:#fff}.axis{stroke:#999;fill:none}\
    .c0{stroke:#1f6fb4}.c1{stroke:#d9731a}.c2{stroke:#3c9440}.curve{fill:none;stroke-width:2}";

/// Draws the panels, two beside each other.
pub fn draw(cpus: &[usize], panels: &[Panel]) -> String {
    let height = 2.0 * MARGIN + ROW * panels.len().div_ceil(2) as f64;
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("role", "img")
        .add(Title::new("The scheduler simulated on 2 to 512 CPUs"))
        .add(Style::new(STYLE))
        .add(Rectangle::new().set("class", "page").set("width", WIDTH).set("height", height));
    for (index, panel) in panels.iter().enumerate() {
        let (left, top) = (MARGIN + (index % 2) as f64 * COLUMN, MARGIN + (index / 2) as f64 * ROW);
        document = document.add(draw_panel(cpus, panel).set("transform", format!("translate({left},{top})")));
    }
    document.to_string() + "\n"
}

fn draw_panel(cpus: &[usize], panel: &Panel) -> Group {
    let (width, height) = PLOT;
    let most = panel.curves.iter().flat_map(|curve| &curve.values).copied().fold(1.0, f64::max);
    let x = |place: usize| LEFT + width * place as f64 / (cpus.len() - 1).max(1) as f64;
    let y = |value: f64| TOP + height * (1.0 - value / most);
    let axes = format!("M{LEFT},{TOP}V{}H{}", y(0.0), LEFT + width);
    let mut group =
        Group::new().add(text(panel.title, 0.0, 14.0).set("class", "title")).add(Path::new().set("class", "axis").set("d", axes));
    group = group.add(text(&number(most), 0.0, TOP + 4.0)).add(text("0", 0.0, y(0.0)));
    for (place, cpus) in cpus.iter().enumerate() {
        group = group.add(text(&cpus.to_string(), x(place) - 6.0, y(0.0) + 16.0));
    }
    group = group.add(text("CPUs", LEFT + width + 14.0, y(0.0) + 16.0));
    for (index, curve) in panel.curves.iter().enumerate() {
        let points = curve.values.iter().enumerate().map(|(place, &value)| format!("{:.1},{:.1}", x(place), y(value)));
        let path = Path::new().set("class", format!("curve c{index}")).set("d", format!("M{}", points.collect::<Vec<_>>().join("L")));
        let at = TOP + 12.0 + 16.0 * index as f64;
        let key = Path::new().set("class", format!("curve c{index}")).set("d", format!("M{},{}h12", LEFT + width + 6.0, at - 4.0));
        group = group.add(path).add(key).add(text(curve.name, LEFT + width + 22.0, at));
    }
    group
}

fn text(content: &str, x: f64, y: f64) -> Text {
    Text::new(content).set("x", x).set("y", y)
}

fn number(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}
