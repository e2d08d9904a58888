//! Selection of a CPU's vector table.

use crate::arch::aarch64::host::speculation;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

unsafe extern "C" {
    static vectors: u8;
    static nested_vectors: u8;
    static plain_vectors: u8;
    static trapping_vectors: u8;
    static direct_vectors: u8;
    static ablated_vectors: u8;
    static traced_vectors: u8;
    static traced_nested_vectors: u8;
    static traced_plain_vectors: u8;
    static traced_trapping_vectors: u8;
    static traced_direct_vectors: u8;
}

/// Vector tables of `exit.S`, `nested/exit.S` and `direct.S`, in the order of `speculation.S`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Vectors {
    /// vCPUs without an EL2.
    Ordinary,
    /// vCPUs with an EL2 whose HCR_EL2.E2H is set, with FEAT_NV2.
    Redirected,
    /// vCPUs with an EL2 whose HCR_EL2.E2H is set, without FEAT_NV2.
    Trapping,
    /// vCPUs with an EL2 whose HCR_EL2.E2H is clear.
    Plain,
    /// vCPUs with direct interrupts.
    Direct,
}

impl Vectors {
    /// Address of the table itself.
    pub fn address(self) -> u64 {
        match self {
            Vectors::Ordinary => &raw const vectors as u64,
            Vectors::Redirected => &raw const nested_vectors as u64,
            Vectors::Trapping => &raw const trapping_vectors as u64,
            Vectors::Plain => &raw const plain_vectors as u64,
            Vectors::Direct => &raw const direct_vectors as u64,
        }
    }

    /// Address of the variant of the table with the mitigations of this CPU.
    pub fn base(self) -> u64 {
        speculation::in_front_of(self as usize).unwrap_or_else(|| self.address())
    }

    /// Address of the variant of the table that records exits for a trace, with the mitigations of this CPU.
    fn traced_base(self) -> u64 {
        let address = || match self {
            Vectors::Ordinary => &raw const traced_vectors as u64,
            Vectors::Redirected => &raw const traced_nested_vectors as u64,
            Vectors::Trapping => &raw const traced_trapping_vectors as u64,
            Vectors::Plain => &raw const traced_plain_vectors as u64,
            Vectors::Direct => &raw const traced_direct_vectors as u64,
        };
        speculation::in_front_of(Vectors::ALL.len() + self as usize).unwrap_or_else(address)
    }

    /// All tables in order.
    const ALL: [Vectors; 5] = [Vectors::Ordinary, Vectors::Redirected, Vectors::Trapping, Vectors::Plain, Vectors::Direct];
}

/// Selects the recording or the ordinary variant of this CPU's table. Returns whether that changed the table. A later
/// choice of a table, such as at load, selects an ordinary variant: call this again.
pub fn trace(on: bool) -> bool {
    let current = read_sysreg!(VBAR_EL2);
    let other = Vectors::ALL.into_iter().find_map(|table| {
        let (plain, traced) = (table.base(), table.traced_base());
        let (from, to) = if on { (plain, traced) } else { (traced, plain) };
        (current == from).then_some(to)
    });
    if let Some(base) = other {
        write_sysreg!(VBAR_EL2, base);
    }
    other.is_some()
}

/// Address of the table for vCPUs without an EL2 and without direct interrupts. Once the VMs have been created, that is the
/// one of `ablation.S` if a VM has `ablate`.
pub fn base() -> u64 {
    if crate::vm::all().any(|vm| vm.techniques.ablate.is_some()) { &raw const ablated_vectors as u64 } else { Vectors::Ordinary.base() }
}
