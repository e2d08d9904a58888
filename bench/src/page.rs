//! Tables of figures, in the pages of `docs/` and on the terminal.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};

/// Replaces the text between a page's marks of this name, which name the command that writes it.
///
/// # Errors
/// The page does not have them.
pub fn fill(page: &str, name: &str, command: &str, text: &str) -> Result<String> {
    let (open, close) = (format!("<!-- {name}: written by `{command}` -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&open).with_context(|| format!("the page has no mark for {name}"))?;
    let (_, after) = rest.split_once(&close).with_context(|| format!("the page has no end of {name}"))?;
    Ok(format!("{before}{open}\n{text}\n{close}{after}"))
}

/// Rows as a table; the first one is the heading.
pub fn markdown(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (n, row) in rows.iter().enumerate() {
        // Writing to a string can't fail.
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if n == 0 {
            let _ = writeln!(text, "| --- |{}", " ---: |".repeat(row.len() - 1));
        }
    }
    text
}

/// Renders rows, of which the first is the heading, for a terminal: numbers are aligned to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut rows = rows.iter();
    if let Some(heading) = rows.next() {
        table.set_header(heading);
    }
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
