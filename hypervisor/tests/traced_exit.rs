//! Budget of a traced exit: the instructions that recording adds to an ordinary exit.

use std::fs;
use std::path::Path;

/// Maximum number of instructions that recording may add to an exit.
const BUDGET: usize = 25;

/// Returns the lines that only the recording exit path has: those with `mark` before them, without those that an exit that neither
/// sends nor receives interrupts does not execute.
fn marked(file: &str, mark: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/arch").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut lines, mut aside) = (Vec::new(), false);
    for line in text.lines().filter_map(|line| line.strip_prefix(mark)) {
        match line.trim() {
            // Out of line, or the first of two variants: the second one (`.else`) is longer, and counted.
            ".subsection 1" => aside = true,
            line if line.starts_with(".if ") => aside = true,
            ".previous" | ".else" | ".endif" => aside = false,
            line if !aside => lines.push(line.to_owned()),
            _ => {}
        }
    }
    lines
}

/// Counts the instructions in `lines`: those of the macro `name`, or those outside of macros if `name` is `None`. Labels,
/// comments, directives and uses of the `record_*` macros do not count.
fn instructions(lines: &[String], name: Option<&str>) -> usize {
    let head = name.map(|name| format!(".macro {name}"));
    let mut inside = head.is_none();
    let mut count = 0;
    for line in lines {
        let word = line.split_whitespace().next().unwrap_or_default();
        if word == ".macro" {
            inside = head.as_ref().is_some_and(|head| line == head || line.starts_with(&format!("{head} ")));
        } else if word == ".endm" {
            inside = head.is_none();
        } else if inside && !word.starts_with("//") && !word.starts_with('.') && !word.starts_with("record_") && !word.is_empty() {
            // A label may stand before the instruction.
            count += usize::from(!word.ends_with(':') || line.split_whitespace().nth(1).is_some_and(|next| !next.starts_with("//")));
        }
    }
    count
}

#[test]
fn a_traced_exit_keeps_its_budget() {
    // Marked lines outside of the macros `record_*`: those of an exit that a stub handles, and all. The others are those of leaves, and of leaving
    // a vCPU, which the budget does not cover; on VMX, also those at the vector for exits of L2 and for vCPUs with a gate.
    const MARK: &str = "//@traced";
    let paths = [
        ("aarch64/exit/exit.S", ("aarch64/exit/exit.S", MARK), 2, 2 + 3 + 2),
        ("x86_64/vmx/exit/exit.S", ("x86_64/record.S", ""), 2 + 3, 2 + 2 + 2 + 3 + 3 + 2),
        ("x86_64/svm/exit.S", ("x86_64/record.S", ""), 2 + 1, 2 + 1 + 1 + 3 + 2),
    ];
    for (file, (macros, mark), of_stub, all) in paths {
        let outside = instructions(&marked(file, MARK), None);
        assert_eq!(outside, all, "{file}: the instructions outside of macros have changed: adapt this test");
        let macros = marked(macros, mark);
        let total = of_stub + instructions(&macros, Some("record_interrupts")) + instructions(&macros, Some("record_exit"));
        assert!(total <= BUDGET, "{file}: recording adds {total} instructions to an exit; the budget is {BUDGET}");
        assert!(total > BUDGET / 2, "{file}: found only {total} instructions: does this test still understand the file?");
        eprintln!("{file}: {total}");
    }
}
