//! Software at EL1 and EL0, told apart by its second stage.

/// System at EL1 and EL0: the table of the second stage of translation, if that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World(Option<u64>);

impl World {
    /// Address of the second-stage table, if there is one.
    pub const fn table(self) -> Option<u64> {
        self.0
    }

    /// With no hypervisor.
    pub const BARE: Self = Self(None);

    /// By `HCR_EL2` and `VTTBR_EL2`. (Neither the VMID nor CnP counts: the one may change while the VM lives.)
    pub const fn new(hcr: u64, vttbr: u64) -> Self {
        const VM: u64 = 1;
        const BADDR: u64 = 0x0000_ffff_ffff_fffe;
        Self(if hcr & VM != 0 { Some(vttbr & BADDR) } else { None })
    }
}
