//! What the command line asks for.

/// The command line's words.
pub struct Arguments {
    /// The number after `n=`.
    pub iterations: u64,
    only: Option<&'static str>,
}

/// How often each operation runs unless told.
const ITERATIONS: u64 = 4096;

impl Arguments {
    /// Reads a command line. Words that are not known are passed over.
    pub fn parse(line: &'static str) -> Self {
        let text = |name: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        Self { iterations: text("n").and_then(|number| number.parse().ok()).unwrap_or(ITERATIONS).max(1), only: text("only") }
    }

    /// Whether the command line asks for an operation; `default` is the answer if it names none at all.
    pub fn wants(&self, operation: &str, default: bool) -> bool {
        self.only.map_or(default, |only| only.split(',').any(|name| name == operation))
    }
}
