//! The reference model of tables: a map of ranges.

use std::collections::BTreeMap;

/// A mapped range: its output address and attributes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run<A> {
    end: u64,
    output: u64,
    attributes: A,
}

/// Input ranges, by their first address.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference<A>(BTreeMap<u64, Run<A>>);

impl<A: Copy + PartialEq> Reference<A> {
    pub fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Splits the range that contains `address` there.
    fn cut(&mut self, address: u64) {
        let Some((&start, &run)) = self.0.range(..address).next_back() else {
            return;
        };
        if address < run.end {
            self.0.insert(start, Run { end: address, ..run });
            self.0.insert(address, Run { output: run.output + (address - start), ..run });
        }
    }

    fn runs_in(&self, start: u64, end: u64) -> Vec<u64> {
        self.0.range(start..end).map(|(&start, _)| start).collect()
    }

    /// The first mapped address in `start..end`.
    pub fn first_mapped(&mut self, start: u64, end: u64) -> Option<u64> {
        self.cut(start);
        self.0.range(start..end).next().map(|(&start, _)| start)
    }

    pub fn map(&mut self, address: u64, output: u64, size: u64, attributes: A) {
        self.0.insert(address, Run { end: address + size, output, attributes });
    }

    /// Returns the number of bytes that were mapped.
    pub fn unmap(&mut self, start: u64, end: u64) -> u64 {
        self.cut(start);
        self.cut(end);
        let runs = self.runs_in(start, end);
        runs.into_iter().map(|start| self.0.remove(&start).unwrap().end - start).sum()
    }

    /// Returns the number of mapped bytes.
    pub fn protect(&mut self, start: u64, end: u64, change: impl Fn(A) -> A) -> u64 {
        self.cut(start);
        self.cut(end);
        let mut mapped = 0;
        for start in self.runs_in(start, end) {
            let run = self.0.get_mut(&start).unwrap();
            run.attributes = change(run.attributes);
            mapped += run.end - start;
        }
        mapped
    }

    pub fn translate(&self, address: u64) -> Option<(u64, A)> {
        let (start, run) = self.0.range(..=address).next_back()?;
        (address < run.end).then(|| (run.output + (address - start), run.attributes))
    }

    /// A copy with mergeable ranges merged.
    pub fn joined(&self) -> Self {
        let mut joined: BTreeMap<u64, Run<A>> = BTreeMap::new();
        for (&start, &run) in &self.0 {
            match joined.last_entry() {
                Some(mut last)
                    if last.get().end == start
                        && last.get().attributes == run.attributes
                        && last.get().output + (start - last.key()) == run.output =>
                {
                    last.get_mut().end = run.end;
                }
                _ => drop(joined.insert(start, run)),
            }
        }
        Self(joined)
    }
}
