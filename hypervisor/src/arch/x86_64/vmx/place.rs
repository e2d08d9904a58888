//! Parts of the control structures that are common to a VM's vCPUs.

use super::access_page::AccessPage;

/// Fields of a VMCS that are common to a VM.
pub struct Place {
    /// EPT pointer.
    pub ept: u64,
    /// Physical addresses of the I/O bitmaps.
    pub io_bitmaps: [u64; 2],
    /// Physical addresses of the MSR bitmaps, with and without exits for IA32_TSC_DEADLINE.
    pub msr_bitmaps: [u64; 2],
    /// MSR bitmaps of vCPUs in x2APIC mode, if the processor virtualizes some of its registers.
    pub x2apic_bitmaps: [u64; 2],
    /// APIC-access page, if the processor virtualizes it.
    pub apic_access: Option<AccessPage>,
}

impl Place {
    /// Pointer to the second stage, for [`super::second_stage::invalidate`].
    pub fn second_stage(&self) -> u64 {
        self.ept
    }

    /// Maps the APIC-access page only while `all_are_there`: all APICs are at the default address.
    pub fn choose_access_page(&self, all_are_there: impl FnOnce() -> bool) {
        if let Some(page) = &self.apic_access {
            page.choose(all_are_there);
        }
    }
}
