//! A guest's output on its console.

use stile::session::plain;

use crate::marks::reach;
use crate::target::{Target, none};

/// A console that `stile` shows after a failure: no control character is left.
pub const CONSOLE: Target = Target { name: "console", run: console, seeds: none, mutations: 8000, marks: &["removed", "kept"] };

fn console(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        let plain = plain(line);
        assert!(!plain.chars().any(|char| char.is_control() && char != '\t'), "{line:?} becomes {plain:?}");
        reach(if plain == line { "kept" } else { "removed" });
    }
}
