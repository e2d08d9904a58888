//! Cost of an operation on a machine with a given number of CPUs.

use serde::{Deserialize, Serialize};

use crate::counts::OwnCpus;
use crate::operation::{BROADCAST, BROADCAST_OF_PC, RESTART};
use crate::platform;
use stile::config::Arch;

/// Arm's operations, in the order of tables.
const AARCH64: [&str; 9] =
    ["hyp_call", "mmio_read_vgic", "timer", "ipi", BROADCAST.name, "wfi_wake", "vcpu_switch", "ipi_wfi_shared", RESTART.name];
/// A PC's: the corresponding ones, and one of vCPUs that spin.
const X86_64: [&str; 9] = [
    "vmcall",
    "lapic_timer_read",
    "tscdeadline_fire",
    "ipi",
    BROADCAST_OF_PC.name,
    "ipi_hlt",
    "ipi_hlt_shared",
    "ipi_shared",
    RESTART.name,
];

/// The operations of an architecture, in the order of tables.
pub const fn operations(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::Aarch64 => &AARCH64,
        Arch::X86_64 => &X86_64,
    }
}

/// A machine's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// CPUs.
    pub cpus: u32,
    /// Places of the busy VMs.
    pub load: Load,
}

/// Places of the VMs that do not measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// One on each CPU that the VM that measures has not.
    OnEachCpu,
    /// All on the last CPU.
    OnOneCpu {
        /// VMs of the machine, at least 2, including the one that measures.
        vms: u32,
    },
}

/// Counts outside of guests of one operation, on the CPUs of the VM that measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The emulated CPUs' model.
    pub cpu: String,
    /// The host, unless it is Stile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The machine's CPUs.
    pub cpus: u32,
    /// The machine's VMs, of which all but the one that measures share a CPU; absent if each other CPU has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vms: Option<u32>,
    /// The operation's name.
    pub operation: String,
    /// Instructions.
    pub instructions: f64,
    /// Atomic writes: a lock is one.
    pub atomics: f64,
    /// Atomic writes to cache lines that other CPUs also write atomically.
    pub shared: f64,
    /// Failed stores-exclusive or compare-exchanges.
    pub failed: f64,
    /// Polls while waiting for a lock.
    pub spins: f64,
    /// Number of measured operations.
    pub iterations: u64,
}

impl Figure {
    /// Divides counts by the number of operations.
    pub fn new(cpu: &str, Machine { cpus, load }: Machine, operation: &str, counts: &OwnCpus, iterations: u64) -> Self {
        let each = |count: u64| count as f64 / iterations.max(1) as f64;
        Self {
            cpu: cpu.to_owned(),
            host: None,
            cpus,
            vms: match load {
                Load::OnOneCpu { vms } => Some(vms),
                Load::OnEachCpu => None,
            },
            operation: operation.to_owned(),
            instructions: each(counts.instructions),
            atomics: each(counts.atomics),
            shared: each(counts.shared),
            failed: each(counts.failed),
            spins: each(counts.spins),
            iterations,
        }
    }

    /// Sort key: model, host, operation and number of CPUs.
    pub fn place(&self) -> impl Ord + use<> {
        let position = operations(self.arch()).iter().position(|name| *name == self.operation);
        (self.cpu.clone(), self.host.clone(), position, self.operation.clone(), self.vms, self.cpus)
    }

    /// The architecture of the machine.
    pub fn arch(&self) -> Arch {
        platform::of_cpu(&self.cpu).arch
    }

    /// Whether both are figures of the same operation, host, machine and model.
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
        Figure {
            cpu: "max".to_owned(),
            host: None,
            cpus,
            vms: None,
            operation,
            instructions,
            atomics: 3.0,
            shared: 1.0,
            failed: 0.0,
            spins: 0.5,
            iterations: 64,
        }
    }

    #[test]
    fn counts_are_of_each_operation() {
        let counts = OwnCpus { instructions: 6400, atomics: 128, shared: 64, failed: 0, spins: 32 };
        assert_eq!(
            Figure::new("max", Machine { cpus: 4, load: Load::OnEachCpu }, "ipi", &counts, 64),
            Figure { atomics: 2.0, ..figure(4, "ipi", 100.0) }
        );
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
