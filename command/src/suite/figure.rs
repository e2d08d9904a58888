//! Numbers that a guest prints, which a test shows and limits. They count instructions or ticks of emulated machines,
//! never real time.

use stile::out;

/// A number on a run's standard output.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Text before it.
    pub after: &'static str,
    /// Its maximum.
    pub most: u64,
}

impl Figure {
    /// Shows the figure's line below the test's name. Returns the problem if there is none, or if the number is too
    /// large.
    pub fn problem(self, test: &str, output: &str) -> Option<String> {
        let Some((line, number)) = self.find(output) else {
            return Some(format!("standard output has no number after {:?}", self.after));
        };
        let shown = out::line(format_args!("    {test}: {line}")).err().map(|error| error.to_string());
        (number > self.most).then(|| format!("{number} exceeds {}: {line}", self.most)).or(shown)
    }

    fn find(self, output: &str) -> Option<(&str, u64)> {
        output.lines().find_map(|line| {
            let (_, rest) = line.split_once(self.after)?;
            let digits = rest.split(|char: char| !char.is_ascii_digit()).next()?;
            Some((line.trim(), digits.parse().ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_and_limited() {
        let output = "crowded: up\none | crowded: longest wait 1205 ticks, 1.2 slices\n";
        let problem = |after, most| Figure { after, most }.problem("test", output);
        assert_eq!(problem("longest wait ", 1205), None);
        assert!(problem("longest wait ", 1204).is_some_and(|problem| problem.contains("1205 exceeds 1204")));
        assert!(problem("crowded: ", 1).is_some_and(|problem| problem.contains("no number")));
    }
}
