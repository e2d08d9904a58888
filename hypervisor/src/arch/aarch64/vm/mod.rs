//! AArch64 state of VMs and vCPUs: second stage, ID registers, interrupt controller, power states.

mod flash;
pub mod second_stage;
pub mod stolen_time;

use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use stile_blob::{BinaryPoint, Interrupts, Mode, Nested, Techniques};
use stile_board::map::{self, RAM_BASE};
use stile_board::{MAX_CPUS, intid, is_last_redistributor, mpidr};
use stile_device::psci::PowerTable;
use stile_firmware::gicv2::Gicv2;
use stile_its::guest::GuestIts;
use stile_lock::TicketLock;
use stile_nested_arm::forward::Masks;
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;
use stile_paging::registers::vttbr_el2;
use stile_paging::table::{
    Attributes, ENTRIES, Error, Geometry, Invalidation, Level, Maintenance, Mapping, MemoryType, PageTable, Stage2, Stage2Permissions,
    TableRead,
};
use stile_paging::vmid::VmidSlot;
use stile_sched::{CpuSet, VcpuId};
use stile_vgic::{Config, Distributor, PendingRequests, Redistributor, Shortcuts};

use flash::Flash;
use stolen_time::StolenTime;

use crate::arch::aarch64::assigned::{self, Functions};
use crate::arch::aarch64::host::board;
use crate::arch::aarch64::host::identity::Identity;
use crate::arch::aarch64::host::speculation;
use crate::arch::aarch64::host::sysreg::{dsb_ish, isb, read_sysreg, write_sysreg};
use crate::arch::aarch64::interrupts::claims::{self, Claim};
use crate::arch::aarch64::interrupts::delivery::Targets;
use crate::arch::aarch64::interrupts::read_shadow::ReadShadow;
use crate::arch::aarch64::interrupts::trusted::{self, Trust};
use crate::arch::aarch64::interrupts::{self, direct, interface, place};
use crate::arch::aarch64::nested;
use crate::arch::aarch64::served::{self, Served};
use crate::arch::aarch64::vcpu::context::VcpuContext;
use crate::arch::aarch64::vcpu::id_registers;
use crate::arch::contract::{VcpuPart, VmPart};
use crate::arena::{self, Arena, Spare};
use crate::cpu::{SCHEDULE, classes};
use crate::memory::TableFrames;
use crate::vm::Start;

/// AArch64 state of a VM.
pub struct Vm {
    /// ID registers in the guest's view, by CRm and op2.
    pub id_registers: [u64; 64],
    /// Guest-physical extent of RAM.
    pub ram: Range<u64>,
    /// Memory for its structures.
    arena: &'static Arena,
    /// Second stage. Tables for all of RAM are preallocated.
    table: TicketLock<PageTable<Stage2>>,
    root: u64,
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

/// AArch64 state of a vCPU.
pub struct Vcpu {
    /// Index in the VM.
    pub index: usize,
    /// It has an EL2.
    pub has_el2: bool,
    context: UnsafeCell<&'static mut VcpuContext>,
    /// SGIs, PPIs, and list-register contents.
    pub redistributor: TicketLock<Redistributor>,
    /// Pending requests of other CPUs.
    pub requests: PendingRequests,
    /// State for direct interrupts, if configured.
    pub direct: Option<&'static place::Place>,
    /// It has an EL2, or is configured for direct interrupts.
    pub special: bool,
    /// Constants of its virtual CPU interface.
    pub interface: interface::Kind,
    /// Interrupts that the CPU that has it loaded delivers without the redistributor's lock.
    pub shortcuts: Shortcuts,
}

// SAFETY: `context` is accessed only through `Vcpu::context`, whose callers own the vCPU.
unsafe impl Sync for Vcpu {}

/// VTTBR_EL2.BADDR; CnP is not set.
const ROOT: u64 = 0xffff_ffff_fffe;

/// Last vCPU of each VM to run on each CPU: see [`load_second_stage`].
static LAST_RAN: [[AtomicU16; stile_board::MAX_VMS]; MAX_CPUS] =
    [const { [const { AtomicU16::new(u16::MAX) }; stile_board::MAX_VMS] }; MAX_CPUS];

/// Permissions of RAM whose writes are tracked.
const TRACKED: Stage2Permissions = Stage2Permissions::READ_EXECUTE;

/// Mapping of a part of a VM's RAM.
fn mapping(part: &Piece) -> Mapping<Stage2Permissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: Stage2Permissions::ALL };
    Mapping { address: part.gpa, output: part.pa, size: part.size, attributes }
}

/// Mapping of memory that the guest can only read, such as the flash while no command is in progress.
fn read_only(piece: &Piece) -> Mapping<Stage2Permissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: Stage2Permissions::READ };
    Mapping { attributes, ..mapping(piece) }
}

/// Maps memory that the guest can only read into the tables of a new VM.
fn map_read_only(table: &mut PageTable<Stage2>, arena: &'static Arena, piece: &Piece) -> Result<(), &'static str> {
    let mapped = table.reserve(&mut { arena }, read_only(piece)).and_then(|()| table.map(&mut { arena }, read_only(piece)));
    dsb_ish();
    mapped.map_err(|_| "there is no memory for the tables of a VM's read-only memory")
}

/// Maps a GICv2's virtual CPU interface as that of a new VM's guest, except its second page: writes of GICC_DIR trap.
fn map_interface(table: &mut PageTable<Stage2>, arena: &'static Arena, gic: &Gicv2) -> Result<(), &'static str> {
    let attributes = Attributes { memory: MemoryType::Device, permissions: Stage2Permissions::READ_WRITE };
    let page = Mapping { address: map::GICC_BASE, output: gic.gicv.start, size: PAGE_SIZE, attributes };
    let mapped = table.reserve(&mut { arena }, page).and_then(|()| table.map(&mut { arena }, page));
    dsb_ish();
    mapped.map_err(|_| "there is no memory for the tables of a VM's interrupt controller")
}

/// Checks that a VM can have the machine's interrupt controller; `machine`: its registers, if it is a GICv2.
///
/// # Errors
/// A description: the VM was made for another one, or has something that a GICv2 can't provide.
fn check_gic(config: &stile_blob::Vm<'_>, machine: Option<&Gicv2>) -> Result<(), &'static str> {
    match (config.gic == stile_blob::Gic::V2, machine.is_some()) {
        (false, false) => Ok(()),
        (true, false) => Err("a VM was made for a GICv2, and the machine has a GICv3: without `gic = 2` in [machine], or --gic 2"),
        (false, true) => Err("a VM was made for a GICv3, and the machine has a GICv2: `gic = 2` in [machine], or --gic 2"),
        (true, true) if config.vcpus > stile_blob::MAX_GICV2_VCPUS => Err("a VM with a GICv2 has at most 8 vCPUs"),
        (true, true) if config.techniques.nested != Nested::Off => {
            Err("a VM with an EL2 of its own takes a GICv3, and the machine has a GICv2")
        }
        (true, true) if config.techniques.interrupts == Interrupts::Direct => {
            Err("direct interrupts take a GICv3, and the machine has a GICv2")
        }
        (true, true) if !config.functions.is_empty() => Err("messages of PCI functions take an ITS, and the machine has a GICv2"),
        (true, true) => Ok(()),
    }
}

/// Reserves tables for a part of a server's window on another VM's RAM.
///
/// # Errors
/// No memory is left, or the CPUs' second stage is too small.
fn reserve_window(table: &mut PageTable<Stage2>, arena: &'static Arena, part: &Piece) -> Result<(), &'static str> {
    let reserved = table.reserve(&mut { arena }, mapping(part));
    reserved.map_err(|_| "the RAM of a VM's clients can't be mapped: too large for this CPU's second stage, or no memory for tables")
}

/// Mapping of a page with events for a server.
fn events(page: &Piece) -> Mapping<Stage2Permissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: Stage2Permissions::READ_WRITE };
    Mapping { attributes, ..mapping(page) }
}

/// Maps pages with events into the tables of a new server. Those of clients to come need no more tables.
fn map_events(table: &mut PageTable<Stage2>, arena: &'static Arena, served: &Served) -> Result<(), &'static str> {
    let all = Piece { gpa: map::EVENTS_BASE, pa: 0, size: map::EVENTS_SIZE };
    let mut mapped = table.reserve(&mut { arena }, events(&all));
    for page in served.event_pieces() {
        mapped = mapped.and_then(|()| table.map(&mut { arena }, events(&page)));
    }
    dsb_ish();
    mapped.map_err(|_| "there is no memory for the tables of a VM's served devices")
}

/// [`Vm::complete_unmap`] invalidates, once for several parts.
struct Deferred;

impl Maintenance for Deferred {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}
    fn complete(&mut self) {}
}

/// The identity of the CPUs that a VM's first vCPU may use.
#[inline(never)]
fn identity(config: &stile_blob::Vm<'_>) -> Identity {
    classes::identity_of(&config.cpus_of(0, &classes::usable_by(config))).unwrap_or_else(Identity::read)
}

/// Creates what the vCPUs of a VM with an EL2 share. Not inlined, because the frame of [`Vm::new`] would have room for a copy.
#[inline(never)]
fn new_nested(
    geometry: Geometry,
    vcpus: usize,
    view: &[u64; 64],
    arena: &'static Arena,
) -> Result<&'static nested::support::Shared, &'static str> {
    let place = arena.allocate()?;
    Ok(place.write(nested::support::Shared { shadows: nested::shadows::new(geometry, vcpus, arena)?, masks: Masks::new(view) }))
}

/// Takes the PCI functions of a VM. Not inlined, as [`new_nested`] is not.
#[inline(never)]
fn new_functions(
    number: usize,
    config: &stile_blob::Vm<'_>,
    table: &PageTable<Stage2>,
    arena: &'static Arena,
) -> Result<&'static Functions, &'static str> {
    let its = arena.allocate()?.write(TicketLock::new(GuestIts::new(config.functions.len(), config.vcpus.into())));
    Ok(arena.allocate()?.write(Functions::new(number, config.name, &config.functions, table, its)?))
}

/// Creates a distributor. Not inlined: a CPU's stack has no room for it beside the frames of its callers.
#[inline(never)]
fn new_distributor(vcpus: usize, intids: u32, arena: &'static Arena) -> Result<&'static mut TicketLock<Distributor>, &'static str> {
    Ok(arena.allocate()?.write(TicketLock::new(Distributor::new(vcpus, interface::shape().priority_bits, intids))))
}

/// Invalidates the current VM's second stage, and the first-stage entries that depend on it.
struct AtOnce;

impl Maintenance for AtOnce {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}

    fn complete(&mut self) {
        // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
        // its tables again.
        unsafe { core::arch::asm!("dsb ishst", "tlbi vmalls12e1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
    }
}

/// Invalidates on all CPUs when a block is divided (break-before-make), and nothing when a page gets a permission: a CPU with
/// the page's old entry faults once more, and invalidates it then ([`invalidate_page`]).
struct Division;

impl Maintenance for Division {
    fn invalidate(&mut self, invalidation: Invalidation) {
        if invalidation.level != Level::L3 {
            AtOnce.complete();
        }
    }

    fn invalidate_all(&mut self) {
        AtOnce.complete();
    }

    fn complete(&mut self) {}
}

/// Invalidates this CPU's translations by a page of the current VM's second stage, and the first-stage entries that depend on
/// it, whose virtual addresses are unknown (the manual, "TLB maintenance instructions": by IPA, then all of stage 1).
fn invalidate_page(ipa: u64) {
    // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks its tables
    // again.
    unsafe {
        core::arch::asm!("dsb ishst", "tlbi ipas2e1, {}", "dsb nsh", "tlbi vmalle1", "dsb nsh", "isb", in(reg) ipa >> 12, options(nostack, preserves_flags));
    }
}

impl VmPart for Vm {
    fn memory(config: &stile_blob::Vm<'_>) -> u64 {
        if config.firmware == 0 { 0 } else { stile_board::map::FLASH_SIZE }
    }

    type Tables = PageTable<Stage2>;

    fn tables(arena: &'static Arena) -> Result<PageTable<Stage2>, &'static str> {
        let geometry = second_stage::geometry();
        if geometry.root_size() != stile_paging::PAGE_SIZE {
            return Err("second-stage tables of this CPU would have a root of several pages");
        }
        let root = arena.allocate_pages(stile_paging::PAGE_SIZE)?;
        PageTable::new(Stage2 { forced_write_back: false }, geometry, root).map_err(|_| "a second-stage root out of reach")
    }

    fn reserve(tables: &mut PageTable<Stage2>, part: &Piece, arena: &'static Arena) -> Result<(), &'static str> {
        tables
            .reserve(&mut { arena }, mapping(part))
            .map_err(|_| "a VM's memory can't be mapped: too large for this CPU's second stage, or no memory for tables")
    }

    fn new(
        number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        mut table: PageTable<Stage2>,
        techniques: Techniques,
        arena: &'static Arena,
    ) -> Result<Vm, &'static str> {
        let vcpus = usize::from(config.vcpus);
        let gicv2 = board::get().gicv2();
        check_gic(config, gicv2)?;
        nested::support::check(techniques.nested)?;
        let (geometry, root) = (table.geometry(), table.root());
        let end = pieces.iter().fold(RAM_BASE, |end, piece| end.max(piece.gpa + piece.size));
        dsb_ish();
        let has_el2 = techniques.nested != Nested::Off;
        let flash = match config.firmware {
            0 => None,
            _ if has_el2 => return Err("a VM with an EL2 of its own can't start from firmware"),
            _ => Some(&*arena.allocate()?.write(Flash::new(arena)?)),
        };
        if let Some(flash) = flash {
            map_read_only(&mut table, arena, &flash.piece())?;
        }
        let stolen_time = StolenTime::new(vcpus, arena)?;
        map_read_only(&mut table, arena, &stolen_time.piece())?;
        if let Some(gic) = gicv2 {
            map_interface(&mut table, arena, gic)?;
        }
        let mut id_registers = id_registers::for_guests(&identity(config), has_el2, nested::support::may_clear_e2h(techniques.nested));
        if config.gic == stile_blob::Gic::V2 {
            id_registers::hide_gic(&mut id_registers);
        }
        let nested = match has_el2 {
            true => Some(new_nested(geometry, vcpus, &id_registers, arena)?),
            false => None,
        };
        let functions = match &config.functions[..] {
            [] => None,
            _ if has_el2 => return Err("a VM with an EL2 of its own can't have PCI functions"),
            _ => Some(new_functions(number, config, &table, arena)?),
        };
        let served = Served::new(number, config, pieces, arena, |part| reserve_window(&mut table, arena, part))?;
        if let Some(served) = served.filter(|_| config.serves != 0) {
            map_events(&mut table, arena, served)?;
        }
        let targets = match served {
            Some(_) => Some(&*arena.allocate()?.write(Targets::new())),
            None => None,
        };
        let (claim, trust) = match techniques.interrupts {
            Interrupts::Direct => {
                let usable = classes::usable_by(config);
                let claim = Claim::new(number, &config.cpus_of_all(&usable), &SCHEDULE.online())?;
                (Some(claim), Trust::of(number, config, techniques, &usable))
            }
            Interrupts::Virtual => (None, None),
        };
        let intids = if functions.is_some() || !config.served.is_empty() { intid::MSI_BASE + intid::MSI_COUNT } else { intid::COUNT };
        let distributor = new_distributor(vcpus, intids, arena)?;
        if config.gic == stile_blob::Gic::V2 {
            distributor.get_mut().become_gicv2();
        }
        if functions.is_some() {
            distributor.get_mut().add_lpis();
        }
        Ok(Vm {
            id_registers,
            arena,
            nested,
            functions,
            served,
            number,
            flash,
            stolen_time,
            _claim: claim,
            trust,
            ram: RAM_BASE..end,
            table: TicketLock::new(table),
            root,
            vmid: VmidSlot::new(),
            held_time: AtomicU64::new(0),
            read_shadow: ReadShadow::new(distributor.get_mut()),
            distributor,
            targets,
            power: arena.allocate()?.write(TicketLock::new(PowerTable::new(vcpus))),
        })
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
        self.table.lock().map(&mut { self.arena }, mapping(part))?;
        dsb_ish();
        Ok(())
    }

    fn protect_ram(&self, part: &Piece) -> bool {
        let mut table = self.table.lock();
        let is_whole = table.has_block(&TableFrames, part.gpa);
        let done = table.protect(&mut { self.arena }, &mut Deferred, part.gpa, part.size, TRACKED);
        debug_assert!(done.is_ok(), "parts that were mapped as they are need no memory to be protected");
        is_whole
    }

    fn permit_page(&self, page: u64) -> bool {
        let done = self.table.lock().protect(&mut Spare(self.arena), &mut Division, page, PAGE_SIZE, Stage2Permissions::ALL);
        // Also if the page was writable already: this CPU has the entry from before.
        invalidate_page(page);
        done.is_ok()
    }

    fn permit_ram(&self, part: &Piece) {
        let done = self.table.lock().protect(&mut { self.arena }, &mut AtOnce, part.gpa, part.size, Stage2Permissions::ALL);
        debug_assert!(done.is_ok(), "parts that were mapped as they are need no memory to be permitted");
        // Also if all pages were writable already: other CPUs may have entries from before, which no later fault would drop.
        AtOnce.complete();
    }

    fn unmap_ram(&self, gpa: u64, size: u64) {
        let done = self.table.lock().vacate(&mut { self.arena }, &mut Deferred, gpa, size);
        debug_assert!(done.is_ok(), "whole blocks need no memory to be unmapped");
        if let Some(served) = self.served {
            served.unmap_ram(gpa, size);
        }
    }

    fn complete_unmap(&self) {
        if !self.served.is_some_and(Served::complete_unmap) {
            AtOnce.complete();
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
        self.functions.map_or(0, Functions::ready_at)
    }

    fn start_functions(&self) {
        if let Some(functions) = self.functions {
            functions.start(self);
        }
    }
}

impl assigned::SecondStage for Vm {
    fn map_device(&self, gpa: u64, pa: u64, size: u64) -> Result<(), Error> {
        let attributes = Attributes { memory: MemoryType::Device, permissions: Stage2Permissions::READ_WRITE };
        self.table.lock().map(&mut { self.arena }, Mapping { address: gpa, output: pa, size, attributes })?;
        dsb_ish();
        Ok(())
    }

    fn unmap_device(&self, gpa: u64, size: u64) {
        // Frees tables as well: otherwise a guest that moves a BAR around would accumulate them.
        let done = self.table.lock().unmap(&mut { self.arena }, &mut AtOnce, gpa, size);
        debug_assert!(done.is_ok(), "what was mapped as a whole needs no memory to be unmapped");
    }
}

impl Vm {
    /// Reserves tables for a part of a window on another VM's RAM.
    ///
    /// # Errors
    /// Those of [`reserve_window`].
    pub fn reserve_window(&self, part: &Piece) -> Result<(), &'static str> {
        reserve_window(&mut self.table.lock(), self.arena, part)
    }

    /// Maps a part of another VM's RAM into a window, if it is not mapped yet.
    pub fn map_window(&self, part: &Piece) {
        let done = self.table.lock().map(&mut { self.arena }, mapping(part));
        debug_assert!(matches!(done, Ok(()) | Err(Error::AlreadyMapped(_))), "the tables were made when the VM was");
        dsb_ish();
    }

    /// Maps the page with the events of a device that it serves.
    pub fn map_events(&self, page: &Piece) {
        let done = self.table.lock().map(&mut { self.arena }, events(page));
        debug_assert!(done.is_ok(), "the tables were made when the VM was");
        dsb_ish();
    }

    /// Unmaps a part of a window, as far as it is mapped. Translations stay valid until they are invalidated.
    pub fn unmap_window(&self, address: u64, size: u64) {
        let done = self.table.lock().vacate(&mut { self.arena }, &mut Deferred, address, size);
        debug_assert!(done.is_ok(), "whole blocks need no memory to be unmapped");
    }

    /// Offset of its virtual counter behind the physical one, in ticks.
    pub fn held_time(&self) -> u64 {
        self.held_time.load(Ordering::Relaxed)
    }

    /// Sets its virtual counter to read `count` when the physical one reads `at`. None of its vCPUs is loaded, and it has
    /// no EL2.
    pub fn set_virtual_count(&self, count: u64, at: u64) {
        self.held_time.store(at.wrapping_sub(count), Ordering::Relaxed);
        self.vmid.forget();
    }

    /// The next load of a vCPU takes another VMID. None of its vCPUs is loaded, and it has no EL2.
    pub fn forget_translations(&self) {
        // The unmapping is visible to walks with the next VMID.
        dsb_ish();
        self.vmid.forget();
    }

    /// Adds to the offset of its virtual counter. None of its vCPUs is loaded, and it has no EL2.
    pub fn hold_time(&self, ticks: u64) {
        self.held_time.fetch_add(ticks, Ordering::Relaxed);
        // A CPU that still has the table reloads it, together with the offset.
        self.vmid.forget();
    }

    /// Loads this VM's second stage on this CPU.
    ///
    /// The CPU's TLB may have entries of another vCPU of the same VM with the same ASID for other tables: a guest may
    /// use ASIDs differently on each of its CPUs. A CPU that last ran another vCPU of this VM therefore invalidates
    /// them (locally, for this VMID).
    #[inline(always)]
    pub fn load_second_stage(&self, vm: usize, vcpu: usize, cpu: usize) {
        let before = read_sysreg!(VTTBR_EL2);
        // VMIDs in force on a CPU stay with their VMs at a rollover.
        let kept = if before & ROOT == self.root { second_stage::kept_vmid(cpu, &self.vmid) } else { None };
        let now = kept.map(|vmid| vttbr_el2(self.root, vmid));
        if now != Some(before) {
            speculation::switch_vm(cpu);
            second_stage::load_table(&self.vmid, self.root, cpu);
            // Another VM's offset may differ. This VM's changes together with its VMID.
            write_sysreg!(CNTVOFF_EL2, self.held_time());
        }
        let last = &LAST_RAN[cpu % MAX_CPUS][vm % stile_board::MAX_VMS];
        if last.load(Ordering::Relaxed) != vcpu as u16 {
            last.store(vcpu as u16, Ordering::Relaxed);
            // The instruction cache may hold instructions of another vCPU's mapping. The register write, if any, must
            // complete before the TLB instruction, which uses its VMID.
            // SAFETY: both drop cached translations and instructions only, of which Stile's own are fetched again from
            // memory that holds the same.
            unsafe { core::arch::asm!("isb", "tlbi vmalle1", "ic iallu", "dsb nsh", "isb", options(nostack, preserves_flags)) };
            if self.nested.is_some() {
                // Its guests' translations have VMIDs of their own.
                // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
                // its tables again.
                unsafe { core::arch::asm!("tlbi alle1", "dsb nsh", "isb", options(nostack, preserves_flags)) };
            }
        }
    }

    /// [`Vm::load_second_stage`] for another vCPU of a VM whose second stage is in force on this CPU, with its VMID, ID
    /// registers and CNTVOFF_EL2. No other one of the VM's vCPUs has a second stage of its own.
    ///
    /// The vCPU that was put just now ran with them, so that they are the VM's own. They stay valid while a vCPU is
    /// loaded: a rollover carries the VMIDs in force over, and [`Vm::hold_time`] finds no vCPU loaded.
    #[inline(always)]
    pub fn keep_second_stage(&self, vm: usize, vcpu: usize, cpu: usize) {
        LAST_RAN[cpu % MAX_CPUS][vm % stile_board::MAX_VMS].store(vcpu as u16, Ordering::Relaxed);
        // As in `load_second_stage`. VTTBR_EL2 was not written, and the caller's ISB precedes the guest.
        // SAFETY: both drop cached translations and instructions only, of which Stile's own are fetched again from
        // memory that holds the same.
        unsafe { core::arch::asm!("tlbi vmalle1", "ic iallu", "dsb nsh", options(nostack, preserves_flags)) };
    }

    /// Whether the VM's own second-stage root has an entry for an IPA.
    pub fn has_table_at(&self, ipa: u64) -> bool {
        let index = (ipa / Level::L1.size()) as usize;
        index < ENTRIES && TableFrames.read(self.root, index).is_ok_and(|entry| entry != 0)
    }

    /// Restores the VM's own second-stage root after that of one of its vCPUs ([`place`]). The VMID is the same.
    pub fn load_own_root(&self) {
        write_sysreg!(VTTBR_EL2, read_sysreg!(VTTBR_EL2) & !ROOT | self.root);
        isb();
    }

    /// Restores the VM's second stage after that of one of its guests.
    pub fn load_own_table(&self, cpu: usize) {
        second_stage::load_table(&self.vmid, self.root, cpu);
    }

    /// Physical address of a guest-physical address in RAM.
    pub fn translate(&self, address: u64) -> Option<nested::shadows::HostTranslation> {
        let format = Stage2 { forced_write_back: false };
        PageTable::new(format, second_stage::geometry(), self.root).ok()?.translate(&TableFrames, address).ok()
    }

    /// Whether the second stage maps an address read-only.
    pub fn is_read_only(&self, address: u64) -> bool {
        self.table.lock().translate(&TableFrames, address).is_ok_and(|found| !found.attributes.permissions.write)
    }

    /// PARange of the guest's view, in bits.
    pub fn pa_bits(&self) -> u8 {
        id_registers::PA_BITS
    }

    /// Maps the flash for reading, or unmaps it, on the CPU of one of the VM's vCPUs.
    pub fn show_flash(&self, flash: &Flash, readable: bool) {
        let mut table = self.table.lock();
        let done = match readable {
            true => table.map(&mut { self.arena }, read_only(&flash.piece())),
            false => table.vacate(&mut { self.arena }, &mut AtOnce, map::FLASH_BASE, map::FLASH_SIZE).map(|_| ()),
        };
        debug_assert!(done.is_ok(), "the tables were made when the VM was");
        dsb_ish();
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

impl VcpuPart for Vcpu {
    const MEMORY: u64 = arena::room::<VcpuContext>();

    fn memory(techniques: Techniques) -> u64 {
        let nested = if techniques.nested == Nested::Off { 0 } else { arena::room::<nested::state::Nested>() };
        let place = if techniques.interrupts == Interrupts::Direct { place::Place::MEMORY } else { 0 };
        Self::MEMORY + nested + place
    }

    fn new(id: VcpuId, of: usize, techniques: Techniques, arena: &'static Arena) -> Result<Vcpu, &'static str> {
        let index = usize::from(id.vcpu());
        let has_el2 = techniques.nested != Nested::Off;
        let shape = interface::shape();
        let common_binary_point = match techniques.binary_point {
            BinaryPoint::Own => false,
            BinaryPoint::Common => true,
            // A trusted VM reaches the physical interface, which QEMU's fault concerns in the same way.
            BinaryPoint::Auto => shape.is_ended_by_bpr1 && !has_el2 && !trusted::is_wanted(techniques),
        };
        // SAFETY: all-zero is a valid VcpuContext, which consists of integers.
        let context = unsafe { arena.allocate::<VcpuContext>()?.assume_init_mut() };
        if has_el2 {
            // SAFETY: all-zero is a valid Nested: integers, and enumerations with a variant of value 0.
            let nested = unsafe { arena.allocate::<nested::state::Nested>()?.assume_init_mut() };
            nested.nv_mode = nested::nv_mode::NvMode::new(techniques.nested);
            context.nested = Some(nested);
        }
        Ok(Vcpu {
            index,
            has_el2,
            context: UnsafeCell::new(context),
            redistributor: TicketLock::new(Redistributor::new(Config {
                vcpu: index as u8,
                last: is_last_redistributor(index, of),
                list_registers: shape.list_registers as u8,
                priority_bits: shape.priority_bits,
                preemption_bits: shape.preemption_bits,
                hw_ppis: interrupts::linked(has_el2),
                behind: interrupts::BEHIND,
                common_binary_point,
                gicv2: board::get().gicv2().is_some(),
            })),
            requests: PendingRequests::new(),
            special: has_el2 || techniques.interrupts == Interrupts::Direct,
            direct: place::Place::new(techniques, arena)?,
            interface: if common_binary_point { interface::Kind::COMMON_BINARY_POINT } else { interface::Kind::PLAIN },
            shortcuts: Shortcuts::new(),
        })
    }

    fn index(&self) -> usize {
        self.index
    }

    fn reset(&self) {
        // From the previous boot.
        let _ = self.requests.take();
        self.redistributor.lock().reset();
        // SAFETY: the vCPU is loaded nowhere, and its VM is being reset, so that nothing else accesses it.
        if let Some(nested) = &mut unsafe { self.context() }.nested {
            nested.forget_shadow();
        }
    }

    fn show_stolen_time(&self, vm: &'static crate::vm::Vm, nanoseconds: u64) {
        vm.arch.stolen_time.set(self.index, nanoseconds);
    }

    fn forward_requests(&self) -> bool {
        self.direct.is_some_and(|place| place.forward(&self.requests))
    }

    fn set_start(&self, start: &Start) {
        debug_assert!(start.mode == Mode::Reset);
        self.set_entry(start.pc, start.info);
    }
}

impl Vcpu {
    /// Registers in memory.
    ///
    /// # Safety
    /// The caller owns the vCPU: it is loading or putting it, or the vCPU is off and the caller holds the lock that
    /// keeps it off.
    #[expect(clippy::mut_from_ref, reason = "see Safety")]
    pub unsafe fn context(&self) -> &mut VcpuContext {
        // SAFETY: by the function's contract no other reference to the context exists.
        unsafe { &mut *self.context.get() }
    }

    /// Sets the initial state of a vCPU that is off.
    pub fn set_entry(&self, pc: u64, argument: u64) {
        // SAFETY: the vCPU is loaded nowhere, and the lock of the power table, or the VM being reset, excludes
        // concurrent calls.
        unsafe { self.context() }.reset(1 << 31 | mpidr(self.index), pc, argument);
    }
}
