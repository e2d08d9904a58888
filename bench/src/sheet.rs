//! The frame of all pictures: size, heading, colours for light and for dark pages, and a background for programs that don't report which
//! one they show.

use svg::Document;
use svg::node::element::{Group, Rectangle, Style, Text, Title};

/// A picture's width. All lengths are in pixels at its natural size.
const WIDTH: f64 = 960.0;
/// Room at each edge.
pub const MARGIN: f64 = 24.0;

const STYLE: &str = "\
text { font: 11px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328; }
.title { font-size: 16px; font-weight: 600; }
.operation { font-size: 12px; font-weight: 600; }
.number { font-size: 9.5px; paint-order: stroke; stroke: #ffffff; stroke-width: 3px; }
.faint { fill: #59636e; }
.page { fill: #ffffff; stroke: #d1d9e0; }
.grid { stroke: #d1d9e0; }
.target { stroke: #1f2328; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.number { stroke: #0d1117; }
.faint { fill: #9198a1; }
.page { fill: #0d1117; stroke: #3d444d; }
.grid { stroke: #3d444d; }
.target { stroke: #f0f6fc; }
}";

/// Returns the distance between the left edges of columns that are `gutter` apart.
pub const fn column(columns: usize, gutter: f64) -> f64 {
    (WIDTH - 2.0 * MARGIN + gutter) / columns as f64
}

/// A picture of this height with a heading.
pub fn sheet(heading: &str, height: f64, content: impl IntoIterator<Item = Group>) -> String {
    let background = Rectangle::new()
        .set("class", "page")
        .set("x", 0.5)
        .set("y", 0.5)
        .set("width", WIDTH - 1.0)
        .set("height", tenth(height - 1.0))
        .set("rx", 6);
    let page = Document::new()
        .set("viewBox", (0, 0, WIDTH, tenth(height)))
        .set("width", WIDTH)
        .set("height", tenth(height))
        .set("role", "img")
        .add(Title::new(heading))
        .add(Style::new(STYLE))
        .add(background)
        .add(text(heading, "title", MARGIN, 34.0));
    content.into_iter().fold(page, |page, group| page.add(group)).to_string() + "\n"
}

/// Words at a place; `class` is one of the style's, or empty.
pub fn text(words: &str, class: &str, x: f64, y: f64) -> Text {
    let text = Text::new(words).set("x", tenth(x)).set("y", tenth(y));
    if class.is_empty() { text } else { text.set("class", class) }
}

/// A length to a tenth of a pixel: short, and the same everywhere.
pub fn tenth(length: f64) -> f64 {
    (length * 10.0).round() / 10.0
}
