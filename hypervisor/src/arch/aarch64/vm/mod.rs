//! AArch64 state of VMs and vCPUs: second stage, ID registers, interrupt controller, power states.

mod create;
mod doorbells;
mod flash;
mod load;
pub mod second_stage;
pub mod stolen_time;
mod tables;
mod vcpu;

use core::ops::Range;
use core::sync::atomic::AtomicU64;

use stile_blob::Techniques;
use stile_board::map;
use stile_device::psci::PowerTable;
use stile_lock::TicketLock;
use stile_nested_arm::forward::Masks;
use stile_paging::frames::Piece;
use stile_paging::table::{Error, PageTable, Stage2};
use stile_paging::vmid::VmidSlot;
use stile_sched::CpuSet;
use stile_vgic::Distributor;

pub use doorbells::Doorbells;
use flash::Flash;
use stolen_time::StolenTime;
use tables::VmTables;
pub use vcpu::Vcpu;

use crate::arch::aarch64::assigned::Functions;
use crate::arch::aarch64::interrupts::claims::{self, Claim};
use crate::arch::aarch64::interrupts::delivery::Targets;
use crate::arch::aarch64::interrupts::direct;
use crate::arch::aarch64::interrupts::read_shadow::ReadShadow;
use crate::arch::aarch64::interrupts::trusted::Trust;
use crate::arch::aarch64::nested;
use crate::arch::aarch64::vcpu::id_registers;
use crate::arch::contract::{SecondStage, VmPart};
use crate::arena::Arena;
use crate::cpu::SCHEDULE;
use crate::served::{self, Served};

/// AArch64 state of a VM.
pub struct Vm {
    /// ID registers in the guest's view, by CRm and op2.
    pub id_registers: [u64; 64],
    /// Guest-physical extent of RAM.
    pub ram: Range<u64>,
    /// Second stage.
    pub tables: VmTables,
    vmid: VmidSlot,
    /// CNTVOFF_EL2 of this VM: ticks for which it was paused; 0 if it has an EL2. Changes only while no VMID is in
    /// force.
    held_time: AtomicU64,
    /// Behind a pointer, so that fields that all VMs use are close together.
    nested: Option<&'static nested::support::Shared>,
    /// Assigned PCI functions, if any.
    pub functions: Option<&'static Functions>,
    /// Devices that it serves, or that others serve it, if any.
    pub served: Option<&'static Served>,
    /// Its doorbells.
    pub doorbells: Doorbells,
    /// Its number.
    number: usize,
    /// Flash for firmware variables, if it starts from firmware.
    pub flash: Option<&'static Flash>,
    /// Stolen time of its vCPUs, in the guest's view.
    pub stolen_time: StolenTime,
    /// CPUs that it has claimed.
    _claim: Option<Claim>,
    /// State of a trusted VM, whose vCPUs send SGIs without exits while direct.
    pub trust: Option<Trust>,
    /// Distributor. In memory of its own: it is larger than the rest, and the frame that creates a VM holds copies of that.
    pub distributor: &'static TicketLock<Distributor>,
    /// vCPUs to which other VMs send SPIs, if it serves devices or others serve it: it is never destroyed then.
    pub targets: Option<&'static Targets>,
    /// Registers of the distributor that are read without its lock.
    pub read_shadow: ReadShadow,
    /// PSCI power states of its vCPUs. In memory of their own: a load reaches only the first 16 KiB of a VM.
    pub power: &'static TicketLock<PowerTable>,
}

impl VmPart for Vm {
    fn memory(config: &stile_blob::Vm<'_>) -> u64 {
        if config.firmware == 0 { 0 } else { map::FLASH_SIZE }
    }

    type Tables = PageTable<Stage2>;

    fn tables(arena: &'static Arena) -> Result<PageTable<Stage2>, &'static str> {
        tables::empty(arena)
    }

    fn reserve(tables: &mut PageTable<Stage2>, part: &Piece, arena: &'static Arena) -> Result<(), &'static str> {
        tables::reserve_ram(tables, part, arena)
    }

    fn new(
        number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        tables: PageTable<Stage2>,
        techniques: Techniques,
        arena: &'static Arena,
    ) -> Result<Vm, &'static str> {
        Vm::create(number, config, pieces, tables, techniques, arena)
    }

    fn obstacle_to_direct(number: usize, cpus: &CpuSet) -> Option<&'static str> {
        claims::obstacle(number, cpus, &SCHEDULE.online())
    }

    fn reset(&self, number: usize) {
        // First: until then a server may signal an interrupt.
        if let Some(served) = self.served {
            served.reset();
        }
        direct::discard_late(number);
        let mut distributor = self.distributor.lock();
        distributor.reset();
        self.read_shadow.update_all(&distributor);
        drop(distributor);
        self.power.lock().reset();
        if let Some(trust) = &self.trust {
            trust.reset();
        }
        if let Some(flash) = self.flash {
            flash.reset(|readable| self.show_flash(flash, readable));
        }
        if let Some(functions) = self.functions {
            functions.reset();
        }
    }

    fn map_ram(&self, part: &Piece) -> Result<(), Error> {
        self.tables.map_ram(part)
    }

    fn protect_ram(&self, part: &Piece) -> bool {
        self.tables.protect_ram(part)
    }

    fn permit_page(&self, page: u64) -> bool {
        self.tables.permit_page(page)
    }

    fn permit_ram(&self, part: &Piece) {
        self.tables.permit_ram(part);
    }

    fn unmap_ram(&self, gpa: u64, size: u64) {
        self.tables.unmap(gpa, size);
        if let Some(served) = self.served {
            served.unmap_ram(gpa, size);
        }
    }

    fn complete_unmap(&self) {
        match self.served {
            // Also the servers' translations, whose VMIDs are not loaded on this CPU.
            Some(served) if !served.links().is_empty() => self.tables.invalidate_all(),
            _ => self.tables.complete_unmap(),
        }
    }

    fn tear_down(&self) {
        if let Some(nested) = self.nested {
            nested.shadows.reset();
        }
        if let Some(functions) = self.functions {
            functions.stop();
        }
        served::server_ended(self.number);
    }

    fn ended(&self) {
        if let Some(served) = self.served {
            served.client_ended();
        }
    }

    fn is_quiet(&self) -> bool {
        self.served.is_none_or(Served::is_quiet)
    }

    fn functions_ready_at(&self) -> u64 {
        self.functions.map_or(0, |functions| functions.list.ready_at())
    }

    fn start_functions(&self) {
        if let Some(functions) = self.functions {
            functions.start(self);
        }
    }
}

impl SecondStage for Vm {
    fn map_device(&self, gpa: u64, pa: u64, size: u64) -> Result<(), Error> {
        self.tables.map_device(gpa, pa, size)
    }

    fn unmap_device(&self, gpa: u64, size: u64) {
        self.tables.unmap_device(gpa, size);
    }
}

impl Vm {
    /// PARange of the guest's view, in bits.
    pub fn pa_bits(&self) -> u8 {
        id_registers::PA_BITS
    }

    /// Maps the flash for reading, or unmaps it, on the CPU of one of the VM's vCPUs.
    pub fn show_flash(&self, flash: &Flash, readable: bool) {
        self.tables.show_flash(&flash.piece(), readable);
    }

    /// State for vCPUs with an EL2. Panics if the VM has none.
    fn nested(&self) -> &nested::support::Shared {
        self.nested.unwrap_or_else(|| unreachable!("only vCPUs with an EL2 come here"))
    }

    /// Shadow second stages of its own VMs.
    pub fn shadows(&self) -> &nested::shadows::Shadows {
        &self.nested().shadows
    }

    /// Trap controls of EL2 that its virtual processor implements.
    pub fn masks(&self) -> &Masks {
        &self.nested().masks
    }
}
