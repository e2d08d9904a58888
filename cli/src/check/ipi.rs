//! Explains what follows from `ipi = "direct"`.

use crate::config::MachineConfig;

/// Explains whether `ipi = "direct"` of the `index`th virtual machine is in force, and what follows: a line each.
pub fn explain(_config: &MachineConfig, _index: usize) -> Vec<String> {
    vec!["trapped: ipi = \"direct\" is not supported on this architecture yet".to_owned()]
}
