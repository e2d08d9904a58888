//! The command line.

/// The command line's arguments.
pub struct Arguments {
    /// The number after `n=`.
    pub iterations: u64,
    /// Whether the command line has the word `endless`.
    pub endless: bool,
    /// Whether the command line has the word `counters`.
    pub counters: bool,
    only: Option<&'static str>,
}

/// Default number of iterations of each operation.
const ITERATIONS: u64 = 4096;

impl Arguments {
    /// Parses a command line. Unknown words are ignored.
    pub fn parse(line: &'static str) -> Self {
        let text = |name: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let iterations = text("n").and_then(|number| number.parse().ok()).unwrap_or(ITERATIONS).max(1);
        let has = |name: &str| line.split_ascii_whitespace().any(|word| word == name);
        Self { iterations, endless: has("endless"), counters: has("counters"), only: text("only") }
    }

    /// Whether the command line selects an operation; `default` applies if it selects none.
    pub fn wants(&self, operation: &str, default: bool) -> bool {
        self.only.map_or(default, |only| only.split(',').any(|name| name == operation))
    }
}
