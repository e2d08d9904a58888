//! Software at EL1 and EL0, identified by its second stage.

/// System at EL1 and EL0: the table of the second stage of translation, if that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Regime(Option<u64>);

impl Regime {
    /// Address of the second-stage table, if there is one.
    pub const fn table(self) -> Option<u64> {
        self.0
    }

    /// Returns the regime without a hypervisor.
    pub const BARE: Self = Self(None);

    /// Decodes `HCR_EL2` and `VTTBR_EL2`. (VMID and CnP are ignored: the VMID can change during the VM's life.)
    pub const fn new(hcr: u64, vttbr: u64) -> Self {
        const VM: u64 = 1;
        const BADDR: u64 = 0x0000_ffff_ffff_fffe;
        Self(if hcr & VM != 0 { Some(vttbr & BADDR) } else { None })
    }
}
