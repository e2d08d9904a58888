//! Measured operations: the probe's in L2, and a system call in L1.

use crate::operation::{self, AARCH64, Needs, Operation};

/// A system call of a program of L1's, which KVM's client makes: the return from it is an ERET that traps at virtual EL2.
pub const SYSCALL: Operation = Operation { name: "l1_syscall", needs: Needs::One, target: None };

/// Operations of L2 that are measured by default.
const DEFAULT: [&str; 7] = ["hyp_call", "mmio_read_vgic", "mmio_read_device", "ipi_self", "ipi", "timer", "eoi"];

/// All operations, in the order of the tables.
pub fn all() -> Vec<Operation> {
    AARCH64.into_iter().chain([SYSCALL]).collect()
}

/// The operations with these names, or the default ones.
///
/// # Errors
/// A sentence: unknown name, or an operation that L1 cannot run.
pub fn choose(names: &[String]) -> Result<Vec<Operation>, String> {
    let default = || DEFAULT.iter().chain([&SYSCALL.name]).map(|&name| name.to_owned()).collect();
    let operations = operation::choose(&all(), &if names.is_empty() { default() } else { names.to_vec() })?;
    match operations.iter().find(|operation| operation.needs == Needs::Shared) {
        Some(other) => Err(format!("{} needs vCPUs that share a CPU, which L1 does not guarantee", other.name)),
        None => Ok(operations),
    }
}

/// The position of an operation in the tables; unknown ones are last.
pub fn place(name: &str) -> usize {
    operation::place(&all(), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_chosen_by_name() {
        assert_eq!(choose(&[]).unwrap().len(), DEFAULT.len() + 1);
        assert_eq!(choose(&["l1_syscall".to_owned(), "eoi".to_owned()]).unwrap().last(), Some(&SYSCALL));
        assert!(choose(&["vcpu_switch".to_owned()]).unwrap_err().contains("share"));
        assert!(choose(&["hypercall".to_owned()]).unwrap_err().contains("l1_syscall"));
        assert!(place("hyp_call") < place("l1_syscall") && place("l1_syscall") < place("gone"));
    }
}
