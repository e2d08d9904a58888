//! Cost of an operation of L2 on a PC, as a line of JSON.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stile_ledger::x86_64::key;

use crate::nested::exits;
use crate::vmx::{Section, Vmx};

/// Cost of one operation of L2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// L1's name.
    pub l1: String,
    /// The emulated CPU's model.
    pub cpu: String,
    /// The operation's name.
    pub operation: String,
    /// Instructions of Stile, L1 and L2, without the loop's.
    pub instructions: f64,
    /// The part in Stile.
    pub instructions_outside: f64,
    /// VMX instructions of Stile.
    #[serde(flatten)]
    pub vmx: Vmx,
    /// Exits of L2 to Stile per operation, by reason.
    pub l2_exits: BTreeMap<String, f64>,
    /// Exits of L1 to Stile per operation, by reason.
    pub l1_exits: BTreeMap<String, f64>,
    /// Number of measured operations.
    pub iterations: u64,
}

impl Figure {
    /// Returns the figure of a number of operations of L2 from the emulator's counts.
    pub fn new([l1, cpu, operation]: [&str; 3], instructions: f64, iterations: u64, section: &Section) -> Self {
        let [l2_exits, l1_exits] = section.by_level();
        let each = |exits: BTreeMap<u16, u64>| {
            let counts = exits.into_iter().map(|(reason, count)| (key::exit_reason(reason.into()).to_string(), count));
            exits::per_operation(counts, iterations)
        };
        Self {
            l1: l1.to_owned(),
            cpu: cpu.to_owned(),
            operation: operation.to_owned(),
            instructions,
            instructions_outside: section.instructions() as f64 / iterations as f64,
            vmx: section.of_each(&Section::default(), iterations),
            l2_exits: each(l2_exits),
            l1_exits: each(l1_exits),
            iterations,
        }
    }

    /// Exits of L2 and L1 per operation.
    pub fn exits(&self) -> f64 {
        exits::total([&self.l2_exits, &self.l1_exits])
    }

    /// Compares exits, then instructions.
    pub fn cmp_cost(&self, other: &Self) -> Ordering {
        self.exits().total_cmp(&other.exits()).then(self.instructions.total_cmp(&other.instructions))
    }

    /// Whether both are figures of the same operation, L1 and CPU model.
    pub fn is_of_same(&self, other: &Self) -> bool {
        (&self.l1, &self.cpu, &self.operation) == (&other.l1, &other.cpu, &other.operation)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::json_lines;
    use crate::vmx;

    /// A figure of 64 operations, with a tick of L1's.
    pub fn figure(operation: &str) -> Figure {
        let counts = r#"{"exits":{"1":1,"10":64,"24":65},"marker_exits":{"1":1,"10":64},"all_instructions":204800,"instructions":51200,"vmcs_reads":1280,"vmcs_writes":640,"msr_writes":0,"sharing":{"instructions":0,"atomics":0,"shared":0,"failed":0,"spins":0}}"#;
        Figure::new(["kvm", "pc", operation], 2949.0, 64, &vmx::parse(counts).unwrap()[0])
    }

    #[test]
    fn exits_are_those_of_l2_or_l1() {
        let figure = figure("cpuid");
        assert_eq!(figure.l2_exits, BTreeMap::from([("CPUID".to_owned(), 1.0)]));
        assert_eq!(figure.l1_exits.keys().collect::<Vec<_>>(), ["VMRESUME"]);
        assert_eq!((figure.instructions_outside, figure.vmx.vmcs_reads, figure.vmx.vmcs_writes), (800.0, 20.0, 10.0));
        assert!((figure.exits() - 2.0).abs() < 0.1);
    }

    #[test]
    fn fewer_exits_cost_less_whatever_the_instructions() {
        let [cheap, tick] = [(64, 3000.0), (65, 2900.0)].map(|(resumes, instructions)| {
            let counts = format!(
                r#"{{"exits":{{"10":64,"24":{resumes}}},"marker_exits":{{"10":64}},"all_instructions":1,"instructions":1,"vmcs_reads":0,"vmcs_writes":0,"msr_writes":0,"sharing":{{"instructions":0,"atomics":0,"shared":0,"failed":0,"spins":0}}}}"#
            );
            Figure::new(["kvm", "pc", "cpuid"], instructions, 64, &vmx::parse(&counts).unwrap()[0])
        });
        assert_eq!(cheap.cmp_cost(&tick), Ordering::Less);
        let other = Figure { instructions: 3001.0, ..cheap.clone() };
        assert_eq!(cheap.cmp_cost(&other), Ordering::Less);
    }

    #[test]
    fn figures_are_read_as_they_were_written() {
        let figures = [figure("cpuid"), figure("eoi")];
        assert_eq!(json_lines::read::<Figure>(&json_lines::write(&figures).unwrap()).unwrap(), figures);
    }
}
