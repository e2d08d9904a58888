//! Measured operations of L2.

use crate::operation::{self, Needs, Operation, X86_64};

/// The name of the L1 of most operations.
pub const KVM: &str = "kvm";
/// KVM with enlightened VMCSs, which runs the operations that need no other L1.
pub const ENLIGHTENED: &str = "kvm-enlightened";
/// L1s that can be chosen.
pub const L1S: [&str; 2] = [KVM, ENLIGHTENED];

/// A read of a page that L1's EPT maps, and Stile's shadow of it does not.
pub const EPT_VIOLATION: Operation = Operation { name: "ept_violation", needs: Needs::One, target: Some(2000) };
/// L1's tick while L2 runs.
const HOST_INTERRUPT: Operation = Operation { name: "host_interrupt", needs: Needs::One, target: None };

/// Operations of the probe that are measured in L2, with their maximum numbers of instructions, in the order of the
/// tables.
const CHOSEN: [(&str, Option<u32>); 8] = [
    ("cpuid", Some(3000)),
    ("vmcall", Some(3150)),
    ("rdmsr_trap", Some(3150)),
    ("port_read_pic", None),
    ("port_read", None),
    ("icr_self", None),
    ("eoi", None),
    ("tscdeadline_fire", None),
];

/// All of them, in the order of the tables.
pub fn all() -> Vec<Operation> {
    let find =
        |&(name, target): &(&str, _)| X86_64.iter().find(|operation| operation.name == name).map(|found| Operation { target, ..*found });
    CHOSEN.iter().filter_map(find).chain([HOST_INTERRUPT, EPT_VIOLATION]).collect()
}

/// The operations with these names; all without names.
///
/// # Errors
/// A sentence: unknown name.
pub fn choose(names: &[String]) -> Result<Vec<Operation>, String> {
    operation::choose(&all(), names)
}

/// The position of an operation in the tables; unknown ones are last.
pub fn place(name: &str) -> usize {
    operation::place(&all(), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chosen_operation_is_the_probes() {
        assert_eq!(all().len(), CHOSEN.len() + 2);
        assert_eq!(choose(&["ept_violation".to_owned()]).unwrap(), [EPT_VIOLATION]);
        assert!(choose(&["hyp_call".to_owned()]).unwrap_err().contains("host_interrupt"));
        assert!(place("cpuid") < place("ept_violation") && place("ept_violation") < place("hyp_call"));
    }
}
