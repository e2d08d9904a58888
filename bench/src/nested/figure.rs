//! Cost of an operation of L2 under one L0, as a line of JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::exits;
use super::operations::SYSCALL;
use crate::counts::Section;
use crate::host::Outside;
use crate::operation::Operation;

/// Cost of one operation of L2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// L0's name.
    pub host: String,
    /// L1's name.
    pub l1: String,
    /// The emulated CPUs' model.
    pub cpu: String,
    /// The operation's name.
    pub operation: String,
    /// Instructions of L0, L1 and L2, without the loop's.
    pub instructions: f64,
    /// The part in L0.
    #[serde(flatten)]
    pub l0: Outside,
    /// Exits of L2 to L0 per operation, by reason.
    pub l2_exits: BTreeMap<String, f64>,
    /// Exits of L1 to L0 per operation, by reason.
    pub l1_exits: BTreeMap<String, f64>,
    /// Number of operations that were measured.
    pub iterations: u64,
}

impl Figure {
    /// Returns the figure for `iterations` operations of L2, from the plugin's counts between the marks.
    pub fn new([host, l1]: [&str; 2], cpu: &str, operation: &Operation, instructions: f64, iterations: u64, section: &Section) -> Self {
        let each = |reasons: &BTreeMap<String, u64>| {
            let counts = reasons.iter().map(|(reason, count)| (named(reason).to_owned(), *count));
            exits::per_operation(counts, iterations)
        };
        let (marker, others) = (each(&section.reasons), each(&section.other_reasons));
        // It is L1 that marks its own system calls.
        let (l2_exits, l1_exits) = if operation.name == SYSCALL.name { (others, marker) } else { (marker, others) };
        Self {
            host: host.to_owned(),
            l1: l1.to_owned(),
            cpu: cpu.to_owned(),
            operation: operation.name.to_owned(),
            instructions,
            l0: Outside::of_each(&section.el2, iterations),
            l2_exits,
            l1_exits,
            iterations,
        }
    }

    /// Exits of L2 and L1 per operation.
    pub fn exits(&self) -> f64 {
        exits::total([&self.l2_exits, &self.l1_exits])
    }

    /// Whether both are figures of the same operation, L0, L1 and CPU model.
    pub fn is_of_same(&self, other: &Self) -> bool {
        (&self.host, &self.l1, &self.cpu, &self.operation) == (&other.host, &other.l1, &other.cpu, &other.operation)
    }
}

/// The plugin's reason without its prefix.
fn named(reason: &str) -> &str {
    reason.trim_start_matches("system register ")
}

#[cfg(test)]
pub mod tests {
    use super::super::l0::L0;
    use super::super::l1::L1;
    use super::super::operations;
    use super::super::setup::Setup;
    use super::*;
    use crate::counts::Counts;
    use crate::json_lines;

    /// A figure of 64 operations that had these exits, in a VM of KVM's.
    pub fn figure(l0: L0, operation: &str, l2: &[(&str, u64)], l1: &[(&str, u64)]) -> Figure {
        figure_of(Setup { l1: L1::Kvm, l0 }, operation, l2, l1)
    }

    /// Returns a figure from exits of the marker and exits of others.
    pub fn figure_of(setup: Setup, operation: &str, marker: &[(&str, u64)], others: &[(&str, u64)]) -> Figure {
        let none = Counts::default();
        let reasons = |given: &[(&str, u64)]| given.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let section = Section {
            guest: none,
            outside: none,
            el2: Counts { instructions: 64_000, sysreg_reads: 64 * 31, ..none },
            exits: marker.iter().map(|(_, count)| count).sum(),
            other_exits: others.iter().map(|(_, count)| count).sum(),
            reasons: reasons(marker),
            other_reasons: reasons(others),
            sharing: None,
        };
        let operation = operations::choose(&[operation.to_owned()]).unwrap()[0];
        Figure::new([setup.l0.name(), setup.l1.name()], "max", &operation, 3796.0, 64, &section)
    }

    #[test]
    fn exits_of_a_tick_are_left_out() {
        let figure = figure(L0::Nv2, "hyp_call", &[("HVC", 64), ("IRQ", 1)], &[("ERET", 65), ("system register ICH_MISR_EL2 read", 64)]);
        assert_eq!(figure.l2_exits, BTreeMap::from([("HVC".to_owned(), 1.0)]));
        assert_eq!(figure.l1_exits["ICH_MISR_EL2 read"], 1.0);
        assert_eq!((figure.exits() * 64.0, figure.l0.instructions, figure.l0.sysreg_reads), (193.0, 1000.0, 31.0));
    }

    #[test]
    fn l1_marks_its_own_system_calls() {
        let figure = figure(L0::Nv2, "l1_syscall", &[("ERET", 64)], &[]);
        assert_eq!((figure.l2_exits.len(), figure.l1_exits["ERET"]), (0, 1.0));
    }

    #[test]
    fn figures_are_read_as_they_were_written() {
        let figures = [figure(L0::Kvm, "timer", &[("IRQ", 64)], &[]), figure(L0::Nv, "eoi", &[], &[])];
        assert_eq!(json_lines::read::<Figure>(&json_lines::write(&figures).unwrap()).unwrap(), figures);
    }
}
