//! The operations that the probe measures (`guests/probe`), and the virtual CPUs that each needs.

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The probe's name for it.
    pub name: &'static str,
    /// Its requirements.
    pub needs: Needs,
    /// Target for its instructions under Stile, shown in pictures and tables. Not enforced, unlike its budget
    /// (`bench/budgets.toml`).
    pub target: Option<u32>,
}

/// The CPUs that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// One virtual CPU on one physical CPU.
    One,
    /// Two virtual CPUs, each pinned to a physical CPU.
    Two,
    /// Two virtual CPUs that share a physical one.
    Shared,
}

impl Needs {
    /// Number of virtual CPUs.
    pub const fn vcpus(self) -> u16 {
        match self {
            Self::One => 1,
            Self::Two | Self::Shared => 2,
        }
    }

    /// Number of physical CPUs.
    pub const fn cpus(self) -> u32 {
        match self {
            Self::One | Self::Shared => 1,
            Self::Two => 2,
        }
    }
}

impl Operation {
    /// Whether it can be measured together with others, in one run.
    pub fn joins_others(&self) -> bool {
        self.needs == Needs::One && self.name != FIRE_DIRECT
    }
}

const fn operation(name: &'static str, needs: Needs, target: Option<u32>) -> Operation {
    Operation { name, needs, target }
}

/// Arm's operations, in the order in which tables show them.
pub static AARCH64: [Operation; 15] = [
    operation("hyp_call", Needs::One, Some(45)),
    operation("sysreg_trap", Needs::One, Some(55)),
    operation("mmio_read_vgic", Needs::One, Some(110)),
    operation("mmio_read_vgic_isenabler", Needs::One, Some(140)),
    operation("mmio_read_device", Needs::One, Some(110)),
    operation("eoi", Needs::One, None),
    operation("ipi_self", Needs::One, Some(150)),
    operation("timer", Needs::One, Some(120)),
    operation("timer_wfi", Needs::One, Some(120)),
    operation("ipi", Needs::Two, Some(300)),
    operation("ipi_wfi", Needs::Two, Some(300)),
    operation("wfi_wake", Needs::Two, None),
    operation("vcpu_switch", Needs::Shared, Some(500)),
    operation("ipi_wfi_shared", Needs::Shared, Some(600)),
    operation("ipi_shared", Needs::Shared, None),
];

/// Arm: an SGI to all other vCPUs of a VM. Its cost depends on their number, so that only `--scale` measures it.
pub const BROADCAST: Operation = operation("sgi_broadcast", Needs::Two, None);

/// A PC: an IPI to all other vCPUs of a VM.
pub const BROADCAST_OF_PC: Operation = operation("ipi_broadcast", Needs::Two, None);

/// Whether an operation concerns all vCPUs of a VM, which then has all CPUs.
pub fn is_broadcast(operation: Operation) -> bool {
    matches!(operation, BROADCAST | BROADCAST_OF_PC)
}

/// A restart of a VM, by itself: its end, its programs' loading, and its start. The probe runs again after each, so that
/// it is measured alone.
pub const RESTART: Operation = operation("restart", Needs::One, None);

/// Arm's operations that only `--scale` measures.
pub static AARCH64_SCALE: [Operation; 2] = [BROADCAST, RESTART];

/// A PC's operations that only `--scale` measures: for a budget, the suite would boot Bochs twice for each.
pub static X86_64_SCALE: [Operation; 5] = [
    BROADCAST_OF_PC,
    RESTART,
    operation("ipi_hlt", Needs::Two, None),
    operation("ipi_hlt_shared", Needs::Shared, None),
    operation("ipi_shared", Needs::Shared, None),
];

/// A timer that fires without an exit: its VM has other techniques than those of the operations that are measured together.
pub const FIRE_DIRECT: &str = "tscdeadline_fire_direct";

/// A PC's operations, in the order of tables. The local APIC is in xAPIC mode for names that end in `_xapic` and for
/// `lapic_id_read` and `lapic_timer_read`, which are loads from its page; in x2APIC mode for all others.
pub static X86_64: [Operation; 23] = [
    operation("cpuid", Needs::One, Some(60)),
    operation("vmcall", Needs::One, Some(60)),
    operation("rdmsr_trap", Needs::One, Some(60)),
    operation("port_read", Needs::One, Some(120)),
    operation("port_read_pic", Needs::One, None),
    operation("lapic_id_read", Needs::One, Some(200)),
    operation("lapic_id_read_x2apic", Needs::One, None),
    operation("lapic_timer_read", Needs::One, None),
    operation("lapic_timer_read_x2apic", Needs::One, None),
    operation("eoi", Needs::One, None),
    operation("eoi_xapic", Needs::One, None),
    operation("self_ipi", Needs::One, Some(400)),
    operation("self_ipi_xapic", Needs::One, None),
    operation("icr_self", Needs::One, Some(200)),
    operation("icr_nobody", Needs::One, Some(200)),
    operation("hlt_pending", Needs::One, Some(150)),
    operation("tscdeadline", Needs::One, Some(100)),
    operation("tscdeadline_fire", Needs::One, Some(600)),
    operation("tscdeadline_fire_xapic", Needs::One, None),
    operation(FIRE_DIRECT, Needs::One, None),
    operation("ipi", Needs::Two, None),
    operation("ipi_gate", Needs::Two, None),
    operation("ipi_direct", Needs::Two, None),
];

/// Operations of a PC with AMD-V, in the order of tables. Time is real there: the exits of the last three, which involve a timer or another
/// CPU, vary slightly from run to run.
pub static AMD_V: [Operation; 13] = [
    operation("cpuid", Needs::One, Some(60)),
    operation("vmmcall", Needs::One, Some(60)),
    operation("rdmsr_trap", Needs::One, Some(60)),
    operation("port_read", Needs::One, Some(90)),
    operation("port_read_pic", Needs::One, None),
    operation("lapic_id_read", Needs::One, Some(200)),
    operation("eoi", Needs::One, None),
    operation("self_ipi", Needs::One, None),
    operation("icr_nobody", Needs::One, None),
    operation("hlt_pending", Needs::One, None),
    operation("tscdeadline_fire", Needs::One, None),
    operation("ipi", Needs::Two, Some(400)),
    operation("ipi_hlt", Needs::Two, None),
];

/// Returns the operations of `all` with these names, in the order of `all`; all of them if there are no names.
///
/// # Errors
/// Unknown name; the message lists the valid ones.
pub fn choose(all: &[Operation], names: &[String]) -> Result<Vec<Operation>, String> {
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|operation| operation.name != **name)) {
        let known: Vec<_> = all.iter().map(|operation| operation.name).collect();
        return Err(format!("there is no operation called {unknown}; expected one of {}", known.join(", ")));
    }
    let wanted = |operation: &Operation| names.is_empty() || names.iter().any(|name| name == operation.name);
    Ok(all.iter().copied().filter(wanted).collect())
}

/// Returns the position of an operation in `all`, for sorting: `all.len()` for an unknown one.
pub fn place(all: &[Operation], name: &str) -> usize {
    all.iter().position(|operation| operation.name == name).unwrap_or(all.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_operations_in_the_tables_order() {
        assert_eq!(choose(&AARCH64, &[]).unwrap().len(), AARCH64.len());
        let names = ["ipi".to_owned(), "hyp_call".to_owned()];
        let chosen: Vec<_> = choose(&AARCH64, &names).unwrap().iter().map(|operation| operation.name).collect();
        assert_eq!(chosen, ["hyp_call", "ipi"]);
        assert!(choose(&AARCH64, &["hypercall".to_owned()]).unwrap_err().contains("hyp_call"));
    }
}
