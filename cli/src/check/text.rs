//! Lines and tables of an explanation.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

/// A table whose columns are `header`'s, indented; the columns in `right` are numbers.
pub fn table(header: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
        if right.contains(&column.index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string().lines().map(|line| format!("  {}\n", line.trim_end())).collect()
}

/// Adds a line; writing to a string can't fail.
pub fn line(text: &mut String, line: &str) {
    let _ = writeln!(text, "{}", line.trim_end());
}
