//! Parts of the control structures that are common to a VM's vCPUs.

/// Fields of a VMCB that are common to a VM.
pub struct Place {
    /// Physical address of the second stage's root.
    pub root: u64,
    /// Physical address of the I/O permission map.
    pub io_map: u64,
    /// Physical address of the MSR permission map.
    pub msr_map: u64,
}

impl Place {
    /// The second stage, for [`super::second_stage::invalidate`].
    pub fn second_stage(&self) -> u64 {
        self.root
    }

    /// There is no APIC-access page.
    pub fn choose_access_page(&self, _all_are_there: impl FnOnce() -> bool) {}
}
