//! The architecture's part of VMs and vCPUs: second stage, identification registers, interrupt controller, power states.

mod flash;
pub mod second_stage;
pub mod stolen_time;

use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use stile_blob::{BinaryPoint, Interrupts, Mode, Nested, Techniques};
use stile_board::map::{self, RAM_BASE};
use stile_board::{MAX_CPUS, intid, mpidr};
use stile_device::psci::PowerTable;
use stile_nested::forward::Masks;
use stile_paging::frames::Piece;
use stile_paging::registers::vttbr_el2;
use stile_paging::table::{Attributes, Error, Invalidation, Maintenance, Mapping, MemoryType, PageTable, Stage2, Stage2Permissions};
use stile_paging::vmid::VmidSlot;
use stile_sched::VcpuId;
use stile_sched::lock::TicketLock;
use stile_vgic::{Config, Distributor, PendingRequests, Redistributor, Shortcuts};

use flash::Flash;
use stolen_time::StolenTime;

use crate::arch::aarch64::assigned::{self, Functions};
use crate::arch::aarch64::host::speculation;
use crate::arch::aarch64::host::sysreg::{dsb_ish, isb, read_sysreg, write_sysreg};
use crate::arch::aarch64::interrupts::claims::Claim;
use crate::arch::aarch64::interrupts::read_shadow::ReadShadow;
use crate::arch::aarch64::interrupts::{self, interface, place};
use crate::arch::aarch64::nested;
use crate::arch::aarch64::vcpu::context::VcpuContext;
use crate::arch::aarch64::vcpu::id_registers;
use crate::arch::contract::{VcpuPart, VmPart};
use crate::arena::{self, Arena};
use crate::cpu::SCHEDULE;
use crate::memory::TableFrames;
use crate::vm::Start;

/// The architecture's part of a VM.
pub struct Vm {
    /// Identification registers as the guest sees them, by CRm and op2.
    pub id_registers: [u64; 64],
    /// Guest-physical addresses of its memory.
    pub ram: Range<u64>,
    /// The memory of its structures.
    arena: &'static Arena,
    /// Second stage: what is mapped of its memory. Tables are there for all of it.
    table: TicketLock<PageTable<Stage2>>,
    root: u64,
    vmid: VmidSlot,
    /// CNTVOFF_EL2 with this VM's second stage: ticks for which it was paused; 0 if it has an EL2. Changes only while the VMID is forgotten.
    held_time: AtomicU64,
    /// Elsewhere, so that what all VMs have is near.
    nested: Option<&'static nested::support::Shared>,
    /// PCI functions, if it has any.
    pub functions: Option<&'static Functions>,
    /// The variables of its firmware, if it starts from any.
    pub flash: Option<&'static Flash>,
    /// The stolen time that its vCPUs are told.
    pub stolen_time: StolenTime,
    /// CPUs that it has for itself.
    _claim: Option<Claim>,
    /// SPIs.
    pub distributor: TicketLock<Distributor>,
    /// The part of it that is read without the lock.
    pub read_shadow: ReadShadow,
    /// PSCI's view of the vCPUs.
    pub power: TicketLock<PowerTable>,
}

/// The architecture's part of a vCPU.
pub struct Vcpu {
    /// Its number in the VM.
    pub index: usize,
    /// It has an EL2 of its own.
    pub has_el2: bool,
    context: UnsafeCell<&'static mut VcpuContext>,
    /// SGIs, PPIs, and the list registers' contents.
    pub redistributor: TicketLock<Redistributor>,
    /// Requests of others for it.
    pub requests: PendingRequests,
    /// Its state for direct interrupts, if it may have them.
    pub direct: Option<&'static place::Place>,
    /// It has an EL2, or may have direct interrupts.
    pub special: bool,
    /// How its virtual CPU interface differs from others.
    pub interface: interface::Kind,
    /// Its interrupts that the CPU which has it loaded delivers without the redistributor's lock.
    pub shortcuts: Shortcuts,
}

// SAFETY: `context` is reached only through `Vcpu::context`, whose callers own the vCPU.
unsafe impl Sync for Vcpu {}

/// VTTBR_EL2.BADDR; CnP is not set.
const ROOT: u64 = 0xffff_ffff_fffe;

/// Which vCPU of each VM ran last on each CPU: see [`load_second_stage`].
static LAST_RAN: [[AtomicU8; stile_board::MAX_VMS]; MAX_CPUS] =
    [const { [const { AtomicU8::new(u8::MAX) }; stile_board::MAX_VMS] }; MAX_CPUS];

/// The mapping of a part of a VM's memory.
fn mapping(part: &Piece) -> Mapping<Stage2Permissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: Stage2Permissions::ALL };
    Mapping { address: part.gpa, output: part.pa, size: part.size, attributes }
}

/// The mapping of memory that the guest can only read, such as the flash while it has no command under way.
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

/// Invalidations are done by [`Vm::complete_unmap`], once for several parts.
struct Deferred;

impl Maintenance for Deferred {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}
    fn complete(&mut self) {}
}

/// Invalidates the current VM's second stage with all that depends on it.
struct AtOnce;

impl Maintenance for AtOnce {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}

    fn complete(&mut self) {
        // SAFETY: forgetting translations is always right.
        unsafe { core::arch::asm!("dsb ishst", "tlbi vmalls12e1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
    }
}

impl VmPart for Vm {
    fn new(
        number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        techniques: Techniques,
        arena: &'static Arena,
    ) -> Result<Vm, &'static str> {
        let vcpus = usize::from(config.vcpus);
        nested::support::check(techniques.nested)?;
        let geometry = second_stage::geometry();
        let root = if geometry.root_size() == stile_paging::PAGE_SIZE {
            arena.allocate_pages(stile_paging::PAGE_SIZE)?
        } else {
            return Err("second-stage tables of this CPU would have a root of several pages");
        };
        let mut table =
            PageTable::new(Stage2 { forced_write_back: false }, geometry, root).map_err(|_| "a second-stage root out of reach")?;
        let mut end = RAM_BASE;
        for piece in pieces {
            table
                .reserve(&mut { arena }, mapping(piece))
                .map_err(|_| "a VM's memory can't be mapped: too large for this CPU's second stage, or no memory for tables")?;
            end = end.max(piece.gpa + piece.size);
        }
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
        let stolen_time = StolenTime::new(arena)?;
        map_read_only(&mut table, arena, &stolen_time.piece())?;
        let id_registers = id_registers::for_guests(has_el2, nested::support::may_clear_e2h(techniques.nested));
        let nested = match has_el2 {
            true => Some(&*arena.allocate()?.write(nested::support::Shared {
                shadows: nested::shadows::new(geometry, vcpus, arena)?,
                masks: Masks::new(&id_registers),
            })),
            false => None,
        };
        let functions = match &config.functions[..] {
            [] => None,
            _ if has_el2 => return Err("a VM with an EL2 of its own can't have PCI functions"),
            ids => Some(&*arena.allocate()?.write(Functions::new(number, config.name, ids, &table)?)),
        };
        let claim = match techniques.interrupts {
            Interrupts::Direct => {
                let online = SCHEDULE.lock().scheduler.online().bits();
                let cpus = (0..vcpus).fold(0, |cpus, vcpu| cpus | config.cpus_of(vcpu, online));
                Some(Claim::new(number, cpus, online)?)
            }
            Interrupts::Virtual => None,
        };
        let intids = if functions.is_some() { intid::MSI_BASE + intid::MSI_COUNT } else { intid::COUNT };
        let distributor = Distributor::new(vcpus, interface::shape().priority_bits, intids);
        Ok(Vm {
            id_registers,
            arena,
            nested,
            functions,
            flash,
            stolen_time,
            _claim: claim,
            ram: RAM_BASE..end,
            table: TicketLock::new(table),
            root,
            vmid: VmidSlot::new(),
            held_time: AtomicU64::new(0),
            read_shadow: ReadShadow::new(&distributor),
            distributor: TicketLock::new(distributor),
            power: TicketLock::new(PowerTable::new(vcpus)),
        })
    }

    fn reset(&self) {
        let mut distributor = self.distributor.lock();
        distributor.reset();
        self.read_shadow.update_all(&distributor);
        drop(distributor);
        self.power.lock().reset();
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

    fn unmap_ram(&self, gpa: u64, size: u64) {
        let done = self.table.lock().vacate(&mut { self.arena }, &mut Deferred, gpa, size);
        debug_assert!(done.is_ok(), "whole blocks need no memory to be unmapped");
    }

    fn complete_unmap(&self) {
        AtOnce.complete();
    }

    fn tear_down(&self) {
        if let Some(nested) = self.nested {
            nested.shadows.reset();
        }
        if let Some(functions) = self.functions {
            functions.stop();
        }
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
        // Tables go, too: a guest that moves a BAR about would have one for each place.
        let done = self.table.lock().unmap(&mut TableFrames, &mut AtOnce, gpa, size);
        debug_assert!(done.is_ok(), "what was mapped as a whole needs no memory to be unmapped");
    }
}

impl Vm {
    /// How many ticks its virtual counter is behind the physical one.
    pub fn held_time(&self) -> u64 {
        self.held_time.load(Ordering::Relaxed)
    }

    /// Sets its virtual counter back. None of its vCPUs is loaded, and it has no EL2.
    pub fn hold_time(&self, ticks: u64) {
        self.held_time.fetch_add(ticks, Ordering::Relaxed);
        // A CPU that has the table still loads it anew, and the offset with it.
        self.vmid.forget();
    }

    /// Makes this VM's second stage the current one.
    ///
    /// A CPU may hold translations that another vCPU of the same VM made with the same ASID for other tables: a guest may use ASIDs
    /// differently on each of its CPUs. So a CPU that last ran another vCPU of this VM forgets them (local, this VMID only).
    pub fn load_second_stage(&self, vm: usize, vcpu: usize, cpu: usize) {
        let before = read_sysreg!(VTTBR_EL2);
        // A VMID that is in force on a CPU stays its VM's when they are all given anew.
        let kept = if before & ROOT == self.root { second_stage::vmid(cpu, &self.vmid) } else { None };
        let now = kept.map(|vmid| vttbr_el2(self.root, vmid));
        if now != Some(before) {
            speculation::switch_vm(cpu);
            second_stage::load_table(&self.vmid, self.root, cpu);
            // Another VM's may be different. This VM's changes with its VMID.
            write_sysreg!(CNTVOFF_EL2, self.held_time());
        }
        let last = &LAST_RAN[cpu % MAX_CPUS][vm % stile_board::MAX_VMS];
        if last.load(Ordering::Relaxed) != vcpu as u8 {
            last.store(vcpu as u8, Ordering::Relaxed);
            // The instruction cache may hold what another vCPU's mapping named. The register write, if there was one, must be done
            // before the TLB instruction takes the VMID from it.
            // SAFETY: forgetting translations is always right.
            unsafe { core::arch::asm!("isb", "tlbi vmalle1", "ic iallu", "dsb nsh", "isb", options(nostack, preserves_flags)) };
            if self.nested.is_some() {
                // Its guests have translations under VMIDs of their own, too.
                // SAFETY: forgetting translations is always right.
                unsafe { core::arch::asm!("tlbi alle1", "dsb nsh", "isb", options(nostack, preserves_flags)) };
            }
        }
    }

    /// Makes its second stage's own root the current one again, after that of a vCPU of this VM's ([`place`]). The VMID is the same.
    pub fn load_own_root(&self) {
        write_sysreg!(VTTBR_EL2, read_sysreg!(VTTBR_EL2) & !ROOT | self.root);
        isb();
    }

    /// Back from the second stage of a guest of this VM's.
    pub fn load_own_table(&self, cpu: usize) {
        second_stage::load_table(&self.vmid, self.root, cpu);
    }

    /// Where a guest-physical address leads, if there is memory.
    pub fn translate(&self, address: u64) -> Option<nested::shadows::Below> {
        let format = Stage2 { forced_write_back: false };
        PageTable::new(format, second_stage::geometry(), self.root).ok()?.translate(&TableFrames, address).ok()
    }

    /// Bits of a physical address, as the guest is told.
    pub fn pa_bits(&self) -> u8 {
        id_registers::PA_BITS
    }

    /// Lets the guest read its flash; or nothing of it, by the CPU of one of its vCPUs.
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

    /// The second stages of its own VMs.
    pub fn shadows(&self) -> &nested::shadows::Shadows {
        &self.nested().shadows
    }

    /// Trap controls of EL2 that its processor has.
    pub fn masks(&self) -> &Masks {
        &self.nested().masks
    }
}

impl VcpuPart for Vcpu {
    const MEMORY: u64 = arena::room::<VcpuContext>();

    fn new(id: VcpuId, of: usize, techniques: Techniques, arena: &'static Arena) -> Result<Vcpu, &'static str> {
        let index = usize::from(id.vcpu());
        let has_el2 = techniques.nested != Nested::Off;
        let shape = interface::shape();
        let common_binary_point = match techniques.binary_point {
            BinaryPoint::Own => false,
            BinaryPoint::Common => true,
            BinaryPoint::Auto => shape.is_ended_by_bpr1 && !has_el2,
        };
        // SAFETY: all zero is a valid VcpuContext: integers only.
        let context = unsafe { arena.allocate::<VcpuContext>()?.assume_init_mut() };
        if has_el2 {
            // SAFETY: all zero is a valid Nested: integers, and the first of its regimes and ways.
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
                last: index + 1 == of,
                list_registers: shape.list_registers as u8,
                priority_bits: shape.priority_bits,
                preemption_bits: shape.preemption_bits,
                hw_ppis: interrupts::linked(has_el2),
                behind: interrupts::BEHIND,
                common_binary_point,
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
        // The last boot's.
        let _ = self.requests.take();
        self.redistributor.lock().reset();
        // SAFETY: the vCPU is off, and its VM is being reset.
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
    /// The registers in memory.
    ///
    /// # Safety
    /// The caller owns the vCPU: it is loading or putting it, or it is off and the caller holds what keeps it so.
    #[expect(clippy::mut_from_ref, reason = "see Safety")]
    pub unsafe fn context(&self) -> &mut VcpuContext {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.context.get() }
    }

    /// Where the vCPU, which is off, will start.
    pub fn set_entry(&self, pc: u64, argument: u64) {
        // SAFETY: the vCPU is off, and the VM's power table, or the VM being off, makes this the only call.
        unsafe { self.context() }.reset(1 << 31 | mpidr(self.index), pc, argument);
    }
}
