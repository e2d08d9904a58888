//! Cost of an operation on a machine with a given number of CPUs.

use serde::{Deserialize, Serialize};

use crate::counts::Sharing;

/// The operations, in the order of tables.
pub const OPERATIONS: [&str; 7] = ["hyp_call", "mmio_read_vgic", "timer", "ipi", "wfi_wake", "vcpu_switch", "ipi_wfi_shared"];

/// Counts at EL2 of one operation, on the CPUs of the VM that measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The emulated CPUs' model.
    pub cpu: String,
    /// The machine's CPUs.
    pub cpus: u32,
    /// The operation's name.
    pub operation: String,
    /// Instructions.
    pub instructions: f64,
    /// Atomic writes: a lock is one.
    pub atomics: f64,
    /// Atomic writes to cache lines that other CPUs also write atomically.
    pub shared: f64,
    /// Failed stores-exclusive.
    pub failed: f64,
    /// Polls while waiting for a lock.
    pub spins: f64,
    /// Number of measured operations.
    pub iterations: u64,
}

impl Figure {
    /// Divides counts by the number of operations.
    pub fn new(cpu: &str, cpus: u32, operation: &str, counts: &Sharing, iterations: u64) -> Self {
        let each = |count: u64| count as f64 / iterations.max(1) as f64;
        Self {
            cpu: cpu.to_owned(),
            cpus,
            operation: operation.to_owned(),
            instructions: each(counts.el2.instructions),
            atomics: each(counts.atomics),
            shared: each(counts.shared),
            failed: each(counts.failed),
            spins: each(counts.spins),
            iterations,
        }
    }

    /// Sort key: model, operation and number of CPUs.
    pub fn place(&self) -> impl Ord + use<> {
        (self.cpu.clone(), OPERATIONS.iter().position(|name| *name == self.operation), self.operation.clone(), self.cpus)
    }

    /// Whether both are figures of the same operation, machine and model.
    pub fn is_of_same(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::json_lines;

    pub fn figure(cpus: u32, operation: &str, instructions: f64) -> Figure {
        let operation = operation.to_owned();
        Figure { cpu: "max".to_owned(), cpus, operation, instructions, atomics: 3.0, shared: 1.0, failed: 0.0, spins: 0.5, iterations: 64 }
    }

    #[test]
    fn counts_are_of_each_operation() {
        let counts = Sharing { el2: Default::default(), atomics: 128, shared: 64, failed: 0, spins: 32 };
        let made = Figure { instructions: 100.0, ..Figure::new("max", 4, "ipi", &counts, 64) };
        assert_eq!(made, Figure { atomics: 2.0, ..figure(4, "ipi", 100.0) });
    }

    #[test]
    fn figures_are_read_as_they_were_written() {
        let figures = [figure(2, "ipi", 254.25), figure(64, "vcpu_switch", 800.0)];
        assert_eq!(json_lines::read::<Figure>(&json_lines::write(&figures).unwrap()).unwrap(), figures);
    }

    #[test]
    fn figures_stand_by_operation_and_then_by_cpus() {
        let mut figures = [figure(16, "vcpu_switch", 1.0), figure(16, "ipi", 1.0), figure(2, "vcpu_switch", 1.0)];
        figures.sort_by_key(Figure::place);
        assert_eq!(
            figures.map(|figure| (figure.operation, figure.cpus)),
            [("ipi", 16), ("vcpu_switch", 2), ("vcpu_switch", 16)].map(|(name, cpus)| (name.to_owned(), cpus))
        );
    }
}
