//! The contents of an explanation, as text and as JSON.

use std::fmt::Write as _;
use std::ops::Range;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Serialize, Serializer};

use crate::config::units;
use crate::out;

/// An explanation of a machine.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// Name of the architecture.
    pub arch: &'static str,
    /// Model of the emulated CPUs.
    pub cpu_model: String,
    /// Number of physical CPUs.
    pub cpus: u32,
    /// The machine, in words.
    pub facts: Vec<Fact>,
    /// vCPUs by physical CPU; for people only: JSON has [`Vm::cpus`].
    #[serde(skip)]
    pub shared: Rows,
    /// The VMs.
    pub vms: Vec<Vm>,
    /// Possibly unintended settings.
    pub notes: Vec<String>,
}

/// An explanation of a virtual machine.
#[derive(Debug, Serialize)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Its RAM in bytes.
    pub memory: u64,
    /// By vCPU: the physical CPUs that it may run on.
    pub cpus: Vec<Vec<usize>>,
    /// The VM, in words.
    pub facts: Vec<Fact>,
    /// The map of its memory.
    pub map: Vec<Place>,
    /// Its interrupts (Arm) or port-I/O devices (x86-64).
    #[serde(flatten)]
    pub lines: Rows,
}

/// A fact: a name, and a text of one line.
#[derive(Debug, Serialize)]
pub struct Fact {
    name: String,
    text: String,
}

impl Fact {
    /// Makes one. Values come from the configuration: none may look like another line.
    pub fn new(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: out::printable(text) }
    }
}

/// A range of guest-physical addresses.
#[derive(Debug)]
pub struct Place {
    /// Its addresses.
    pub range: Range<u64>,
    /// Its contents or device.
    pub what: String,
}

impl Place {
    /// Makes one.
    pub fn new(range: Range<u64>, what: impl Into<String>) -> Self {
        Self { range, what: what.into() }
    }

    fn row(&self) -> Vec<String> {
        let Range { start, end } = self.range;
        let last = end.saturating_sub(1).max(start);
        vec![format!("{start:#012x}-{last:#012x}"), units::rounded_size(end - start), self.what.clone()]
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serde_json::json!({"start": self.range.start, "end": self.range.end, "what": self.what}).serialize(to)
    }
}

/// Rows of a table, of which the first column names the row.
#[derive(Debug, Default)]
pub struct Rows {
    /// The headings of the columns.
    header: Vec<String>,
    /// The names of the columns for programs.
    names: Vec<String>,
    /// The rows: a text for each column.
    rows: Vec<Vec<String>>,
}

impl Rows {
    /// Makes them; the headings are also the names for programs.
    pub fn new(header: &[&str], rows: Vec<Vec<String>>) -> Self {
        Self::named(header, header, rows)
    }

    /// Makes them, with names for programs of their own.
    pub fn named(header: &[&str], names: &[&str], rows: Vec<Vec<String>>) -> Self {
        let [header, names] = [header, names].map(|all| all.iter().map(|&name| name.to_owned()).collect());
        Self { header, names, rows }
    }

    /// The table, indented; the columns in `right` are numbers.
    fn text(&self, right: &[usize]) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(&self.header).add_rows(&self.rows);
        for column in table.column_iter_mut() {
            column.set_padding((0, 3));
            if right.contains(&column.index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string().lines().map(|line| format!("  {}\n", line.trim_end())).collect()
    }
}

/// An array, named after the first column, of objects with the columns as members.
impl Serialize for Rows {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let object = |row: &Vec<String>| self.names.iter().cloned().zip(row.iter().map(|text| text.as_str().into())).collect();
        let rows: Vec<serde_json::Map<String, serde_json::Value>> = self.rows.iter().map(object).collect();
        to.collect_map(self.names.first().map(|name| (format!("{}s", name.trim_end_matches('s')), rows)))
    }
}

impl Explanation {
    /// The text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        line(&mut text, "Machine");
        facts(&mut text, &self.facts);
        line(&mut text, "\nPhysical CPUs, and the vCPUs that may run on each");
        text += &self.shared.text(&[]);
        for (index, vm) in self.vms.iter().enumerate() {
            line(&mut text, &format!("\nVM {index}: {}", vm.name));
            facts(&mut text, &vm.facts);
            text += &Rows::new(&["address", "size", "what"], vm.map.iter().map(Place::row).collect()).text(&[1]);
            text += &vm.lines.text(&[]);
        }
        if !self.notes.is_empty() {
            line(&mut text, "\nNotes");
            self.notes.iter().for_each(|note| line(&mut text, &format!("  - {note}")));
        }
        text
    }
}

/// Adds facts. Those with the name of the one before continue it.
fn facts(text: &mut String, facts: &[Fact]) {
    let mut last = "";
    for fact in facts {
        let name = if CONTINUED.contains(&fact.name.as_str()) && fact.name == last { "" } else { &fact.name };
        line(text, &format!("  {name:<15}{}", fact.text));
        last = &fact.name;
    }
}

/// Facts of several lines.
const CONTINUED: [&str; 1] = ["IPIs"];

/// Adds a line; writing to a string can't fail.
fn line(text: &mut String, line: &str) {
    let _ = writeln!(text, "{}", line.trim_end());
}
