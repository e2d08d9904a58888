//! x86-64 state of VMs and vCPUs: second stage, bitmaps, power states.

pub mod cpuid;
mod create;
pub mod guest_memory;
pub mod invalidations;
mod load;
pub mod protected;
pub mod shared;
pub mod stolen_time;
mod tables;
mod vcpu;
mod watch;

use core::sync::atomic::{AtomicBool, Ordering};

use stile_apic::IoApic;
use stile_blob::{Techniques, Topology};
use stile_lock::TicketLock;
use stile_paging::frames::{MAX_PIECES, Piece};
use stile_paging::table::{Error, PageTable};

use crate::arch::contract::{SecondStage, ServedPart, VmPart};
use crate::arch::x86_64::assigned::Functions;
use crate::arch::x86_64::emulation::devices::Devices;
use crate::arch::x86_64::host::cpu::this_index;
use crate::arch::x86_64::host::cpuid::Table;
use crate::arch::x86_64::virt::descriptors::Direct;
use crate::arch::x86_64::virt::nested;
use crate::arch::x86_64::virt::place::Place;
use crate::arch::x86_64::virt::second_stage::{self, Format};
use crate::arena::Arena;
use crate::served::{self, Served};
use invalidations::Invalidations;
use protected::Protected;
use tables::VmTables;
pub use vcpu::Vcpu;

/// x86-64 state of a VM.
pub struct Vm {
    /// Its number.
    number: usize,
    /// Constant CPUID answers.
    pub cpuid: Table,
    /// Topology of its vCPUs.
    pub topology: Topology,
    /// Extent of RAM.
    memory: heapless::Vec<Piece, MAX_PIECES>,
    /// Second stage.
    pub tables: VmTables,
    /// VMCS fields common to its vCPUs.
    pub place: Place,
    /// I/O APIC.
    pub io_apic: TicketLock<IoApic>,
    /// State of direct IPIs, if configured.
    pub direct: Option<Direct>,
    /// Decode cache of the protecting scheme.
    pub protected: Option<Protected>,
    /// VMX of its vCPUs, if its VM is nested.
    pub nested: Option<nested::Offer>,
    /// Assigned PCI functions, if any.
    pub functions: Option<&'static Functions>,
    /// Devices that it serves, or is served, if any.
    pub served: Option<&'static Served>,
    /// CPUs whose TLBs may have translations of windows, if it serves devices.
    pub window_invalidations: Option<&'static Invalidations>,
    /// Mode of its vCPUs' APICs after a reset.
    starts_in_x2apic_mode: bool,
    /// Whether [`Vm::load`] and [`Vm::put`] have work.
    pub follows_loads: bool,
    /// PC-specific devices.
    pub devices: Devices,
    /// The operator was informed of a deadlock: see [`crate::arch::x86_64::interrupts::deadlock`].
    pub silence_reported: AtomicBool,
}

impl VmPart for Vm {
    type Tables = PageTable<Format>;

    fn tables(arena: &'static Arena) -> Result<PageTable<Format>, &'static str> {
        tables::empty(arena)
    }

    fn reserve(tables: &mut PageTable<Format>, part: &Piece, arena: &'static Arena) -> Result<(), &'static str> {
        tables::reserve_ram(tables, part, arena)
    }

    fn new(
        number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        tables: PageTable<Format>,
        techniques: Techniques,
        arena: &'static Arena,
    ) -> Result<Vm, &'static str> {
        Vm::create(number, config, pieces, tables, techniques, arena)
    }

    fn reset(&self, _number: usize) {
        // Before the interrupt controllers: until then a server may signal an interrupt.
        if let Some(served) = self.served {
            served.reset();
        }
        self.io_apic.lock().reset();
        self.silence_reported.store(false, Ordering::Relaxed);
        // Resets all local APICs as well.
        self.place.choose_access_page(|| !self.starts_in_x2apic_mode);
        self.devices.reset();
        if let Some(offer) = &self.nested {
            offer.reset();
        }
        if let Some(protected) = &self.protected {
            protected.clear(|| ());
        }
        if let Some(functions) = self.functions {
            functions.list.reset();
        }
    }

    fn map_ram(&self, part: &Piece) -> Result<(), Error> {
        self.tables.map_ram(part)
    }

    fn protect_ram(&self, part: &Piece) -> bool {
        self.tables.protect_ram(part)
    }

    fn permit_page(&self, page: u64) -> bool {
        self.tables.permit_page(self.protected.as_ref(), page)
    }

    fn permit_ram(&self, part: &Piece) {
        self.tables.permit_ram(self.protected.as_ref(), part);
    }

    fn unmap_ram(&self, gpa: u64, size: u64) {
        self.tables.unmap(gpa, size);
        if let Some(served) = self.served {
            served.unmap_ram(gpa, size);
        }
    }

    fn complete_unmap(&self) {
        second_stage::invalidate(self.place.second_stage());
        if let Some(served) = self.served {
            // A server reaches this RAM, which remains the VM's, by stale translations until its CPUs have invalidated them.
            served.servers().for_each(|server| server.arch.invalidate_windows());
        }
    }

    fn tear_down(&self) {
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

    /// Keeps the tables: other CPUs walk them until they have invalidated their translations, for which this one does not wait. Until then
    /// they access the function, which is the VM's own, at the former address.
    fn unmap_device(&self, gpa: u64, size: u64) {
        self.tables.unmap(gpa, size);
        if let Some(functions) = self.functions {
            functions.invalidations.request();
            functions.invalidations.catch_up(this_index());
        }
    }
}

impl Vm {
    /// Whether the 2 MiB around an address are RAM without a gap, which a large page maps.
    pub fn has_large_page(&self, gpa: u64) -> bool {
        const LARGE: u64 = 2 << 20;
        let start = gpa & !(LARGE - 1);
        self.memory
            .iter()
            .any(|piece| start.checked_sub(piece.gpa).is_some_and(|into| into + LARGE <= piece.size && (piece.pa + into) % LARGE == 0))
    }

    /// Physical address of a guest-physical address in RAM.
    #[inline(always)]
    pub fn physical(&self, gpa: u64) -> Option<u64> {
        self.memory.iter().find_map(|piece| Some(piece.pa + gpa.checked_sub(piece.gpa).filter(|&into| into < piece.size)?))
    }
}
