//! DMA address space of a VM's functions: the VM's second stage, with the ITS's doorbell in place of the VM's
//! devices.
//!
//! Functions have a root table of their own. Its first entry leads to the doorbell; the others equal those of the
//! VM's root, whose tables are permanent ([`crate::arch::aarch64::vm::Vm::new`]). Functions therefore access the VM's
//! RAM like its vCPUs, but no BARs and nothing else.

use stile_board::map;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Attributes, ENTRIES, Level, Mapping, MemoryType, PageTable, Stage2, Stage2Permissions, TableMemory, TableRead};
use stile_smmu::{SecondStage, StreamEntry};

use crate::arch::aarch64::host::sysreg::dsb_ish;
use crate::arch::aarch64::host::{board, its};
use crate::memory::TableFrames;

/// DMA address space of a VM's functions.
pub struct Dma(SecondStage);

impl Dma {
    /// Creates the address space of VM number `vm` with this second stage.
    ///
    /// # Errors
    /// A description: the SMMU does not support the tables' format, or no memory is left.
    pub fn new(vm: usize, table: &PageTable<Stage2>, output_size: u8) -> Result<Dma, &'static str> {
        const NO_MEMORY: &str = "no memory for the tables of PCI functions";
        const _: () = assert!(map::RAM_BASE == Level::L1.size(), "RAM begins with the root's second entry");
        let (geometry, root) = (table.geometry(), table.root());
        if geometry.start() != Level::L1 {
            return Err("the SMMU can't use this CPU's second-stage tables, which do not start at level 1");
        }
        let doorbell = board::get().its.as_ref().ok_or("there is no ITS")?.start + its::TRANSLATER_PAGE;
        let own = TableFrames.allocate().ok_or(NO_MEMORY)?;
        let mut table = PageTable::new(*table.format(), geometry, own).map_err(|_| NO_MEMORY)?;
        let attributes = Attributes { memory: MemoryType::Device, permissions: Stage2Permissions::READ_WRITE };
        let mapping = Mapping { address: map::ITS_TRANSLATER & !(PAGE_SIZE - 1), output: doorbell, size: PAGE_SIZE, attributes };
        table.map(&mut TableFrames, mapping).map_err(|_| NO_MEMORY)?;
        for index in 1..ENTRIES {
            let Ok(entry) = TableFrames.read(root, index);
            TableFrames.write(own, index, entry);
        }
        dsb_ish();
        // VMID 0 belongs to no VM.
        let vmid = vm as u16 + 1;
        Ok(Dma(SecondStage { vmid, root: own, input_bits: geometry.input_bits(), start_level: 1, output_size }))
    }

    /// VMID of the VM's translations in the SMMU.
    pub fn vmid(&self) -> u16 {
        self.0.vmid
    }

    /// Stream-table entry of the functions.
    pub fn entry(&self) -> StreamEntry {
        StreamEntry::second_stage(self.0)
    }
}
