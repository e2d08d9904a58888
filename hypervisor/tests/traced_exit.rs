//! The budget of a traced exit: what the path that records has more than the ordinary one.

use std::fs;
use std::path::Path;

/// Instructions that a traced exit may take more.
const BUDGET: usize = 25;

/// The lines of an exit path that only the recording one has, without what is not on the way of an exit that neither sends nor gets interrupts.
fn marked(file: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/arch").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut lines, mut aside) = (Vec::new(), false);
    for line in text.lines().filter_map(|line| line.strip_prefix("//@traced")) {
        match line.trim() {
            // Of two variants, the second one is longer.
            ".subsection 1" => aside = true,
            line if line.starts_with(".if ") => aside = true,
            ".previous" | ".else" => aside = false,
            line if !aside => lines.push(line.to_owned()),
            _ => {}
        }
    }
    lines
}

/// The instructions of a macro among them; without a name, those outside of macros, as far as a call.
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

/// All of an exit that a stub handles: at the vector, and before the entry.
fn total(file: &str, at_vector: usize) -> usize {
    let lines = marked(file);
    at_vector + instructions(&lines, Some("record_interrupts")) + instructions(&lines, Some("record_exit"))
}

#[test]
fn a_traced_exit_keeps_its_budget() {
    // At the vector: two, of which x86-64 has copies for exits of L2s and of vCPUs with a gate; and about leaving, which is not counted here.
    let totals = [("aarch64/exit/exit.S", 2, 2 + 3 + 2), ("x86_64/exit/exit.S", 2, 2 + 2 + 2 + 3 + 2)];
    for (file, at_vector, outside) in totals {
        assert_eq!(instructions(&marked(file), None), outside, "{file}: what is outside of macros has changed");
        let total = total(file, at_vector);
        assert!(total <= BUDGET, "{file}: a traced exit takes {total} instructions more");
        assert!(total > BUDGET / 2, "{file}: only {total} instructions were found");
        eprintln!("{file}: {total}");
    }
}
